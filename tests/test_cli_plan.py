"""`homeai plan` in this process. What a model takes here: `test_models.py`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from homeai import cli

Run = Callable[..., tuple[int, str, str]]
CARD_OF_8B = ("--layers", "32", "--hidden", "4096", "--heads", "32", "--kv-heads", "8", "--ff", "14336")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.setenv("HOMEAI_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")

    def run_command(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["homeai", "plan", *args])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run_command


def test_cards_are_listed_with_their_documents(run: Run) -> None:
    code, out, _ = run("--gpus")
    assert code == 0
    assert "h200" in out
    assert "[1] NVIDIA RTX Blackwell GPU Architecture" in out


def test_file_on_two_cards(run: Run, model_path: Path) -> None:
    code, out, _ = run(str(model_path), "--gpu", "rtx-5090", "--gpu", "l40s")
    assert code == 0
    assert "15 layers look 512 tokens back" in out
    for words in ("sequences that fit at once", "tok/s", "last TTFT", "ESTIMATE, no point measured on these cards"):
        assert words in out


def test_numbers_of_a_card_are_a_model_and_the_trace_has_a_price(run: Run) -> None:
    args = [*CARD_OF_8B, "--vocab", "128256", "--bytes-per-weight", "0.61", "--gpu", "rtx-5090", "--gpu", "rtx-4080"]
    prices = ["--price-per-hour", "0.6", "--price-per-hour", "0.3"]
    code, out, _ = run(*args, "--trace", "overlap", *prices, "--currency", "USD", "--json")
    assert code == 0
    answer = json.loads(out)
    assert answer["model"]["num_parameters"] == pytest.approx(8.03e9, rel=0.01)
    large, small = answer["sides"]
    assert large["gpu"]["name"] == "RTX 5090"
    assert 0 < small["cost"] < 1
    code, out, _ = run(*args, "--trace", "overlap", *prices, "--currency", "USD")
    assert "USD per 1,000 accepted answers" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--gpu", "rtx-9999", "--model-size", "8b-q4"], "--gpu rtx-9999: known are rtx-5090"),
        (["--model-size", "8b-q4"], "is planned for a card: add --gpu"),
        (["--gpu", "h200", "--layers", "32"], "also needs --hidden, --heads, --vocab"),
        (["--gpu", "h200", "--layers", "32", "--model-size", "8b-q4"], "only one of them says what the model is"),
        (["--gpu", "h200", "--calibrate"], "a calibration measures this machine"),
        (["--calibrate", "--daemon"], "only one of them says where measured steps come from"),
    ],
)
def test_mistakes_are_said_in_one_line(args: list[str], message: str, run: Run) -> None:
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
