"""What keeps a waiting request out of the batch."""

from __future__ import annotations

from homeai.policy import ClassPolicy, SourcePolicy
from homeai.request import Mode, Request, WaitReason
from homeai.scheduling.batch import DECODE_RESERVE, Batch
from homeai.scheduling.cache import KVCache
from homeai.scheduling.controls import SchedulerConfig

MIN_ALIKE_TOKENS = 64  # a shorter common beginning is not worth a step of waiting
MIN_AWAITED_TOKENS = 16  # what is still missing of it


class Admission:
    def __init__(self, config: SchedulerConfig, batch: Batch, cache: KVCache) -> None:
        self._config = config
        self._batch = batch
        self._cache = cache

    def obstacle(self, request: Request, mode: Mode) -> WaitReason | None:
        """Why `request` cannot join the running ones now, or None."""
        running = self._batch.running
        if mode is Mode.SINGLE and running:
            return WaitReason.SINGLE_MODE
        same_class = [r for r in running if r.fairness_class == request.fairness_class]
        if self._is_capped(request, same_class, self._config.classes[request.fairness_class]):
            return WaitReason.CLASS_CAP
        own = self._config.sources.get(request.source)
        if own is not None and self._is_capped(request, [r for r in running if r.source == request.source], own):
            return WaitReason.SOURCE_CAP
        if mode is Mode.CONTINUOUS and self.awaited(request) is not None:
            return WaitReason.SHARED_PREFIX
        if len(running) >= self._config.max_num_seqs:
            return WaitReason.SEQUENCE_SLOT
        if running and (self._batch.ran_out or self.shortage(request) > 0):
            return WaitReason.KV_SPACE
        return None

    def shortage(self, request: Request) -> int:
        """How many cells are missing for it beside what the running ones were promised."""
        if self._cache.config.is_partitioned:
            return 0
        left = self._cache.num_available - self._batch.num_promised_cells - DECODE_RESERVE
        missing = request.num_tokens - left
        if missing <= 0 or missing > request.num_cached_tokens:
            return missing
        tokens = request.token_ids(0, request.num_tokens)
        return missing - self._cache.num_held_of(self._batch.domain(request), tokens)

    def _is_capped(self, request: Request, alike: list[Request], policy: ClassPolicy | SourcePolicy) -> bool:
        if policy.max_running is not None and len(alike) >= policy.max_running:
            return True
        if policy.kv_cap >= 1.0 or not alike:
            return False
        wanted = sum(r.num_tokens for r in alike) + request.num_tokens
        return wanted > policy.kv_cap * self._cache.num_cells

    def awaited(self, request: Request) -> Request | None:
        """Who computes a beginning that both have; afterwards it can be shared.

        Only one of the same class: a heavier one would wait behind a lighter one's turn.
        """
        prompt = request.prompt_token_ids
        for other in self._batch.running:
            if other.fairness_class != request.fairness_class or not other.is_prefilling:
                continue
            end = max(MIN_ALIKE_TOKENS, other.num_computed_tokens + MIN_AWAITED_TOKENS)
            is_alike = end < len(prompt) and other.prompt_token_ids[:end] == prompt[:end]
            if is_alike and self._batch.domain(other) == self._batch.domain(request):
                return other
        return None
