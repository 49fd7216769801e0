"""What is kept of files and batches: one value per row of the database. Instants are Unix time."""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

import msgspec

INPUT: Final = "batch"  # OpenAI's words for what a file is for
OUTPUT: Final = "batch_output"


class Status(enum.StrEnum):
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"  # its file cannot be used: no line was tried
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class LineState(enum.IntEnum):
    WAITING = 0
    COMPLETED = 1
    FAILED = 2


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """Uploaded: its bytes are on disk. Of a batch's output or errors: they are its lines in `line_state`."""

    file_id: str
    owner: str
    filename: str
    purpose: str
    num_bytes: int
    created_at: float
    expires_at: float | None = None  # None: never
    batch_id: str | None = None
    line_state: int | None = None


class LineError(msgspec.Struct, frozen=True):
    """Why a line of the input file, counted from 1, cannot be used; None: the file as a whole."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Usage(msgspec.Struct, frozen=True):
    """Tokens of completed lines."""

    num_input_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_reasoning_tokens: int = 0


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """`num_completed` lines are in the output file, `num_failed` in the error file; the others wait or are in flight.

    `key` is the name of the API key that it was created with; its lines ask as `source`, in no heavier class than
    `fairness_class`.
    """

    batch_id: str
    owner: str
    key: str | None
    source: str
    fairness_class: str
    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: dict[str, str] | None
    status: Status
    errors: list[LineError]
    created_at: float
    expires_at: float
    ended_at: float | None
    outputs_kept_s: float | None  # from its end; None: for ever
    num_lines: int
    num_completed: int
    num_failed: int
    num_input_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_reasoning_tokens: int
    output_file_id: str | None
    error_file_id: str | None


class Place(NamedTuple):
    """Where a line lies in its input file, in bytes."""

    custom_id: str
    start: int
    size: int


def line_id(batch_id: str, number: int) -> str:
    """What a line is called in the output, and as X-Request-Id in the ledger."""
    return f"{batch_id.replace('batch_', 'batch_req_', 1)}_{number}"
