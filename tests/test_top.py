"""`homeai top`: a frame says what the page says, in the room there is; q ends it and leaves the terminal as it was."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from rich.console import Console

from homeai import top_frame
from homeai.status import (
    ClassPaceStatus,
    EventStatus,
    InTheWay,
    MemoryMap,
    MemoryPart,
    PaceStatus,
    RecentRequest,
    RequestProgress,
    ShareStatus,
    SpanStatus,
    Status,
)
from tests.daemon import Daemon, free_port
from tests.test_console import STATUS

PACE = ClassPaceStatus([None, 0.2, 0.4], [0.05, None, 0.1], 0.2, 0.4, 0.05, 0.1)
SLOW = RecentRequest(
    id="r",
    source="tablet",
    fairness_class="interactive",
    api="/v1/chat/completions",
    ended_at=1000.0,
    status=200,
    finish_reason="stop",
    problem=None,
    num_prompt_tokens=300,
    num_cached_tokens=0,
    num_output_tokens=10,
    num_recomputed_tokens=0,
    num_preemptions=0,
    queued_s=6.0,
    prefill_s=1.0,
    parked_s=0.0,
    decode_s=2.0,
    wait_reason="sequence_slot",
    in_the_way=[InTheWay("night", "background", 5.5, 0.0), InTheWay("desk", "coding", 0.0, 2.0)],
)
FULL = msgspec.structs.replace(
    STATUS,
    now=1100.0,
    history=[SpanStatus("loading", 900.0), SpanStatus("resident", 1000.0)],
    events=[EventStatus(1000.0, "resident", "loaded in 2.0 s"), EventStatus(950.0, "mode", "single", 3)],
    recent=[SLOW],
    pace=PaceStatus(10.0, 5.0, [0, 30, 0], [0, 15, 30], {"voice": PACE}),
    shares=[ShareStatus("kitchen", "voice", 0.25, 0.5)],
    memory_map=MemoryMap("GPU", 2**34, [MemoryPart("weights", 2**33), MemoryPart("free", 2**33)]),
)


def shown(status: Status, width: int = 110, height: int | None = None, problem: str | None = None) -> str:
    console = Console(width=width, height=height or 50, force_terminal=False)
    with console.capture() as capture:
        console.print(top_frame.frame(status, width, height, problem))
    return capture.get()


def test_frame_says_what_the_page_says() -> None:
    text = shown(FULL)
    for words in ("resident", "kitchen", "tablet", "25%/50%", "loaded in 2.0 s", "(3 changes)", "8.0 of 16.0 GiB free"):
        assert words in text


def test_slow_request_says_what_it_did_longest_and_who_was_in_the_way() -> None:
    assert top_frame.why(SLOW) == "waited 6.0 s (sequence slot), behind night"
    wrote = msgspec.structs.replace(SLOW, queued_s=0.0, decode_s=9.0)
    assert top_frame.why(wrote) == "wrote 9.0 s, beside desk"
    assert top_frame.why(msgspec.structs.replace(SLOW, problem="queue_timeout")) == "queue timeout"


def test_parts_of_a_life_are_drawn_by_their_length() -> None:
    assert top_frame.phases(SLOW, 9.0) == "░" * 16 + "▒" * 3 + "█" * 5
    assert top_frame.phases(SLOW, 900.0) == "░▒█"


@pytest.mark.parametrize("height", [24, 40])
@pytest.mark.parametrize("width", [60, 80, 200])
def test_frame_fits_whatever_there_is_to_show(width: int, height: int) -> None:
    request = RequestProgress("a", "kitchen", "voice", "waiting", "kv_space", 300, 128, 0, 64, 2.0)
    crowded = msgspec.structs.replace(
        FULL,
        requests=[msgspec.structs.replace(request, id=str(i)) for i in range(100)],
        recent=[msgspec.structs.replace(SLOW, id=str(i)) for i in range(40)],
        events=FULL.events * 20,
    )
    lines = shown(crowded, width, height).rstrip("\n").split("\n")
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert "more" in "\n".join(lines)


def test_nothing_is_running_is_said_and_a_lost_daemon_too() -> None:
    idle = msgspec.structs.replace(STATUS, requests=[])
    assert "nobody is asking" in shown(idle)
    assert "no daemon answers" in shown(idle, problem="no daemon answers")


@contextmanager
def on_a_terminal(*args: str) -> Iterator[tuple[subprocess.Popen[bytes], int, list[object]]]:
    """`homeai top` with a keyboard of its own, which is ours to type on; and how that was before."""
    keyboard, terminal = pty.openpty()
    before = termios.tcgetattr(terminal)
    process = subprocess.Popen(
        [sys.executable, "-m", "homeai", "top", *args],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"},
    )
    try:
        yield process, keyboard, before
        assert termios.tcgetattr(terminal) == before
    finally:
        process.kill()
        process.wait()
        os.close(keyboard)
        os.close(terminal)


def read_until(keyboard: int, words: bytes) -> None:
    text = b""
    while words not in text:
        text += os.read(keyboard, 65536)


def test_q_ends_it_and_the_terminal_is_as_it_was(daemon: Daemon) -> None:
    with on_a_terminal("--url", daemon.url) as (process, keyboard, _):
        read_until(keyboard, b"q quits")
        os.write(keyboard, b"xq")
        read_until(keyboard, b"\x1b[?1049l")
        assert process.wait(60) == 0


def test_one_frame_is_printed_where_nobody_could_quit(daemon: Daemon) -> None:
    command = [sys.executable, "-m", "homeai", "top", "--url", daemon.url]
    for args in (command, [*command, "--once"]):
        outcome = subprocess.run(args, capture_output=True, text=True, timeout=60)
        assert outcome.returncode == 0
        assert "REQUESTS" in outcome.stdout
        assert "\x1b" not in outcome.stdout


def test_no_daemon_is_one_line_and_an_exit_code() -> None:
    command = [sys.executable, "-m", "homeai", "top", "--once", "--url", f"http://127.0.0.1:{free_port()}"]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert outcome.returncode == 1
    assert outcome.stderr.startswith("homeai: no daemon answers")
    assert outcome.stderr.count("\n") == 1
