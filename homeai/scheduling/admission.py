"""What keeps a waiting request out of the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from homeai.policy import ClassPolicy, SourcePolicy
from homeai.request import Mode, Request, WaitReason
from homeai.scheduling.cache import KVCache
from homeai.scheduling.tree import common_length

DECODE_RESERVE = 16  # cells kept free per running request at admission, so that it can go on for a while
MIN_ALIKE_TOKENS = 64  # two prompts with a shorter common beginning are not looked at further
MIN_AWAITED_TOKENS = 16  # what is still missing of a common beginning, to wait a step for it


class Limits(Protocol):
    """The part of the scheduler's configuration that matters here."""

    @property
    def max_num_seqs(self) -> int: ...
    @property
    def classes(self) -> Mapping[str, ClassPolicy]: ...
    @property
    def sources(self) -> Mapping[str, SourcePolicy]: ...


class Admission:
    """`ran_out`: the runner had less room than we count; nobody joins until someone has left."""

    def __init__(self, limits: Limits, cache: KVCache, running: Sequence[Request]) -> None:
        self._limits = limits
        self._cache = cache
        self._running = running
        self.ran_out = False

    def domain(self, request: Request) -> str:
        """Whose sequences it may begin with: everybody's, its source's, or only its own."""
        if not request.cache_prompt:
            return f"request {request.request_id}"
        policy = self._limits.sources.get(request.source)
        return f"source {request.source}" if policy is not None and policy.private else ""

    def obstacle(self, request: Request, mode: Mode) -> WaitReason | None:
        """Why `request` cannot join the running ones now, or None."""
        running = self._running
        if mode is Mode.SINGLE and running:
            return WaitReason.SINGLE_MODE
        same_class = [r for r in running if r.fairness_class == request.fairness_class]
        policy = self._limits.classes.get(request.fairness_class)
        if policy is not None and self._is_capped(request, same_class, policy):
            return WaitReason.CLASS_CAP
        own = self._limits.sources.get(request.source)
        if own is not None and self._is_capped(request, [r for r in running if r.source == request.source], own):
            return WaitReason.SOURCE_CAP
        if mode is Mode.CONTINUOUS and self._is_being_computed(request, same_class):
            return WaitReason.SHARED_PREFIX
        if len(running) >= self._limits.max_num_seqs:
            return WaitReason.SEQUENCE_SLOT
        if running and (self.ran_out or not self._has_room(request)):
            return WaitReason.KV_SPACE
        return None

    def _is_capped(self, request: Request, alike: list[Request], policy: ClassPolicy | SourcePolicy) -> bool:
        if policy.max_running is not None and len(alike) >= policy.max_running:
            return True
        if policy.kv_cap >= 1.0 or not alike:
            return False
        wanted = sum(r.num_tokens for r in alike) + request.num_tokens
        return wanted > policy.kv_cap * self._cache.num_cells

    def _is_being_computed(self, request: Request, same_class: list[Request]) -> bool:
        """Another one computes a beginning that both have; afterwards it can be shared.

        Only for one of the same class, which is not served later than `request` would be.
        """
        prompt = request.prompt_token_ids
        for other in same_class:
            computed = other.num_computed_tokens
            if not other.is_prefilling or self.domain(other) != self.domain(request):
                continue
            if other.prompt_token_ids[:MIN_ALIKE_TOKENS] != prompt[:MIN_ALIKE_TOKENS]:
                continue
            common = common_length(other.prompt_token_ids, prompt, 0, len(prompt) - 1)
            if common - computed >= MIN_AWAITED_TOKENS:
                return True
        return False

    def _has_room(self, request: Request) -> bool:
        if self._cache.config.is_partitioned:
            return True
        promised = sum(r.num_uncomputed_tokens + DECODE_RESERVE for r in self._running)
        left = self._cache.num_available - promised - DECODE_RESERVE
        if request.num_tokens <= left:
            return True
        tokens = request.token_ids(0, request.num_tokens)
        return request.num_tokens - self._cache.num_held_of(self.domain(request), tokens) <= left
