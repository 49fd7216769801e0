"""A running daemon put into trouble, and what `homeai doctor` says of it; a healthy one, of which it says nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from homeai import cli, config
from homeai.evaluation.doctor.checks import examine
from homeai.evaluation.doctor.finding import Finding
from homeai.evaluation.doctor.gather import Wish, gather
from homeai.keys import KeyStore
from tests.blackbox.model_copies import copy_of, weights_of
from tests.blackbox.stories import story
from tests.daemon import Daemon, eventually, free_port
from tests.streaming import CHAT, COMPLETIONS, document

FAKE_GPU = Path(__file__).parent.parent / "fake_gpu"
ONE_THREAD = "model.num_threads=1"
PATIENT = tuple(f"classes.{name}.ttft_target_s=600" for name in ("voice", "interactive", "coding"))
NEIGHBOURS = {"busy-cpu", "machine-memory", "disk"}  # whatever else runs on the machine of the tests

Found = Mapping[str, Finding]


@dataclass
class House:
    """A daemon, and ways to ask it."""

    daemon: Daemon
    key: str | None = None
    weights: Path | None = None  # where they are its own

    def http(self, source: str = "owner", timeout: float = 120.0) -> httpx.Client:
        headers = {"X-HomeAI-Source": source} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        return httpx.Client(base_url=self.daemon.url, headers=headers, timeout=timeout)

    def get(self, path: str) -> Any:
        with self.http() as http:
            return http.get(path).json()

    def post(self, path: str, source: str = "owner", timeout: float = 120.0, **body: object) -> httpx.Response:
        with self.http(source, timeout) as http:
            return http.post(path, json=body)

    def chat(self, source: str, *messages: tuple[str, str], max_tokens: int = 2) -> str:
        said = [{"role": role, "content": content} for role, content in messages]
        answer = self.post(CHAT, source, messages=said, max_tokens=max_tokens)
        answer.raise_for_status()
        return str(answer.json()["choices"][0]["message"]["content"])

    def complete(self, source: str, prompt: str | list[int], max_tokens: int = 2, **fields: object) -> httpx.Response:
        return self.post(COMPLETIONS, source, prompt=prompt, max_tokens=max_tokens, ignore_eos=True, **fields)

    def is_asked_by(self, source: str) -> bool:
        return any(request["source"] == source for request in self.get("/api/status")["requests"])

    def becomes(self, state: str, by: str) -> None:
        self.post(f"/api/admin/{by}").raise_for_status()
        eventually(lambda: self.get("/api/status")["state"] == state)

    def sum_of(self, field: str) -> float:
        """Over all slices of the vitals."""
        return sum(each[field] for each in self.get("/api/admin/vitals")["slices"])

    def examined(self) -> Found:
        facts = gather(Wish(self.daemon.url, self.key, None, config.Config))
        assert facts.silence is None
        return {finding.check: finding for finding in examine(facts) if finding.check not in NEIGHBOURS}


def doctor(*args: str) -> tuple[int, Any]:
    """`homeai doctor --json`: exit code and report."""
    done = CliRunner().invoke(cli.app, ["doctor", "--json", *args])
    return done.exit_code, json.loads(done.stdout)


def checks_of(report: Any) -> set[str]:
    return {finding["check"] for finding in report["findings"]} - NEIGHBOURS


# ---- a healthy one, and what clients do to it ------------------------------------------------------------


NIGHT = "sources=[{name: night, class: background}]"


@pytest.fixture(scope="module")
def house(start_daemon: Callable[..., Daemon]) -> House:
    return House(start_daemon(ONE_THREAD, *PATIENT, "classes.background.when_yielded=wait", NIGHT))


def mixed_load(house: House) -> None:
    """Two people talk, a speaker asks, a script sends documents: side by side, and no faster than they are served."""

    def talk(who: str, seed: int) -> None:
        messages = [("system", f"You are kind. {story(40, seed)}")]
        for question in ("Who are you?", "And then?"):
            messages.append(("user", question))
            messages.append(("assistant", house.chat(who, *messages, max_tokens=5)))

    def speak() -> None:
        for room in ("kitchen", "hall", "garden"):
            house.chat("speaker", ("system", f"You speak. {story(30, 9)}"), ("user", f"Light on in the {room}."))

    with ThreadPoolExecutor(5) as pool:
        tasks = [pool.submit(talk, "ana", 1), pool.submit(talk, "ben", 2), pool.submit(speak)]
        tasks += [pool.submit(house.complete, "script", story(60, 100 + i), 4) for i in range(2)]
        for task in tasks:
            task.result()


@pytest.fixture(scope="module")
def healthy(house: House) -> Found:
    mixed_load(house)
    return house.examined()


@pytest.fixture(scope="module")
def troubled(house: House, healthy: Found) -> Found:
    """All that clients do wrong, and an engine that dies, then one look."""
    stable = story(60, 51)
    for minute in range(10, 14):
        house.chat("clock", ("system", f"You speak.\nThe time is 12:{minute}.\n{stable}"), ("user", "Is it late?"))
    history = [("user" if i % 2 == 0 else "assistant", story(30, 200 + i)) for i in range(10)]
    for turn in range(4):
        house.chat("trimmer", ("system", "Be brief."), *history[2 * turn : 2 * turn + 4])
    for number in range(4):
        house.complete("forgetful", f"{story(140, 77)} {number}", cache_prompt=False)
    for number in range(21):
        house.complete("script", f"Sort this: {number}", 1)
    for number in range(5):
        with pytest.raises(httpx.TimeoutException):
            house.complete("hasty", f"Tell me {number}", 4000, timeout=0.4)
    for _ in range(5):
        assert house.complete("greedy", document(17_000)).status_code == 400
    with ThreadPoolExecutor(6) as pool:
        text = "a b c d " * 50_000
        for answer in [pool.submit(house.post, "/tokenize", "indexer", content=text) for _ in range(6)]:
            answer.result().raise_for_status()
    (engine,) = house.daemon.engines
    engine.kill()
    house.complete("ana", "Are you back?").raise_for_status()
    house.becomes("yielded", by="yield")
    with ThreadPoolExecutor(16) as pool:
        waiting = [pool.submit(house.complete, "night", "Later", 1) for _ in range(16)]
        eventually(lambda: waited_s(house, "not_resident") > 12)
        house.becomes("resident", by="load")
        assert {task.result().status_code for task in waiting} == {200}
    return house.examined()


def waited_s(house: House, reason: str) -> float:
    """Request-seconds."""
    return sum(each["reasons"].get(reason, 0.0) for each in house.get("/api/admin/vitals")["slices"])


def test_healthy_daemon_under_a_mixed_load_has_no_finding(healthy: Found) -> None:
    assert list(healthy.values()) == []


@pytest.mark.parametrize(
    ("check", "words"),
    [
        ("changing-line", ["clock", "line 2 of message 1 (system)", "“The time is #:#.”"]),
        ("shortened-history", ["trimmer", "4 prompts"]),
        ("resent", ["forgetful", "cache_prompt was false in 4 of 4"]),
        ("serial-client", ["script", "requests of script"]),
        ("client-gives-up", ["hasty", "5 of 5"]),
        ("refusals", ["context_length_exceeded", "greedy 5"]),
        ("tokenising", ["long texts", "at once"]),
        ("engine-died", ["1 time in"]),
        ("waiting-for-the-model", ["pinned"]),
    ],
)
def test_what_clients_and_the_engine_did_is_found(troubled: Found, check: str, words: list[str]) -> None:
    assert check in troubled
    finding = troubled[check]
    text = "\n".join([finding.title, *finding.evidence, finding.cause, *finding.advice])
    assert [word for word in words if word not in text] == []


def test_nothing_else_is_found_than_what_was_planted(troubled: Found) -> None:
    assert troubled.keys() <= {
        *("changing-line", "shortened-history", "resent", "serial-client", "client-gives-up", "refusals"),
        *("tokenising", "engine-died", "waiting-for-the-model"),
    }


# ---- settings that do not fit what is asked ---------------------------------------------------------------


@pytest.fixture(scope="module")
def narrow(start_daemon: Callable[..., Daemon]) -> Found:
    """Two seats, a queue of one for the editor, prompts in one go, and targets that nobody can meet."""
    settings = (
        *("scheduler.chunked_prefill=false", "scheduler.adaptive_budget=false", "scheduler.max_num_seqs=2"),
        *("classes.interactive.ttft_target_s=0.001", "classes.coding.max_waiting=1"),
        "sources=[{name: editor, class: coding}]",
    )
    house = House(start_daemon(ONE_THREAD, *settings))
    for number in range(6):
        house.complete("ana", f"A short question {number}", 1)
    with ThreadPoolExecutor(50) as pool:
        for number in range(4):
            reading = pool.submit(house.complete, "reader", [2, 1000 + number, *document(520)])
            eventually(lambda: house.is_asked_by("reader"))
            beside = pool.submit(house.complete, "ben", f"Another short one {number}", 1)
            reading.result().raise_for_status()
            beside.result().raise_for_status()
        while waited_s(house, "sequence_slot") < 25 or house.get("/api/status")["totals"]["rejected"] < 6:
            tasks = [pool.submit(house.complete, f"guest {i}", f"Hello {i}", 4) for i in range(40)]
            tasks += [pool.submit(house.complete, "editor", f"def f{i}", 4) for i in range(9)]
            for task in tasks:
                task.result()
    return house.examined()


@pytest.mark.parametrize(
    ("check", "settings"),
    [
        ("admission", {"scheduler.max_num_seqs"}),
        ("refusals", set()),
        ("long-prompts", set()),
        ("behind-long-prompts", {"scheduler.chunked_prefill", "scheduler.max_chunk_tokens"}),
    ],
)
def test_settings_that_do_not_fit_are_found_with_the_lines_to_change(
    narrow: Found, check: str, settings: set[str]
) -> None:
    assert check in narrow
    assert settings <= narrow[check].settings.keys()


# ---- memory, storage, a device that idles -----------------------------------------------------------------


@pytest.fixture(scope="module")
def small(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Few cells, and a model file of its own, which the system may forget."""
    directory = tmp_path_factory.mktemp("small")
    own = copy_of(model_path, directory, "own")
    cells = "scheduler.kv_cells=256", "scheduler.prefix_cache_tokens=0", "scheduler.host_cache_mb=0"
    with closing(KeyStore(directory / "ledger.db")) as keys:
        key = keys.add("me", trusted=True, admin=True)
    with Daemon.start(own, directory, ONE_THREAD, *PATIENT, *cells, "server.auth=keys") as daemon:
        yield House(daemon, key, weights_of(own))


def test_engine_that_is_held_up_while_requests_are_there_is_an_idle_device(small: House) -> None:
    (engine,) = small.daemon.engines
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(small.complete, "ana", "Once upon a time", 60)
        eventually(lambda: small.is_asked_by("ana"))
        engine.send_signal(signal.SIGSTOP)
        try:
            eventually(lambda: small.sum_of("num_busy_samples") >= 6)
            found = small.examined()
        finally:
            engine.send_signal(signal.SIGCONT)
        answer.result().raise_for_status()
    assert "stopped" in found["device-idle"].cause


def test_cells_that_are_too_few_and_a_model_read_from_the_disk_are_found(small: House) -> None:
    with ThreadPoolExecutor(12) as pool:
        for task in [pool.submit(small.complete, f"writer {i}", story(15, i), 60) for i in range(12)]:
            task.result().raise_for_status()
    assert small.get("/api/status")["totals"]["preemptions"] >= 1
    small.becomes("sleeping", by="unload")
    assert small.weights is not None
    with small.weights.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    small.becomes("resident", by="load")
    found = small.examined()
    assert "scheduler.kv_cells" in found["kv-pressure"].settings
    if small.get("/api/admin/vitals")["engine_io"]["read_bytes"]:  # else the system keeps the file whatever it is told
        assert "page cache" in found["page-cache"].cause


def test_who_may_not_see_everything_is_told_what_was_not_seen(small: House) -> None:
    url = small.daemon.url
    code, report = doctor("--url", url)
    assert (code, report["verdict"], report["findings"]) == (2, "not_examined", [])
    with closing(KeyStore(small.daemon.data_dir / "ledger.db")) as keys:
        guest = keys.add("guest")
    gaps = doctor("--url", url, "--key", guest, "--data-dir", str(small.daemon.data_dir))[1]["not_looked_at"]
    assert any("an admin key is needed" in gap for gap in gaps)
    assert doctor("--url", url, "--key", small.key or "")[1]["not_looked_at"] == []


# ---- no daemon, and other machines -----------------------------------------------------------------------


def test_port_of_another_program_is_told_with_its_name(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        facts = gather(Wish(f"http://127.0.0.1:{port}", None, None, config.Config, timeout_s=0.2))
    (finding,) = (each for each in examine(facts) if each.check == "port-taken")
    assert f"({os.getpid()}," in finding.evidence[1]


def test_exit_codes_and_causes_of_a_daemon_that_is_not_there(tmp_path: Path) -> None:
    url, settings = f"http://127.0.0.1:{free_port()}", tmp_path / "config.yaml"
    settings.write_text("server: {port: 70000}\n")
    code, report = doctor("--url", url, "--config", str(settings))
    assert (code, checks_of(report)) == (1, {"settings"})
    settings.write_text(f"model: {{path: {tmp_path}/gone.gguf}}\n")
    code, report = doctor("--url", url, "--config", str(settings), "--data-dir", str(tmp_path))
    assert (code, checks_of(report)) == (1, {"missing-files"})
    code, report = doctor("--url", "http://house.invalid:8700")
    assert (code, report["verdict"]) == (2, "not_examined")


CARD = {
    "on_bus": ["NVIDIA 0x2b85 at 0000:01:00.0"],
    "module_loaded": True,
    "driver_error": "Driver/library version mismatch",
    "health": {"name": "RTX 5090", "throttled": ["hw_thermal_slowdown"], "temperature": 95, "clock_mhz": 800},
}


def test_card_s_troubles_are_found_on_the_running_daemon(house: House, troubled: Found, tmp_path: Path) -> None:
    machine = tmp_path / "gpu.json"
    machine.write_text(json.dumps({"doctor": CARD, "has_cuda": False}))
    whole = [sys.executable, "-m", "homeai", "doctor", "--json", "--url", house.daemon.url]
    fakes = {"PYTHONPATH": str(FAKE_GPU), "TEST_GPU": str(machine)}
    done = subprocess.run(whole, capture_output=True, text=True, env=os.environ | fakes, timeout=60)
    assert done.returncode == 1
    assert checks_of(json.loads(done.stdout)) - set(troubled) == {"driver", "no-cuda", "thermal"}
