from __future__ import annotations

import io
import json
import logging
import os
import sys

import pytest

from homeai import logs

logger = logging.getLogger("homeai.test")


@pytest.fixture
def log_to(monkeypatch):
    """Sets logging up and gives what stderr received; the root logger is put back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []  # pytest's own must not be closed

    def set_up(format: str, level: str = "info") -> io.StringIO:
        stream = io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        logs.setup(level, format)
        return stream

    yield set_up
    root.handlers = handlers
    root.setLevel(level)


@pytest.mark.parametrize("format", ["text", "journal", "json"])
def test_one_event_is_one_line(log_to, format):
    stream = log_to(format)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logger.exception("a\nb\r\x1b[31m\u2028c %s", "\ud83d")
    assert len(stream.getvalue().splitlines()) == 1
    assert "ValueError" in stream.getvalue()


def test_text_says_when_how_bad_who_and_what(log_to):
    stream = log_to("text")
    logger.warning("the door is open: %s", "küche")
    time, level, name, message = stream.getvalue().strip().split(" ", 1)[1].split(" ", 3)
    assert (level, name, message) == ("WARNING", "homeai.test:", "the door is open: küche")
    assert time


@pytest.mark.parametrize(
    ("level", "priority"),
    [("debug", 7), ("info", 6), ("warning", 4), ("error", 3), ("critical", 2)],
)
def test_journal_lines_begin_with_their_priority(log_to, level, priority):
    stream = log_to("journal", "debug")
    getattr(logger, level)("hello")
    assert stream.getvalue() == f"<{priority}>homeai.test: hello\n"


def test_json_has_the_traceback_in_one_field(log_to):
    stream = log_to("json")
    try:
        raise ValueError("x")
    except ValueError:
        logger.exception("failed: %d", 3)
    event = json.loads(stream.getvalue())
    assert event.keys() == {"time", "level", "logger", "message", "exception"}
    assert (event["level"], event["logger"], event["message"]) == ("error", "homeai.test", "failed: 3")
    assert event["exception"].endswith("ValueError: x")
    assert event["time"].endswith("+00:00")


def test_level_cuts_off_what_is_below(log_to):
    stream = log_to("text", "warning")
    logger.info("quiet")
    assert stream.getvalue() == ""


def test_second_setup_replaces_the_first(log_to):
    log_to("text")
    stream = log_to("journal")
    logger.info("once")
    assert stream.getvalue() == "<6>homeai.test: once\n"


@pytest.mark.parametrize("is_the_journal", [True, False])
def test_auto_is_journal_only_where_stderr_is_the_journal(log_to, monkeypatch, tmp_path, is_the_journal):
    with (tmp_path / "journal").open("w+") as file:
        stat = os.fstat(file.fileno())
        inode = stat.st_ino if is_the_journal else stat.st_ino + 1
        monkeypatch.setenv("JOURNAL_STREAM", f"{stat.st_dev}:{inode}")
        log_to("text")
        monkeypatch.setattr(sys, "stderr", file)
        logs.setup("info", "auto")
        logger.info("hello")
        file.seek(0)
        assert file.read().startswith("<6>") is is_the_journal


def test_auto_is_text_outside_of_systemd(log_to, monkeypatch):
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    stream = log_to("auto")
    logger.info("hello")
    assert stream.getvalue().endswith("INFO    homeai.test: hello\n")
