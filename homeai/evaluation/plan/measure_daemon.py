"""The points of a calibration, of a daemon that runs: so many streams at once, and prompts, over HTTP.

What is seen is the time between tokens of a stream, the front end included; others who ask meanwhile falsify it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

import httpx
import msgspec

from homeai.errors import HomeAIError
from homeai.evaluation.plan.calibration import FEW_ROWS, MANY_ROWS, SHORT_PROMPT, Point

PROMPT_TOKENS: Final = 32
NUM_TOKENS: Final = 32
ORDINARY_TOKENS: Final = range(100, 200)
PATIENCE_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class _Stream:
    sent_at: float
    token_times: list[float]

    @property
    def ttft_s(self) -> float:
        return self.token_times[0] - self.sent_at


class DaemonMeter:
    """Raises `HomeAIError` when the daemon does not answer as it should."""

    def __init__(self, url: str, key: str | None) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=PATIENCE_S)
        self._rng = random.Random(11)

    def points(self, rows: Sequence[int], prompts: Sequence[int], rounds: int) -> list[Point]:
        """Medians over the rounds."""
        try:
            measured = [self._round(rows, prompts) for _ in range(rounds)]
        except httpx.HTTPError as error:
            raise HomeAIError(f"the daemon at {self._http.base_url} cannot be measured: {error}") from None
        finally:
            self._http.close()
        return [_median(points) for points in zip(*measured, strict=True)]

    def _round(self, rows: Sequence[int], prompts: Sequence[int]) -> list[Point]:
        decodes = [self._decode(count) for count in sorted({FEW_ROWS, MANY_ROWS, *rows})]
        one_s = decodes[0].step_s
        shortest_s = self._stream(1, 1).ttft_s
        return decodes + [self._prompt(size, one_s - shortest_s) for size in sorted({SHORT_PROMPT, *prompts})]

    def _decode(self, count: int) -> Point:
        with ThreadPoolExecutor(count) as pool:
            streams = list(pool.map(lambda _: self._stream(PROMPT_TOKENS, NUM_TOKENS), range(count)))
        since, until = max(s.token_times[0] for s in streams), min(s.token_times[-1] for s in streams)
        gaps = [b - a for s in streams for a, b in pairwise(s.token_times) if since < a and b <= until]
        if len(gaps) < count:
            raise HomeAIError(
                f"of {count} streams at once the daemon did not run {count}: is scheduler.max_num_seqs smaller, or is "
                "it busy?"
            )
        context = count * (PROMPT_TOKENS + NUM_TOKENS // 2)
        return Point(0, count, context, median(gaps), median(gaps), len(gaps))

    def _prompt(self, size: int, beside_s: float) -> Point:
        """`beside_s`: a step of one token less the first token's time after a prompt of one: what is not the step."""
        step_s = max(1e-6, self._stream(size, 1).ttft_s + beside_s)
        return Point(size, 0, size, step_s, step_s)

    def _stream(self, num_prompt_tokens: int, num_tokens: int) -> _Stream:
        prompt = [self._rng.choice(ORDINARY_TOKENS) for _ in range(num_prompt_tokens)]
        body = {"prompt": prompt, "n_predict": num_tokens, "ignore_eos": True, "stream": True, "cache_prompt": False}
        sent_at, times = time.perf_counter(), list[float]()
        with self._http.stream("POST", "/completion", json=body) as response:
            if response.status_code != 200:
                response.read()
                raise HomeAIError(f"the daemon answers {response.status_code}: {response.text[:200]}")
            for line in response.iter_lines():
                if line.startswith("data: "):
                    tokens = msgspec.json.decode(line[6:], type=_Piece).tokens
                    times += [time.perf_counter()] * len(tokens)
        if not times:
            raise HomeAIError("the daemon's answer holds no tokens")
        return _Stream(sent_at, times)


class _Piece(msgspec.Struct):
    tokens: list[int] = []


def _median(points: Sequence[Point]) -> Point:
    step_s = median(point.step_s for point in points)
    num_steps = sum(point.num_steps for point in points)
    return msgspec.structs.replace(points[0], step_s=step_s, model_s=step_s, num_steps=num_steps)
