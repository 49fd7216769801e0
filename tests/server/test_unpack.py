"""Compressed bodies: unpacked up to the cap, never beyond it, and whatever else they are is a client's mistake. E14."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest
import zstandard

from homeai.errors import BodyTooLarge, InvalidRequest
from homeai.server.unpack import MAX_MEMBERS, unpack_gzip, unpack_zstd

MIB = 2**20


def zstd(data: bytes, **options: int) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)  # type: ignore[arg-type]


@pytest.mark.parametrize(("pack", "unpack"), [(gzip.compress, unpack_gzip), (zstd, unpack_zstd)])
@pytest.mark.parametrize("size", [0, 1, 999, 1000])
def test_body_up_to_the_cap_is_unpacked(pack, unpack, size: int) -> None:
    assert unpack(pack(b"x" * size), 1000) == b"x" * size


@pytest.mark.parametrize(("pack", "unpack"), [(gzip.compress, unpack_gzip), (zstd, unpack_zstd)])
def test_beyond_the_cap_it_is_too_large(pack, unpack) -> None:
    with pytest.raises(BodyTooLarge, match="more than 1000 bytes maximum"):
        unpack(pack(b"x" * 1001), 1000)


@pytest.mark.parametrize(("pack", "unpack"), [(gzip.compress, unpack_gzip), (zstd, unpack_zstd)])
def test_several_packed_parts_are_one_body(pack, unpack) -> None:
    parts = [pack(b"a" * 500), pack(b"b" * 500)]
    assert unpack(b"".join(parts), 1000) == b"a" * 500 + b"b" * 500
    with pytest.raises(BodyTooLarge):
        unpack(b"".join([*parts, pack(b"c")]), 1000)


@pytest.mark.parametrize(("pack", "unpack"), [(gzip.compress, unpack_gzip), (zstd, unpack_zstd)])
def test_bomb_takes_no_more_memory_than_the_cap(pack, unpack) -> None:
    bomb = pack(bytes(256 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLarge):
            unpack(bomb, MIB)
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()


def test_frame_that_wants_more_memory_than_it_may_have_is_refused() -> None:
    """The window is the sender's choice, and is set aside before the first byte."""
    huge = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=0)
    packed = zstandard.ZstdCompressor(compression_params=huge).compressobj()
    data = packed.compress(b"x" * 1000) + packed.flush()
    with pytest.raises(InvalidRequest, match="not zstd"):
        unpack_zstd(data, 1000)


@pytest.mark.parametrize("unpack", [unpack_gzip, unpack_zstd])
@pytest.mark.parametrize("data", [b'{"prompt": "a"}', zlib.compress(b"{}"), b"\xff" * 100, b"\x1f\x8b"])
def test_anything_else_is_a_mistake_of_the_client(unpack, data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        unpack(data, 1000)


def test_gzip_that_ends_early_is_said_to() -> None:
    for packed in (b"", gzip.compress(b"x" * 500)[:-1]):
        with pytest.raises(InvalidRequest, match="ends early"):
            unpack_gzip(packed, 1000)


def test_gzip_in_very_many_members_is_refused() -> None:
    """Each would copy all that follow it."""
    member = gzip.compress(b"")
    assert unpack_gzip(member * MAX_MEMBERS, 1000) == b""
    with pytest.raises(InvalidRequest, match=f"more than {MAX_MEMBERS} maximum"):
        unpack_gzip(member * (MAX_MEMBERS + 1), 1000)
