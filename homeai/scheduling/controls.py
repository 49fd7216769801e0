"""The scheduler's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from homeai.policy import ClassPolicy, SourcePolicy
from homeai.scheduling.cache import CacheConfig

NO_TARGET_PATIENCE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The controls; each can be changed alone. Sizes in tokens, times in seconds."""

    mode: str = "auto"  # auto | continuous | single | static | window
    window_s: float = 0.5
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 512
    max_chunk_tokens: int = 256
    chunked_prefill: bool = True
    adaptive_budget: bool = True
    max_model_len: int = 16384
    max_drafts: int = 0
    end_token_ids: frozenset[int] = frozenset()
    cache: CacheConfig
    classes: Mapping[str, ClassPolicy]
    sources: Mapping[str, SourcePolicy] = field(default_factory=dict)
    prompt_token_weight: float = 1.0
    output_token_weight: float = 2.0

    def __post_init__(self) -> None:
        assert self.max_model_len <= self.cache.num_cells, (
            f"a request of {self.max_model_len} tokens would never fit {self.cache.num_cells} cells"
        )
        assert self.max_num_seqs <= self.max_num_batched_tokens, (
            f"{self.max_num_seqs} decodes would not fit a step of {self.max_num_batched_tokens} tokens"
        )
        assert self.max_num_seqs <= self.cache.num_seqs, "every running request needs a sequence"

    @property
    def patience_s(self) -> float:
        """The longest step that lets every class still hold its target for who arrives during it."""
        targets = [policy.ttft_target_s for policy in self.classes.values() if policy.ttft_target_s is not None]
        return min(targets) / 2 if targets else NO_TARGET_PATIENCE_S
