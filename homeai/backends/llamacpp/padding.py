"""Rows that are computed for nobody, where a pass is faster with them.

llama.cpp's own kernels take rows in groups of four on a CPU and what is left over one by one, each reading all weights
again: 7 decodes took 55 ms where 8 took 38 (270M model, two cores). Which is faster is measured, since it depends on
the weights' format and on the processor: with scripts/llama-cpp.patch it may be neither.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

GROUP: Final = 4  # rows
RATE: Final = 0.5  # of a new measurement
RETRY_AFTER: Final = 200  # passes: the slower way is measured again, it may have been slow by chance


class Padding:
    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._seconds: dict[int, float] = {}  # of a pass with so many rows
        self._num_asked: Counter[int] = Counter()

    def padded(self, num_rows: int) -> int:
        """How many rows to compute for these."""
        full = -(-num_rows // GROUP) * GROUP
        if num_rows in (1, full) or full > self._max_rows:
            return num_rows
        ways = (num_rows, full)
        self._num_asked[num_rows] += 1
        for way in ways:
            if way not in self._seconds:
                return way
        pick = max if self._num_asked[num_rows] % RETRY_AFTER == 0 else min
        return pick(ways, key=self._seconds.__getitem__)

    def observe(self, num_rows: int, seconds: float) -> None:
        before = self._seconds.get(num_rows, seconds)
        self._seconds[num_rows] = before + RATE * (seconds - before)
