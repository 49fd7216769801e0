"""The commands as people type them: what they print, how they end, and what they load for it."""

from __future__ import annotations

import io
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from homeai import __version__, cli
from homeai.keys import KeyStore
from tests.daemon import Daemon, eventually


class Outcome(NamedTuple):
    exit_code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """One command in this process, in a home of its own."""
    for variable in [name for name in os.environ if name.startswith("HOMEAI_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HOMEAI_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")

    def run_command(*args: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["homeai", *args])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), captured.out, captured.err)

    return run_command


def complaint(outcome: Outcome, exit_code: int) -> str:
    """The one line on stderr of a command that could not do it."""
    assert (outcome.exit_code, outcome.out) == (exit_code, "")
    assert outcome.err.startswith("homeai: ")
    assert outcome.err.count("\n") == 1
    return outcome.err.removeprefix("homeai: ").rstrip("\n")


# ---- help ----------------------------------------------------------------------------------------------


def test_help_names_every_command(run: Run) -> None:
    outcome = run("--help")
    assert outcome.exit_code == 0
    for command in ("serve", "status", "chat", "keys", "config", "version"):
        assert re.search(rf"\b{command}\b", outcome.out)


@pytest.mark.parametrize("command", ["serve", "status", "chat", "keys add", "keys list", "keys revoke", "config check"])
def test_every_command_explains_itself(command: str, run: Run) -> None:
    outcome = run(*command.split(), "--help")
    assert outcome.exit_code == 0
    assert "Usage:" in outcome.out


def test_version(run: Run) -> None:
    assert run("version").out == f"{__version__}\n"


def test_commands_load_what_they_need_when_they_need_it() -> None:
    """`--help` is instant: nothing heavy is behind the door."""
    heavy = ["fastapi", "httpx", "llama_cpp", "numpy", "pydantic", "sqlite_utils", "uvicorn", "yaml"]
    script = f"import sys, homeai.cli; print(*({heavy} & sys.modules.keys()))".replace("[", "{").replace("]", "}")
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []


# ---- settings ------------------------------------------------------------------------------------------


def test_good_settings_are_fine(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("server: {port: 9000}\n")
    outcome = run("config", "check", "--config", str(file), "--set", "scheduler.max_num_seqs=4")
    assert outcome == (0, "the settings are fine\n", "")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("server.prot=1", "server.prot is not a setting"),
        ("server.port=yes", "server.port"),
        ("server.port=70000", "server.port: 70000 is not allowed"),
        ("classes.voice.weight=0", "classes.voice.weight: 0 is not allowed"),
        ("scheduler.max_num_batched_tokens=-1", "scheduler.max_num_batched_tokens: -1 is not allowed"),
        ("server.port", "--set server.port: needs the form section.key=value"),
        ("", "--set : needs the form section.key=value"),
        ("=1", "''"),
        ("server={", "server"),
    ],
)
def test_setting_that_cannot_be_used_is_one_line(setting: str, said: str, run: Run) -> None:
    assert said in complaint(run("config", "check", "--set", setting), 2)


@pytest.mark.parametrize("text", ["server: [", "- a list", "unknown: 1", "server: {port: null, port: 1}\n\t"])
def test_file_that_cannot_be_used_is_one_line(text: str, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert complaint(run("config", "check", "--config", str(file)), 2)


def test_file_that_is_missing_is_one_line(run: Run, tmp_path: Path) -> None:
    assert "missing.yaml" in complaint(run("config", "check", "--config", str(tmp_path / "missing.yaml")), 2)


def test_environment_of_the_clients_is_no_setting(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever talks to a daemon elsewhere may still look after the settings here."""
    monkeypatch.setenv("HOMEAI_URL", "http://brain.lan:8700")
    monkeypatch.setenv("HOMEAI_API_KEY", "hai_x")
    assert run("config", "check").exit_code == 0


def test_daemon_that_cannot_listen_says_so_in_one_line(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "homeai", "serve", "--port", port, "--model", str(model)]
        process = subprocess.run([*command, "--data-dir", str(tmp_path)], capture_output=True, text=True)
    said = complaint(Outcome(process.returncode, process.stdout, process.stderr), 2)
    assert said == f"server.host '127.0.0.1', server.port {port}: Address already in use; choose another one"


# ---- keys ----------------------------------------------------------------------------------------------


def test_key_is_shown_once_and_opens_the_door(run: Run, tmp_path: Path) -> None:
    outcome = run("keys", "add", "tablet", "--class", "voice", "--trusted")
    token = outcome.out.strip()
    with closing(KeyStore(tmp_path / "ledger.db")) as store:
        key = store.find(token)
    assert key is not None
    assert (key.name, key.fairness_class, key.trusted) == ("tablet", "voice", True)
    listed = run("keys", "list").out
    assert token not in listed
    assert re.search(r"tablet +voice +yes +no +– +– +– +\d{4}-\d\d-\d\d \d\d:\d\d", listed)


def test_key_is_listed_with_its_limits(run: Run) -> None:
    run("keys", "add", "guest", "--requests-per-minute", "5", "--tokens-per-day", "20000", "--max-context", "2048")
    assert re.search(r"guest +default +no +no +5 +20,000 +2,048 +\d{4}", run("keys", "list").out)


def test_key_without_a_class_has_the_default(run: Run) -> None:
    run("keys", "add", "[red]phone")
    assert re.search(r"\[red\]phone +default +no ", run("keys", "list").out)


def test_revoked_key_is_gone(run: Run, tmp_path: Path) -> None:
    token = run("keys", "add", "tablet").out.strip()
    assert run("keys", "revoke", "tablet") == (0, "the key tablet is revoked\n", "")
    with closing(KeyStore(tmp_path / "ledger.db")) as store:
        assert store.find(token) is None


def test_name_is_given_once(run: Run) -> None:
    run("keys", "add", "tablet")
    assert "there is already a key named 'tablet'" in complaint(run("keys", "add", "tablet"), 2)


def test_class_of_a_key_must_exist(run: Run) -> None:
    said = complaint(run("keys", "add", "tablet", "--class", "vioce"), 2)
    assert said == "--class vioce: allowed are voice, interactive, coding, background"


def test_unknown_key_cannot_be_revoked(run: Run) -> None:
    assert "there is no key named 'tablet'" in complaint(run("keys", "revoke", "tablet"), 2)


# ---- looking and talking -------------------------------------------------------------------------------


def test_status_of_a_daemon(run: Run, daemon: Daemon) -> None:
    outcome = run("status", "--url", daemon.url)
    assert (outcome.exit_code, outcome.err) == (0, "")
    assert re.search(r"state +resident", outcome.out)
    for name in ("voice", "interactive", "coding", "background"):
        assert name in outcome.out


@pytest.mark.parametrize("command", ["status", "chat"])
def test_nobody_there_is_one_line(command: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n"))
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # bound, and nobody listens
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        outcome = run(command, "--url", url)
    assert outcome.exit_code == 1
    assert outcome.err.startswith(f"homeai: no daemon answers at {url}: ")
    assert outcome.err.count("\n") == 1


@pytest.fixture(scope="module")
def locked_daemon(start_daemon: Callable[..., Daemon]) -> Daemon:
    """Wants keys, and answers briefly: how long a base model talks is a matter of luck."""
    return start_daemon("server.auth=keys", "scheduler.max_model_len=64")


def test_wrong_key_is_one_line(run: Run, locked_daemon: Daemon) -> None:
    assert "not known" in complaint(run("status", "--url", locked_daemon.url, "--key", "hai_wrong"), 1)
    assert "is needed" in complaint(run("status", "--url", locked_daemon.url), 1)


def test_chat_with_a_daemon(run: Run, locked_daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(KeyStore(locked_daemon.data_dir / "ledger.db")) as store:
        monkeypatch.setenv("HOMEAI_API_KEY", store.add("terminal"))
    monkeypatch.setenv("HOMEAI_URL", locked_daemon.url)
    monkeypatch.setattr(sys, "stdin", io.StringIO("What is the capital of France?\n"))
    outcome = run("chat", "--system", "Be brief.", "--max-tokens", "5")
    assert (outcome.exit_code, outcome.err) == (0, "")
    assert outcome.out.count("You: ") >= 2  # it answered, and asked again
    (row,) = eventually(lambda: locked_daemon.ledger_rows("terminal"))
    assert (row["api"], row["status"], row["num_output_tokens"]) == ("/v1/chat/completions", 200, 5)
