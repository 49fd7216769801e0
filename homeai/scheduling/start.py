"""Whether the first tokens of a burst are drawn together.

A stream that has begun is owed its next token within its class's inter-token target, so every prompt behind it is
read in smaller pieces with a decode beside each. Where all prompts of a burst can be read before the first one's
TTFT target, nobody begins until the last prompt is read: the batch decodes whole from its first token, and what the
early ones lose of their target they get back in a faster answer.

Nobody waits for a lighter class, nor when somebody streams already, nor a chat for a document: the prompts must be
about as long as one another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from homeai.request import Mode, Request, RequestStatus, WaitReason
from homeai.scheduling.admission import Admission
from homeai.scheduling.batch import Batch
from homeai.scheduling.budget import HEADROOM, Budget
from homeai.scheduling.cache import KVCache
from homeai.scheduling.controls import SchedulerConfig
from homeai.scheduling.tree import common_length

MIN_TOGETHER = 2
MAX_TIMES_LONGER = 3  # the longest prompt of a burst than its shortest


class CommonStart:
    def __init__(
        self, config: SchedulerConfig, batch: Batch, cache: KVCache, budget: Budget, admission: Admission
    ) -> None:
        self._config = config
        self._batch = batch
        self._cache = cache
        self._budget = budget
        self._admission = admission

    def held_classes(self, mode: Mode, now: float) -> frozenset[str]:
        """Whose prompts are read in this step up to their last token only."""
        if mode is not Mode.CONTINUOUS or not self._config.adaptive_budget:
            return frozenset()
        if len(self._batch.requests) < MIN_TOGETHER or any(r.num_output_tokens for r in self._batch.running):
            return frozenset()
        missing = {request: self._num_missing(request) for request in self._beginning()}
        names = {request.fairness_class for request in missing}
        return frozenset(name for name in names if self._is_held(name, missing, now))

    def _beginning(self) -> Iterator[Request]:
        """Who runs without a token yet, and who will join them: they came next and nothing keeps them out."""
        running = self._batch.running
        yield from (r for r in running if r.sampling.max_tokens > 1)
        num_seats = self._config.max_num_seqs - len(running)
        waiting = (r for r in self._batch.requests.values() if r.status is RequestStatus.WAITING)
        for request in islice(waiting, num_seats):
            obstacle = self._admission.obstacle(request, Mode.CONTINUOUS)
            if request.sampling.max_tokens > 1 and obstacle in (None, WaitReason.SHARED_PREFIX):
                yield request

    def _is_held(self, name: str, missing: Mapping[Request, int], now: float) -> bool:
        classes = self._config.classes
        policy = classes[name]
        together = [r for r in missing if classes[r.fairness_class].weight >= policy.weight]
        num_missing = sum(missing[r] for r in together)
        if len(together) < MIN_TOGETHER or not num_missing:
            return False
        own = [r for r in together if r.fairness_class == name]
        lengths = [r.num_prompt_tokens for r in own]
        if max(lengths) > MAX_TIMES_LONGER * min(lengths):
            return False
        if policy.ttft_target_s is None:
            return True
        read_at = now + self._budget.times.predict(num_missing, 0, self._cache.num_used)
        first = min(r.arrival_at for r in own)
        return read_at <= first + HEADROOM * policy.ttft_target_s

    def _num_missing(self, request: Request) -> int:
        """Tokens of its prompt before the last that nobody has computed, nor computes for it."""
        if request.status is RequestStatus.RUNNING:
            return max(0, request.num_uncomputed_tokens - 1)
        prompt = request.prompt_token_ids
        num_known = self._cache.find(self._batch.domain(request), prompt).length
        if (other := self._admission.awaited(request)) is not None:
            num_known = max(num_known, common_length(other.prompt_token_ids, prompt, 0, len(prompt) - 1))
        return len(prompt) - 1 - num_known
