"""What crosses between the front end and the embedding child: msgpack of tagged structs, framed like the engine's.

Down: LoadEmbedder, once, then Embed; up: EmbedderReady or EmbedderFailed, then one Embedded for each Embed, in order.
"""

from __future__ import annotations

import msgspec

from homeai.messages import HEADER


class LoadEmbedder(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    model_path: str
    pooling: str  # auto | mean | last | cls
    max_tokens: int  # of one input
    num_threads: int


class Embed(msgspec.Struct, frozen=True, tag=True):
    token_ids: list[int]


class EmbedderReady(msgspec.Struct, frozen=True, tag=True):
    """It takes inputs from now on."""


class Embedded(msgspec.Struct, frozen=True, tag=True):
    vector: bytes  # float32 [dimensions], little-endian, of length 1


class EmbedderFailed(msgspec.Struct, frozen=True, tag=True):
    """Last words."""

    message: str


Down = LoadEmbedder | Embed
Up = EmbedderReady | Embedded | EmbedderFailed

_encoder = msgspec.msgpack.Encoder()
down_decoder: msgspec.msgpack.Decoder[Down] = msgspec.msgpack.Decoder(Down)
up_decoder: msgspec.msgpack.Decoder[Up] = msgspec.msgpack.Decoder(Up)


def encode_frame(message: Down | Up) -> bytes:
    body = _encoder.encode(message)
    return HEADER.pack(len(body)) + body
