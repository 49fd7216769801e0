"""Compressed bodies → bytes, never more than a cap: a few kilobytes can say that they are gigabytes."""

from __future__ import annotations

import zlib
from typing import Final

import zstandard

from homeai.errors import BodyTooLarge, InvalidRequest

MAX_MEMBERS: Final = 256  # of a gzip body; each costs a copy of what follows it
GZIP: Final = 16 + zlib.MAX_WBITS  # with a gzip header and checksum
MAX_WINDOW_BYTES: Final = 8 * 1024 * 1024  # of zstd's memory, whatever a frame asks for


def unpack_gzip(packed: bytes, max_bytes: int) -> bytes:
    """One or several members. Raises `BodyTooLarge` when `max_bytes` are exceeded, `InvalidRequest` for other data."""
    parts: list[bytes] = []
    room = max_bytes + 1
    for _ in range(MAX_MEMBERS):
        member = zlib.decompressobj(GZIP)
        try:
            parts.append(member.decompress(packed, room))
        except zlib.error as error:
            raise InvalidRequest(f"the request body is not gzip: {error}") from None
        room -= len(parts[-1])
        if room <= 0:
            raise _too_large(max_bytes)
        if not member.eof:
            raise InvalidRequest("the request body is not complete: its gzip data ends early")
        if not member.unused_data:
            return b"".join(parts)
        packed = member.unused_data
    raise InvalidRequest(f"the request body has too many gzip members: more than {MAX_MEMBERS} maximum")


def unpack_zstd(packed: bytes, max_bytes: int) -> bytes:
    """One or several frames. Raises as `unpack_gzip`; data that ends early is cut off, and then no JSON."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
    try:
        with decompressor.stream_reader(packed, read_across_frames=True) as reader:
            unpacked = reader.read(max_bytes + 1)
    except zstandard.ZstdError as error:
        raise InvalidRequest(f"the request body is not zstd: {error}") from None
    if len(unpacked) > max_bytes:
        raise _too_large(max_bytes)
    return unpacked


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"the request body is too large: unpacked, more than {max_bytes} bytes maximum")
