"""`homeai batch` against a running daemon."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from homeai import cli_batches
from homeai.errors import HomeAIError
from tests.daemon import Daemon, eventually


@pytest.fixture
def run(daemon: Daemon) -> Callable[..., str]:
    """What a command prints."""

    def run_command(*args: str, url: str | None = None) -> str:
        env = {"HOMEAI_URL": url or daemon.url, "COLUMNS": "200"}
        outcome = CliRunner().invoke(cli_batches.app, args, env=env)
        if outcome.exception is not None and not isinstance(outcome.exception, SystemExit):
            raise outcome.exception
        assert outcome.exit_code == 0, outcome.output
        return outcome.output

    return run_command


def written(path: Path, *bodies: dict[str, object], url: str = "/v1/completions") -> str:
    lines = [{"custom_id": f"r{i}", "method": "POST", "url": url, "body": body} for i, body in enumerate(bodies)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


def test_batch_from_its_file_to_its_answers(run: Callable[..., str], tmp_path: Path) -> None:
    file = written(tmp_path / "in.jsonl", {"prompt": "a", "max_tokens": 1}, {"prompt": "a", "temperature": 9})
    batch_id = run("submit", file).strip()
    eventually(lambda: json.loads(run("show", batch_id))["status"] == "completed")
    assert f"{batch_id}  completed  2/2   1" in run("list", "--limit", "1")
    assert json.loads(run("results", batch_id))["custom_id"] == "r0"
    output = tmp_path / "errors.jsonl"
    assert run("results", batch_id, "--errors", "-o", str(output)) == ""
    assert json.loads(output.read_text())["custom_id"] == "r1"
    assert run("cancel", batch_id) == f"{batch_id} is completed: 1 answers\n"


def test_what_is_wrong_is_said(run: Callable[..., str], tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n")
    file = written(tmp_path / "in.jsonl", {"prompt": "a"}, {})
    with pytest.raises(HomeAIError, match="names no url: say --endpoint"):
        run("submit", str(bad))
    with pytest.raises(HomeAIError, match=r"cannot be used:\n  line 1: custom_id is missing"):
        run("submit", str(bad), "--endpoint", "/v1/completions")
    with pytest.raises(HomeAIError, match=r"line 1: url is '/v1/completions'"):
        run("submit", file, "--endpoint", "/v1/embeddings")
    with pytest.raises(HomeAIError, match="completion_window"):
        run("submit", file, "--window", "soon")
    with pytest.raises(HomeAIError, match="cannot be read: No such file"):
        run("submit", str(tmp_path / "missing"))
    with pytest.raises(HomeAIError, match="there is no batch 'batch_x'"):
        run("show", "batch_x")
    with pytest.raises(HomeAIError, match="no daemon answers"):
        run("list", url="http://127.0.0.1:1")
