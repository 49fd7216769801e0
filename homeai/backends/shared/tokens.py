"""A request's tokens, prompt and output, as the batch reads them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class TokenBuffer:
    """An array that grows by doubling."""

    __slots__ = ("_array", "_length")

    def __init__(self, tokens: list[int], room: int) -> None:
        self._array = np.empty(len(tokens) + room, np.int32)
        self._array[: len(tokens)] = tokens
        self._length = len(tokens)

    def append(self, token_id: int) -> None:
        if self._length == len(self._array):
            self._array = np.resize(self._array, 2 * self._length)
        self._array[self._length] = token_id
        self._length += 1

    def slice(self, start: int, count: int) -> npt.NDArray[np.int32]:
        assert start + count <= self._length, f"tokens {start}+{count} of {self._length}"
        return self._array[start : start + count]

    def __len__(self) -> int:
        return self._length
