from __future__ import annotations

from pathlib import Path

import pytest

from homeai.errors import ConfigError
from homeai.evaluation import traces, workload
from homeai.evaluation.workload import Arrival


def test_workload_comes_back_from_its_file(tmp_path: Path) -> None:
    arrivals = traces.scatter(3)
    workload.save(arrivals, tmp_path / "w.jsonl")
    assert workload.load(tmp_path / "w.jsonl") == arrivals


def test_file_is_put_in_order_of_time_and_blank_lines_are_nothing(tmp_path: Path) -> None:
    late, early = (
        Arrival(at=at, source="s", fairness_class="voice", prompt_token_ids=[1], max_tokens=1) for at in (2.0, 1.0)
    )
    workload.save([late, early], tmp_path / "w.jsonl")
    (tmp_path / "w.jsonl").write_bytes((tmp_path / "w.jsonl").read_bytes() + b"\n\n")
    assert workload.load(tmp_path / "w.jsonl") == [early, late]


GOOD = '{"at":0,"source":"s","fairness_class":"voice","prompt_token_ids":[5],"max_tokens":3}'


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("nonsense", "not an arrival"),
        ('{"at":0}', "not an arrival: Object missing required field"),
        (GOOD.replace("[5]", "[]"), "an empty prompt"),
        (GOOD.replace('"at":0', '"at":-1'), "at -1.0, max_tokens 3: neither may be negative"),
    ],
)
def test_bad_line_is_named(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text(f"{GOOD}\n{line}\n")
    with pytest.raises(ConfigError, match=r"w\.jsonl, line 2: " + problem):
        workload.load(path)


def test_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        workload.load(tmp_path / "none.jsonl")


def test_scale_shortens_the_time_between_the_same_requests() -> None:
    arrivals = traces.household(11)
    faster = workload.scaled(arrivals, 1.5)
    assert [a.at / 1.5 for a in arrivals] == [a.at for a in faster]
    assert [a.prompt_token_ids for a in arrivals] == [a.prompt_token_ids for a in faster]
