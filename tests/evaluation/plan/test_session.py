"""Calibrations of the real model, from where measured steps may come; how close they are is `scripts/bench-plan`'s."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from homeai import config
from homeai.config import Config
from homeai.errors import ConfigError
from homeai.evaluation import workload
from homeai.evaluation.plan import measure, measure_daemon, session
from homeai.evaluation.plan.calibration import Calibration
from homeai.evaluation.plan.measure_daemon import DaemonMeter
from homeai.evaluation.plan.session import Wish
from tests.daemon import Daemon
from tests.evaluation.plan.test_calibration import made_up

WISH = Wish(streams=8, context=2048, prompt=512)


@pytest.fixture
def settings(tmp_path: Path) -> Config:
    return config.load(None, env={}, overrides=[("data_dir", str(tmp_path)), ("model.num_threads", "1")])


def shapes(found: Calibration) -> list[str]:
    return [str(check.point) for check in found.fitted]


def steps_log(path: Path) -> Path:
    points = [made_up(0, 1, 50), made_up(0, 8, 400), made_up(90, 0, 90), made_up(0, 4, 200)]
    lines = [
        {
            "num_prefill_tokens": p.num_prefill_tokens,
            "num_decode_tokens": p.num_decode_tokens,
            "num_context_tokens": p.num_context_tokens,
            "num_attended_tokens": p.num_context_tokens,
            "kv_used": 1000,
            "step_s": p.step_s,
            "forward_s": p.model_s,
        }
        for p in points
    ]
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines * 5))
    return path


def test_loaded_model_is_measured_and_what_it_reaches_is_kept(
    settings: Config, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "ROWS", (1, 8))
    monkeypatch.setattr(session, "PROMPTS", (8,))
    monkeypatch.setattr(measure, "NUM_STEPS", 3)
    monkeypatch.setattr(measure, "MANY_TOKENS", 8)
    found = session.calibrate(settings, model_path, rounds=1)
    assert shapes(found) == ["1 row", "8 rows", "prompt of 8"]
    assert found.machine == "1 CPU core"
    assert session.calibration_of(settings, model_path) == found
    assert session.calibration_of(settings, model_path.with_name("other.gguf")) is None


def test_log_of_a_daemon_is_enough_and_speeds_follow(settings: Config, model_path: Path, tmp_path: Path) -> None:
    assert session.here(settings, model_path, WISH).speeds == []
    found = session.calibrate(settings, model_path, steps=steps_log(tmp_path / "log"))
    assert found.error == pytest.approx(0, abs=0.05)
    answer = session.here(settings, model_path, WISH)
    assert [each.num_streams for each in answer.speeds] == [1, 2, 4, 8]
    assert answer.calibration == found


def test_running_daemon_is_measured_over_its_own_api(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_daemon, "NUM_TOKENS", 16)
    points = DaemonMeter(daemon.url, None).points([1, 8], [8], rounds=1)
    assert [str(point) for point in points] == ["1 row", "8 rows", "prompt of 8"]
    assert all(point.step_s > 0 for point in points)


def test_daemon_with_another_model_is_refused(daemon: Daemon, settings: Config, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    with pytest.raises(ConfigError, match=r"serves gemma.*\.gguf, the plan is for other\.gguf"):
        session.calibrate(settings, other, daemon=(daemon.url, None))


def test_cards_are_told_how_far_the_same_arithmetic_was_off_here(
    settings: Config, model_path: Path, tmp_path: Path
) -> None:
    session.calibrate(settings, model_path, steps=steps_log(tmp_path / "log"))
    wish = Wish(streams=16, context=8192, prompt=512, cards=["rtx-4080"])
    answer = session.on_cards(settings, session.architecture(None, "8b-q4", {}), wish)
    assert answer.calibration is not None
    assert not answer.needs["RTX 4080"].fits
    assert [each.num_streams for each in answer.speeds["RTX 4080"]] == [1, 2, 4, 8]  # 16 of 8,192 tokens do not fit


def test_trace_of_the_own_house_is_played_as_the_bench_saved_it(tmp_path: Path) -> None:
    path = tmp_path / "house.jsonl"
    call = {"at": 1.5, "group": "chat", "source": "kitchen", "fairness_class": "voice", "prompt": [["q", 9]]}
    path.write_bytes(msgspec.json.encode(call | {"max_tokens": 24}))
    (arrival,) = session.arrivals_of(str(path), 11, 3.0)
    assert (arrival.at, len(arrival.prompt_token_ids), arrival.max_tokens) == (0.5, 10, 24)
    workload.save([arrival], path)
    assert session.arrivals_of(str(path), 11, 1.0) == [arrival]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hours": [1.0]}, "1 of them for 2 --gpu"),
        ({"hours": [1.0, 2.0]}, "needs a --trace"),
        ({"cards": ["voodoo-2"]}, "known are rtx-5090"),
    ],
)
def test_wishes_that_cannot_be_met_are_refused(changes: dict[str, object], message: str, settings: Config) -> None:
    fields = {"streams": 8, "context": 4096, "prompt": 512, "cards": ["rtx-5090", "h200"]} | changes
    with pytest.raises(ConfigError, match=message):
        session.on_cards(settings, session.architecture(None, "8b-q4", {}), Wish(**fields))  # type: ignore[arg-type]
