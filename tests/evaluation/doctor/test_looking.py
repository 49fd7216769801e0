"""The edges: HTTP, ledger, permissions, units, cards, ports. Each looks, and changes nothing."""

from __future__ import annotations

import os
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from homeai.evaluation.doctor import machine, records, systemd
from homeai.evaluation.doctor.asking import ask
from homeai.evaluation.doctor.facts import Quiet
from homeai.evaluation.doctor.graphics import cards, reasons_of
from homeai.evaluation.doctor.permissions import User, problem_of
from homeai.evaluation.doctor.words import quantiles, seconds, span, sparkline
from homeai.ledger import Ledger, LedgerRow
from tests.daemon import free_port

NOBODY = User("nobody", 65534, {65534})

# ---- HTTP ----------------------------------------------------------------------------------------------


@contextmanager
def answering(status: int, body: bytes = b"{}") -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (401, b"{}", Quiet.LOCKED),
        (404, b"<html>", Quiet.FOREIGN),
        (200, b"<html>", Quiet.FOREIGN),
        (200, b'{"version":"0"}', Quiet.FOREIGN),
    ],
)
def test_what_answers_and_is_no_homeai_or_wants_a_key_is_told(status: int, body: bytes, why: Quiet) -> None:
    with answering(status, body) as url:
        said = ask(url, None)
    assert said.silence is not None
    assert said.silence.why is why


def test_who_does_not_answer_is_told_apart() -> None:
    def why(url: str) -> Quiet | None:
        silence = ask(url, None, 0.2).silence
        return silence.why if silence else None

    assert why(f"http://127.0.0.1:{free_port()}") is Quiet.REFUSED
    assert why("http://house.invalid:8700") is Quiet.UNREACHABLE
    with socket.create_server(("127.0.0.1", 0)) as sock:
        assert why(f"http://127.0.0.1:{sock.getsockname()[1]}") is Quiet.TIMEOUT


# ---- ledger --------------------------------------------------------------------------------------------


def test_rows_and_events_since_an_instant_come_oldest_first_and_the_file_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = Ledger(path, 0)
    ledger.start()
    for arrival in (30.0, 10.0, 20.0):
        row = LedgerRow(
            request_id="r", arrival=arrival, api="/", source="ana", fairness_class="voice", model="m", status=200
        )
        ledger.record(row)
    ledger.event("state", "resident")
    ledger.close()
    before = path.stat().st_mtime_ns
    rows, events = records.read(path, 15.0)
    assert [row.arrival for row in rows] == [20.0, 30.0]
    assert [(event.kind, event.detail) for event in events] == [("state", "resident")]
    assert path.stat().st_mtime_ns == before


def test_ledger_that_is_not_there_is_empty_and_one_that_is_none_is_an_error(tmp_path: Path) -> None:
    assert records.read(tmp_path / "none.db", 0.0) == ([], [])
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "text.db").write_text("not a database, but long enough to look like one " * 40)
    with pytest.raises(sqlite3.Error):
        records.read(tmp_path / "text.db", 0.0)


# ---- files ---------------------------------------------------------------------------------------------


def test_file_of_somebody_else_is_told_by_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    file = tmp_path / "model.gguf"
    file.touch(0o644)
    for folder in tmp_path.parents:
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    assert problem_of(file, NOBODY) is None
    assert "may not be written" in str(problem_of(file, NOBODY, writes=True))
    file.chmod(0o600)
    assert "may not be read" in str(problem_of(file, NOBODY))
    tmp_path.chmod(0o700)
    assert "may not be entered" in str(problem_of(file, NOBODY))
    assert problem_of(file, replace(NOBODY, uid=os.geteuid()), writes=True) is None
    assert problem_of(tmp_path / "gone", User.ourselves()) == "it does not exist"


def test_users_are_found_by_name_and_by_process() -> None:
    assert User.of_process(os.getpid()) is not None
    assert User.named("nobody that exists") is None
    assert User.of_process(2**22 + 1) is None


# ---- systemd, cards, ports -----------------------------------------------------------------------------

SHOWN = """Id=homeai.service
LoadState=loaded
ActiveState=failed
SubState=failed
Result=exit-code
ExecMainStatus=3
NRestarts=2
StatusText=failed: model.gguf (it is no GGUF=file)
User=homeai

Id=homeai.socket
LoadState=loaded
ActiveState=active
SubState=listening
Result=success
"""


def test_systemd_s_blocks_are_read() -> None:
    service, sock = (systemd.unit_of(block, "system") for block in systemd.parse(SHOWN))
    assert (service.name, service.active_state) == ("homeai.service", "failed")
    assert (service.exit_code, service.num_restarts) == (3, 2)
    assert service.status_text == "failed: model.gguf (it is no GGUF=file)"
    assert (sock.sub_state, sock.exit_code) == ("listening", None)


def test_cards_on_the_bus_are_nvidia_s_displays_only(tmp_path: Path) -> None:
    devices = {"0000:01:00.0": ("0x10de", "0x030000"), "0000:01:00.1": ("0x10de", "0x040300"), "0": ("0x1002", "0x03")}
    for name, (vendor, kind) in devices.items():
        (tmp_path / name).mkdir()
        for field, text in (("vendor", vendor), ("class", kind), ("device", "0x2b85")):
            (tmp_path / name / field).write_text(f"{text}\n")
    assert cards(tmp_path) == ["NVIDIA 0x2b85 at 0000:01:00.0"]
    assert cards(tmp_path / "none") == []


def test_bits_of_the_driver_become_reasons() -> None:
    assert reasons_of(0x01 | 0x20 | 0x04) == ["sw_power_cap", "sw_thermal_slowdown"]
    assert reasons_of(0) == []


def test_who_listens_is_found_with_its_user() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        found = machine.listener(sock.getsockname()[1])
        assert found is not None
        assert (found.pid, found.is_homeai) == (os.getpid(), False)
    assert machine.listener(free_port()) is None


@pytest.mark.parametrize(
    ("host", "is_here"), [("127.0.0.1", True), ("::1", True), ("192.0.2.1", False), ("house.invalid", False)]
)
def test_this_machine_is_known_by_its_addresses(host: str, is_here: bool) -> None:
    assert machine.is_here(host) is is_here


def test_build_is_looked_at_without_loading_it() -> None:
    build = machine.build()
    assert build is not None
    assert build.version.startswith("0.")


def test_busy_programs_are_others_than_ours() -> None:
    assert os.getpid() not in {busy.pid for busy in machine.busy_others({os.getpid()}, 0.01)}


# ---- words ---------------------------------------------------------------------------------------------


def test_figures_are_written_as_people_read_them() -> None:
    assert [seconds(0.05), seconds(2.34), seconds(1234.0)] == ["50 ms", "2.3 s", "1,234 s"]
    assert [span(0.01), span(0.5), span(24.0)] == ["36 s", "30 min", "24 h"]
    assert quantiles([1.0, 2.0, 3.0]) == "p50 2.0 s · p95 3.0 s · max 3.0 s"
    assert quantiles([]) == "none"
    assert sparkline([0.0, 1.0, 2.0]) == "▁▅█"
    assert sparkline([0.0, 0.0]) == ""
