"""Logging to stderr: one event is one line, in every format.

text for people, journal for systemd (priority first, no time: journald adds its own), json for collectors.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Literal

Format = Literal["auto", "text", "journal", "json"]


def setup(level: str, format: Format) -> None:
    """Sends the log of the whole process to stderr; a second call replaces the first."""
    handler = logging.StreamHandler()
    handler.setFormatter(_formatter(format))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _formatter(format: Format) -> logging.Formatter:
    if format == "json":
        return JsonFormatter()
    if format == "journal" or (format == "auto" and _stderr_is_the_journal()):
        return JournalFormatter("%(name)s: %(message)s")
    return LineFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")


def _stderr_is_the_journal() -> bool:
    """$JOURNAL_STREAM names the file by device and inode: programs below a service inherit it with another stderr."""
    stream = os.environ.get("JOURNAL_STREAM")
    if not stream:
        return False
    try:
        stderr = os.fstat(sys.stderr.fileno())
    except OSError:
        return False
    return stream == f"{stderr.st_dev}:{stderr.st_ino}"


class LineFormatter(logging.Formatter):
    """Text in which line breaks, terminal escapes and the like are spelled out."""

    def format(self, record: logging.LogRecord) -> str:
        return _one_line(super().format(record))


class JournalFormatter(LineFormatter):
    """sd-daemon(3): a line begins with its syslog priority."""

    def format(self, record: logging.LogRecord) -> str:
        return f"<{_priority(record.levelno)}>{super().format(record)}"


class JsonFormatter(logging.Formatter):
    """time (UTC), level, logger, message, and the traceback as `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        event = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event)


def _priority(levelno: int) -> int:
    thresholds = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
    return next((priority for level, priority in thresholds if levelno >= level), 7)


def _one_line(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
