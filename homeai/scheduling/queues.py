"""Requests that wait, in the order in which they may enter the batch.

FIFO inside a source; between sources by their virtual counter, between classes likewise. A parked request
waits at the front of its source. Picking the next one is O(log sources), also with 10,000 waiting.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterator

from homeai.request import Request
from homeai.scheduling.fairness import FairShare, VirtualCounter
from homeai.scheduling.skips import Skips

MAX_STALE_ENTRIES = 64

Entry = tuple[float, float, str]  # (counter, arrival of the source's head, source)


class _ClassQueue:
    """The waiting requests of one class, its sources in a heap.

    A counter that grew leaves its entry too low, where it surfaces and is mended; an entry that is not the
    source's latest is discarded.
    """

    def __init__(self, counters: VirtualCounter) -> None:
        self._counters = counters
        self._latest: dict[str, Entry] = {}
        self._heap: list[Entry] = []
        self.by_source: dict[str, deque[Request]] = {}

    def place(self, source: str) -> None:
        """Put `source` into the order, by its counter and its head as they are now."""
        entry = (self._counters[source], self.by_source[source][0].arrival_at, source)
        if self._latest.get(source) != entry:
            self._latest[source] = entry
            heapq.heappush(self._heap, entry)
            if len(self._heap) > 2 * len(self._latest) + MAX_STALE_ENTRIES:
                self._heap = sorted(self._latest.values())

    def forget(self, source: str) -> None:
        del self.by_source[source], self._latest[source]

    def head(self, skipped: Collection[str] = ()) -> Request | None:
        """The least served source's first request; `skipped` sources are passed over."""
        aside = []
        found = None
        while found is None and self._heap:
            entry = self._heap[0]
            counter, _, source = entry
            if self._latest.get(source) != entry:
                heapq.heappop(self._heap)
            elif counter != self._counters[source]:
                heapq.heappop(self._heap)
                self.place(source)
            elif source in skipped:
                aside.append(heapq.heappop(self._heap))
            else:
                found = self.by_source[source][0]
        for entry in aside:
            heapq.heappush(self._heap, entry)
        return found


class FairQueue:
    def __init__(self, share: FairShare) -> None:
        self._share = share
        self._classes: dict[str, _ClassQueue] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, request: Request, *, front: bool = False) -> None:
        fairness_class, source = request.fairness_class, request.source
        self._share.enter(fairness_class, source)
        queue = self._classes.get(fairness_class)
        if queue is None:
            queue = self._classes[fairness_class] = _ClassQueue(self._share.of_class(fairness_class))
        requests = queue.by_source.setdefault(source, deque())
        if front:
            requests.appendleft(request)
        else:
            requests.append(request)
        queue.place(source)
        self._size += 1

    def peek(self) -> Request | None:
        """The request that is next in line, or None."""
        if not self._size:
            return None
        return self._classes[min(self._classes, key=self._share.class_key)].head()

    def heads(self, skips: Skips) -> Iterator[Request]:
        """Who is next in line of each class, passing over whom `skips` names."""
        for fairness_class, queue in self._classes.items():
            if not skips.has_class(fairness_class):
                head = queue.head(skips.sources_of(fairness_class))
                if head is not None:
                    yield head

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands."""
        fairness_class, source = request.fairness_class, request.source
        queue = self._classes[fairness_class]
        requests = queue.by_source[source]
        requests.remove(request)  # almost always the head
        if requests:
            queue.place(source)
        else:
            queue.forget(source)
        if not queue.by_source:
            del self._classes[fairness_class]
        self._share.leave(fairness_class, source)
        self._size -= 1
