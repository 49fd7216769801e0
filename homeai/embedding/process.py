"""Entry point of the embedding child: one text after the other, on a few CPU threads, at a low priority.

It ends when its socket closes. What waits for it stands in the front end, so that leaving is all a client has to do.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
from typing import BinaryIO

import homeai.logs
from homeai.embedding.embedder import load_embedder
from homeai.embedding.messages import (
    Down,
    Embed,
    Embedded,
    EmbedderFailed,
    EmbedderReady,
    LoadEmbedder,
    Up,
    down_decoder,
    encode_frame,
)
from homeai.errors import DeviceUnavailable, ModelLoadError
from homeai.messages import HEADER

log = logging.getLogger("homeai.embedding")

NICENESS = 10  # the engine's steps go first


def main() -> None:
    parser = argparse.ArgumentParser(prog="homeai-embedding")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--log-format", default="text")
    args = parser.parse_args()
    homeai.logs.setup(args.log_level, args.log_format)
    logging.getLogger("llama.cpp").setLevel(logging.ERROR)  # the rest it says of every ordinary model
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches all: the front end ends us
    os.nice(NICENESS)
    sock = socket.socket(fileno=args.fd)
    try:
        serve(sock)
    except (ModelLoadError, DeviceUnavailable) as error:
        _send(sock, EmbedderFailed(str(error)))
    except OSError:
        pass  # the front end is gone
    except Exception as error:
        log.exception("the embedding process is broken and ends")
        _send(sock, EmbedderFailed(f"{type(error).__name__}: {error}"))
    os._exit(0)


def serve(sock: socket.socket) -> None:
    """Until the other side closes."""
    with sock.makefile("rb") as stream:
        load = _receive(stream)
        if load is None:
            return
        assert isinstance(load, LoadEmbedder), "the first message says what to load"
        embedder = load_embedder(load)
        _send(sock, EmbedderReady())
        while isinstance(message := _receive(stream), Embed):
            _send(sock, Embedded(embedder.embed(message.token_ids).tobytes()))


def _receive(stream: BinaryIO) -> Down | None:
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (length,) = HEADER.unpack(header)
    body = stream.read(length)
    return down_decoder.decode(body) if len(body) == length else None


def _send(sock: socket.socket, message: Up) -> None:
    sock.sendall(encode_frame(message))


if __name__ == "__main__":
    main()
