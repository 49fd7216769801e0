"""What a fairness class and a source are promised, and held to. Read by the scheduler, set in the config."""

from __future__ import annotations

import msgspec


class ClassPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Targets are promises that the scheduler plans for; max_running and kv_cap always bind, share_cap only hurry.

    weight: long-run share of the model's time beside other backlogged classes.
    ttft_target_s: arrival to first token; a request about to miss it goes first. None: no hurry.
    itl_target_s: between two tokens of a stream; sizes the steps it takes part in. None: any step will do.
    max_running: requests in the batch at once.
    share_cap: part of the service of the last seconds, above which its hurry no longer counts.
    kv_cap: part of the KV cells that its running requests may hold together.
    queue_timeout_s: how long a request may wait before it ran for the first time.
    """

    weight: float = 1.0
    ttft_target_s: float | None = None
    itl_target_s: float | None = None
    max_running: int | None = None
    share_cap: float = 1.0
    kv_cap: float = 1.0
    queue_timeout_s: float = float("inf")


class SourcePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """max_running, kv_cap: as for a class. private: its prompts are never shared with other sources."""

    max_running: int | None = None
    kv_cap: float = 1.0
    private: bool = False
