"""When a request has waited long enough."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from homeai.policy import ClassPolicy
from homeai.request import Request, RequestStatus

MAX_STALE_ENTRIES = 64


class Deadlines:
    """Of the requests that never ran. A heap whose entries outlive their requests for a while."""

    def __init__(self, classes: Mapping[str, ClassPolicy], requests: Mapping[str, Request]) -> None:
        self._classes = classes
        self._requests = requests
        self._heap: list[tuple[float, str]] = []

    def add(self, request: Request) -> None:
        heapq.heappush(self._heap, (self._of(request), request.request_id))
        if len(self._heap) > 2 * len(self._requests) + MAX_STALE_ENTRIES:
            self._heap = sorted((self._of(r), r.request_id) for r in self._requests.values())

    def passed(self, now: float) -> Iterator[Request]:
        """Who has waited longer than its class allows; each is told once."""
        while self._heap and self._heap[0][0] <= now:
            request = self._requests.get(heapq.heappop(self._heap)[1])
            if request is None or request.status is not RequestStatus.WAITING or request.num_output_tokens:
                continue
            if self._of(request) <= now:  # else the entry was of an earlier request of this name
                yield request

    def _of(self, request: Request) -> float:
        return request.arrival_at + self._classes[request.fairness_class].queue_timeout_s
