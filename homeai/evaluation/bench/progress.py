"""A bench's progress in a terminal: what runs, how far it is, how long it will take."""

from __future__ import annotations

from time import monotonic
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from homeai.evaluation.bench.figures import seconds
from homeai.evaluation.bench.records import CallRecord, Play
from homeai.evaluation.bench.rows import Row


class TerminalProgress:
    """A bar over all of it, in seconds as the traces have them, and one for what is played now."""

    def __init__(self, console: Console) -> None:
        columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}")
        self._bars = Progress(
            *columns, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(elapsed_when_finished=True),
            console=console, transient=True, speed_estimate_period=600,
        )  # fmt: skip
        self._all = self._bars.add_task("bench", total=None, count="")
        self._now: TaskID | None = None
        self._num_calls = self._num_done = 0
        self._expected_s = self._counted_s = self._started_at = 0.0

    def __enter__(self) -> TerminalProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bars.stop()

    def begins(self, expected_s: float) -> None:
        self._bars.update(self._all, total=expected_s)

    def starts(self, variant: str) -> None:
        self._bars.update(self._all, description=f"bench: {variant}")

    def plays(self, row: Row, round_number: int, num_calls: int, expected_s: float) -> None:
        self._num_calls, self._num_done, self._expected_s = num_calls, 0, expected_s
        self._counted_s, self._started_at = 0.0, monotonic()
        title = f"  {row.id} {row.load.label}, round {round_number}"
        self._now = self._bars.add_task(title, total=num_calls, count=f"0/{num_calls}")

    def answered(self, record: CallRecord) -> None:
        self._num_done += 1
        if self._now is not None:
            self._bars.update(self._now, advance=1, count=f"{self._num_done}/{self._num_calls}")
        self._count(min(monotonic() - self._started_at, self._expected_s))

    def played(self, row: Row, round_number: int, play: Play) -> None:
        self._count(self._expected_s)
        if self._now is not None:
            self._bars.remove_task(self._now)
        score = row.scores[-1]
        ttft = f"TTFT {seconds(score.attended.ttft_p50)} / {seconds(score.attended.ttft_p95)} s"
        line = f"{row.id} {row.variant}, {row.load.label}: {score.figures.tokens_per_s:.1f} tok/s, {ttft}"
        self._bars.console.print(line, highlight=False, markup=False)

    def skips(self, row_label: str, expected_s: float) -> None:
        self._bars.update(self._all, advance=expected_s)

    def _count(self, seconds_done: float) -> None:
        """Up to so much of the play that runs."""
        self._bars.update(self._all, advance=seconds_done - self._counted_s)
        self._counted_s = seconds_done
