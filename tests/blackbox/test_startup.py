"""What cannot work is said in one clear line, once. Cases I6 and I7."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from homeai.backends.llamacpp.binding import supports_gpu
from tests.daemon import Daemon, eventually, eventually_async, free_port
from tests.streaming import COMPLETIONS, exactly

Serve = Callable[..., subprocess.CompletedProcess[str]]

MIB = 1024 * 1024


# ---- settings ------------------------------------------------------------------------------------------


@pytest.fixture
def serve(model_path: Path, tmp_path: Path) -> Serve:
    """`homeai serve` with more arguments, run to its end."""
    command = [sys.executable, "-m", "homeai", "serve", "--port", "0"]
    command += ["--data-dir", str(tmp_path), "--model", str(model_path)]

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *args], capture_output=True, text=True, timeout=60)

    return run


def refusal(outcome: subprocess.CompletedProcess[str]) -> str:
    """The one line in which `serve` says why it does not start."""
    assert outcome.returncode == 2, outcome.stderr
    assert outcome.stdout == ""
    (line,) = outcome.stderr.splitlines()
    assert line.startswith("homeai: ")
    return line


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("server.prot=1", ["server.prot", "did you mean server.port"]),
        ("sever.port=1", ["sever is not a setting", "did you mean server?", "--set"]),
        ("classes.voice.weight=0", ["classes.voice.weight", "0", "a number above 0"]),
        ("classes.voice.wait=1", ["classes.voice.wait"]),
        ("scheduler.max_num_batched_tokens=-5", ["scheduler.max_num_batched_tokens", "-5", "from 1"]),
        ("scheduler.kv_cells=0", ["scheduler.kv_cells", "0", "from 1"]),
        ("scheduler.mode=fast", ["scheduler.mode", "fast", "continuous"]),
        ("scheduler.chunked_prefill=2", ["scheduler.chunked_prefill", "true or false"]),
        ("server.port=65536", ["server.port", "65536", "from 0 to 65535"]),
        ("server.host=no.such.host.invalid", ["server.host", "no.such.host.invalid"]),
        ("model.path=/no/such/model.gguf", ["model.path", "/no/such/model.gguf", "existing file"]),
        ("model.path=/dev", ["model.path", "/dev is a folder without config.json"]),
        ("model.chat_template=/no/such.jinja", ["model.chat_template", "/no/such.jinja", "existing file"]),
        ("sources=[{name: tv, class: cinema}]", ["sources[0].class", "cinema", "voice, interactive"]),
        ("server.port", ["server.port", "section.key=value"]),
    ],
)
def test_setting_that_cannot_be_used_is_named_with_what_is_allowed(
    serve: Serve, setting: str, words: list[str]
) -> None:
    line = refusal(serve("--set", setting))
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("server:\n  prot: 1\n", ["server.prot", "server.port"]),
        ("server: [\n", ["line"]),
        ("- server\n", ["mapping"]),
        ("scheduler:\n  max_num_seqs: many\n", ["scheduler.max_num_seqs", "many", "an integer"]),
    ],
)
def test_mistake_in_the_config_file_names_file_and_key(
    serve: Serve, tmp_path: Path, text: str, words: list[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    line = refusal(serve("--config", str(path)))
    assert all(word in line for word in ("config.yaml", *words)), line


def test_port_that_is_taken_is_named(daemon: Daemon, serve: Serve) -> None:
    port = daemon.url.rpartition(":")[2]
    line = refusal(serve("--port", port))
    assert "server.port" in line
    assert port in line
    with daemon.client() as client:
        assert client.get("/health").is_success


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_open_to_the_network_without_keys_is_refused(serve: Serve, host: str) -> None:
    line = refusal(serve("--host", host))
    assert all(word in line for word in ("server.host", "homeai keys add", "auth: none")), line


@pytest.mark.parametrize("name", ["7", "null", "no: such model.gguf"])
def test_flag_is_taken_as_written(serve: Serve, name: str) -> None:
    assert f"model.path: '{name}' does not exist" in refusal(serve("--model", name))


def test_open_to_the_network_is_allowed_when_it_is_meant(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon("server.host=0.0.0.0", "server.auth=none")
    with daemon.client() as client:
        assert client.get("/health").is_success


# ---- a ledger that cannot be used ----------------------------------------------------------------------


def test_broken_ledger_keeps_nobody_out_who_needs_no_key(model_path: Path, tmp_path: Path) -> None:
    """It is said, the file is left as it is, and what happens is kept once it was moved away."""
    path, letter = tmp_path / "ledger.db", b"this is a letter, not a ledger" * 100
    path.write_bytes(letter)
    with Daemon.start(model_path, tmp_path) as daemon:
        with daemon.client() as client:
            assert client.post(COMPLETIONS, json=exactly(1)).is_success
        (note,) = daemon.status()["notes"]
        assert "not a database" in note
        assert path.read_bytes() == letter
        for subject in ("keys", "ledger"):
            assert sum(f"homeai.{subject}: " in line and " WARNING " in line for line in daemon.log) == 1
        path.rename(tmp_path / "letter")
        eventually(lambda: any("the ledger is written again" in line for line in daemon.log))
        eventually(lambda: daemon.ledger_rows("default"))
        eventually(lambda: daemon.status()["notes"] == [])
        assert daemon.stop() == 0
    assert not any("Traceback" in line for line in daemon.log)


def test_broken_ledger_keeps_everybody_out_who_needs_a_key(model_path: Path, tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"this is a letter, not a ledger" * 100)
    with Daemon.start(model_path, tmp_path, "server.auth=keys") as daemon, daemon.client() as client:
        for headers in ({}, {"Authorization": "Bearer hai_x"}):
            refused = client.post(COMPLETIONS, json=exactly(1), headers=headers)
            assert refused.status_code == 503
            assert "keys cannot be read" in refused.json()["error"]["message"]
            assert int(refused.headers["retry-after"]) > 0
        assert client.get("/health").is_success


# ---- a device that is not there ------------------------------------------------------------------------


@pytest.mark.skipif(supports_gpu(), reason="this machine has a GPU")
def test_device_that_is_not_there_is_waited_for(model_path: Path, tmp_path: Path) -> None:
    """As at boot, before the driver is up: no failure, no restart storm, no quiet run on the CPU."""
    engines: set[int] = set()
    with Daemon.launch(model_path, tmp_path, "model.device=cuda", port=free_port()) as daemon:
        eventually(lambda: any("the device is unavailable" in line for line in daemon.log))
        status = daemon.status()
        assert status["state"] == "loading"
        assert "no GPU" in status["failure"]
        with daemon.client() as client:
            health = client.get("/health")
            assert (health.status_code, health.json()["error"]["message"]) == (503, status["failure"])
            refused = client.post(COMPLETIONS, json=exactly(1))
            assert refused.status_code == 503
            assert status["failure"] in refused.json()["error"]["message"]
            assert int(refused.headers["retry-after"]) > 0
        eventually(lambda: engines.update(engine.pid for engine in daemon.engines) or len(engines) > 1)
        assert daemon.stop() == 0
    assert sum("the device is unavailable" in line for line in daemon.log) == 1
    assert not any(" ERROR " in line or "Traceback" in line for line in daemon.log)


# ---- model files ---------------------------------------------------------------------------------------


def empty(path: Path, model: Path) -> None:
    path.touch()


def not_a_gguf(path: Path, model: Path) -> None:
    path.write_text("this is a letter, not a model")


def header_only(path: Path, model: Path) -> None:
    path.write_bytes(head(model, 24))


def cut_in_the_metadata(path: Path, model: Path) -> None:
    path.write_bytes(head(model, MIB))


def cut_in_the_tensors(path: Path, model: Path) -> None:
    path.write_bytes(head(model, 100 * MIB))


def nonsense_after_the_magic(path: Path, model: Path) -> None:
    path.write_bytes(b"GGUF" + bytes(range(256)) * 64)


def head(model: Path, num_bytes: int) -> bytes:
    with model.open("rb") as file:
        return file.read(num_bytes)


@contextmanager
def launched(model: Path, data_dir: Path, *settings: str) -> Iterator[Daemon]:
    with Daemon.launch(model, data_dir, *settings, port=free_port()) as daemon:
        eventually(lambda: any("state: failed" in line for line in daemon.log) or daemon.process.poll() is not None)
        yield daemon


def assert_one_error(path: Path, data_dir: Path) -> None:
    """And a daemon that says so, on every way in."""
    with launched(path, data_dir) as daemon:
        status = daemon.status()
        assert status["state"] == "failed"
        assert path.name in status["failure"]
        with daemon.client() as client:
            health = client.get("/health")
            assert (health.status_code, health.json()["status"]) == (503, "failed")
            assert health.json()["error"]["message"] == status["failure"]
            refused = client.post(COMPLETIONS, json={"prompt": "Hi"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "service_unavailable")
            assert status["failure"] in refused.json()["error"]["message"]
            assert int(refused.headers["retry-after"]) > 0
            assert client.get("/").is_success
            assert client.get("/v1/models").json()["data"] == []
        eventually(lambda: daemon.engines == [])
        assert daemon.stop() == 0
    assert sum("state: loading" in line for line in daemon.log) == 1, "it was not tried again"
    (error,) = [line for line in daemon.log if " ERROR " in line]
    assert status["failure"] in error
    assert not any("Traceback" in line for line in daemon.log)


@pytest.mark.parametrize(
    "broken",
    [
        empty,
        not_a_gguf,
        header_only,
        cut_in_the_metadata,
        cut_in_the_tensors,
        nonsense_after_the_magic,
    ],
)
def test_broken_model_file_is_one_error_and_a_daemon_that_says_so(
    gguf_path: Path, tmp_path: Path, broken: Callable[[Path, Path], None]
) -> None:
    path = tmp_path / "broken.gguf"
    broken(path, gguf_path)
    assert_one_error(path, tmp_path / "data")


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize(
    ("spoilt", "num_bytes"),
    [
        ("model.safetensors", 0),
        ("model.safetensors", 4),
        ("model.safetensors", 1000),
        ("model.safetensors", 100 * MIB),
        ("config.json", 0),
        ("config.json", 100),
        ("tokenizer.json", 0),
        ("tokenizer.json", MIB),
    ],
)
def test_broken_model_folder_is_one_error_and_a_daemon_that_says_so(
    torch_path: Path, tmp_path: Path, spoilt: str, num_bytes: int
) -> None:
    """One of its files is cut after so many bytes."""
    path = tmp_path / "broken"
    path.mkdir()
    for whole in torch_path.iterdir():
        if whole.name == spoilt:
            (path / spoilt).write_bytes(head(whole, num_bytes))
        else:
            (path / whole.name).symlink_to(whole)
    assert_one_error(path, tmp_path / "data")


def test_model_may_be_stretched_and_the_owner_is_told(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon("scheduler.kv_cells=33000", "scheduler.max_model_len=33000", "model.kv_type=q4_0")
    (note,) = (note for note in daemon.status()["notes"] if "has no effect" not in note)
    assert "scheduler.max_model_len is 33000" in note
    assert "trained for 32768" in note
    assert sum(note in line and " WARNING " in line for line in daemon.log) == 1


def does_not_compile(path: Path) -> None:
    path.write_text("{% for message in messages %}")


def is_not_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe")


@pytest.mark.parametrize("broken", [does_not_compile, is_not_text, Path.mkdir])
def test_chat_template_that_cannot_be_used_is_one_error(
    model_path: Path, tmp_path: Path, broken: Callable[[Path], None]
) -> None:
    template = tmp_path / "broken.jinja"
    broken(template)
    with launched(model_path, tmp_path / "data", f"model.chat_template={template}") as daemon:
        assert daemon.status()["state"] == "failed"
        with daemon.client() as client:
            assert client.post(COMPLETIONS, json={"prompt": "Hi"}).status_code == 503
        eventually(lambda: daemon.engines == [])
        assert daemon.stop() == 0
    (error,) = [line for line in daemon.log if " ERROR " in line]
    assert "template" in error
    assert sum("state: loading" in line for line in daemon.log) == 1


async def test_requests_that_wait_for_a_template_are_told_when_it_cannot_be_used(
    model_path: Path, tmp_path: Path
) -> None:
    """The template comes through a pipe, after the engine is ready and somebody waits."""
    template = tmp_path / "late.jinja"
    os.mkfifo(template)
    setting = f"model.chat_template={template}"
    with Daemon.launch(model_path, tmp_path / "data", setting, port=free_port()) as daemon:
        await eventually_async(lambda: any("state: resident" in line for line in daemon.log))
        async with daemon.async_client() as client:
            early = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "Hi"}))
            assert (await client.get("/health")).is_success
            await asyncio.to_thread(template.write_text, "{% for message in messages %}")
            assert (await early).status_code == 503
        assert daemon.status()["state"] == "failed"


def test_daemon_that_still_loads_can_be_stopped(model_path: Path, tmp_path: Path) -> None:
    with Daemon.launch(model_path, tmp_path / "data", port=free_port()) as daemon:
        eventually(lambda: any("Application startup complete" in line for line in daemon.log))
        assert daemon.stop() == 0
    assert not any("Traceback" in line for line in daemon.log)
