"""The shape of /api/admin/vitals: what the daemon noticed lately, for `homeai doctor`. Built in `server/vitals.py`."""

from __future__ import annotations

from typing import Final

import msgspec

BARE: Final = "prompt"  # the role of a prompt that is no chat


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """Some seconds of the daemon's life. `at` is Unix time, of its beginning; samples are taken once a second.

    reasons: request-seconds of waiting, by `WaitReason`. num_busy_samples: a request was in a resident engine.
    gpu_load: mean utilisation in the samples with requests, None without a GPU or without requests.
    """

    at: float
    num_samples: int = 0
    num_busy_samples: int = 0
    running: float = 0.0  # means over the samples
    waiting: float = 0.0
    max_running: int = 0
    max_waiting: int = 0
    max_kv_used: int = 0  # cells of requests that run; what is only kept is not counted
    reasons: dict[str, float] = {}
    step_s: float = 0.0
    host_s: float = 0.0
    num_steps: int = 0
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    num_preemptions: int = 0
    num_out_of_room: int = 0
    num_evictions: int = 0
    max_lag_s: float = 0.0  # by which the event loop came late while a request was in the engine
    gpu_load: float | None = None


class Tokenised(msgspec.Struct, frozen=True):
    """One text: how long it waited for a thread, and how long it took."""

    num_chars: int
    waited_s: float
    worked_s: float


class ChangingLine(msgspec.Struct, frozen=True, kw_only=True):
    """Where prompts of a source began to differ from the one before, although what follows stayed the same.

    `line` counts from 1 in message `message` (0: the first). `mask` is the sentence that changes, `#` for words with
    a digit, `@` for names of days and months; None for private sources, and for what differs otherwise each time.
    `num_lost_chars`: on average, behind the change, that were the same again.
    """

    message: int
    role: str
    line: int
    mask: str | None
    num_changes: int
    num_lost_chars: int
    num_moves: int = 0  # of the changes: the line had been there before, further down


class BeginningStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How the prompts of a source follow one another. `num_shortened`: earlier messages were left out of them;
    `num_cache_refused`: the client asked that nothing of it be taken from the cache (cache_prompt: false)."""

    source: str
    num_prompts: int
    num_shortened: int = 0
    num_lost_chars_shortened: int = 0  # on average
    num_cache_refused: int = 0
    lines: list[ChangingLine] = []


class EngineIO(msgspec.Struct, frozen=True):
    """Of the engine's process, from its start on. None where the system does not tell."""

    read_bytes: int | None  # from storage, not from the page cache
    num_major_faults: int | None


class Vitals(msgspec.Struct, frozen=True, kw_only=True):
    """`settings`: sections of the configuration in force that say how requests are served, and where files are."""

    pid: int
    engine_pid: int | None
    num_restarts: int
    model_path: str
    settings: dict[str, object]
    slices: list[Slice]  # oldest first
    tokenised: list[Tokenised]  # the latest that took a thread
    num_tokenised: int = 0  # since the model was loaded, in threads or not
    tokenise_s: float = 0.0
    beginnings: list[BeginningStatus] = []
    engine_io: EngineIO | None = None
