from __future__ import annotations

import io

from rich.console import Console

from homeai.evaluation.records import RequestRecord, Run
from homeai.evaluation.summary import summarise
from homeai.evaluation.table import render
from homeai.request import FinishReason


def shown(*records: RequestRecord, width: int = 200) -> list[str]:
    summary = summarise(Run(list(records), [], 10.0), {})
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(render("household", "a card (ESTIMATE)", {"continuous": summary, "static": summary}))
    return [line.rstrip() for line in console.export_text().splitlines()]


def record(fairness_class: str, **changes: object) -> RequestRecord:
    done: dict[str, object] = {
        "arrival_at": 0.0,
        "num_prompt_tokens": 10,
        "finish_reason": FinishReason.LENGTH,
        "finished_at": 3.0,
        "token_times": [0.5, 3.0],
    }
    return RequestRecord(**{"request_id": "r", "source": "s", "fairness_class": fairness_class} | done | changes)  # type: ignore[arg-type]


def test_says_how_step_times_were_come_by() -> None:
    assert "step times: a card (ESTIMATE)" in shown()


def test_every_class_is_shown_for_every_mode_in_order_of_hurry() -> None:
    lines = shown(record("background"), record("voice"), record("guests"))
    body = [line.split()[0] for line in lines[lines.index("voice") :] if line][:12]
    names = ["voice", "background", "guests", "all"]
    assert body == [word for name in names for word in (name, "continuous", "static")]


def test_times_are_seconds_in_three_figures_and_absent_ones_a_dash() -> None:
    lines = shown(record("voice", arrival_at=-150.0), record("voice"))
    row = lines[lines.index("voice") + 1]
    assert row.split() == ["continuous", "0.500", "150", "2.5", "2.5", "2.5", "153", "–", "–", "2/2"]


def test_fits_a_terminal_of_eighty_columns() -> None:
    assert max(map(len, shown(record("interactive"), width=80))) <= 80
    assert not any("…" in line for line in shown(record("interactive"), width=80))


def test_ends_before_the_end_are_told() -> None:
    lines = shown(
        record("voice"), record("voice", finish_reason=FinishReason.ABORT), record("voice", finish_reason=None)
    )
    assert "1/3, 1 left, 1 too long" in lines[lines.index("voice") + 1]
