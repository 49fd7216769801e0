"""The order of the waiting line, and that picking from it stays cheap."""

from __future__ import annotations

import random

from homeai.request import Request
from homeai.scheduling.fairness import FairShare
from homeai.scheduling.queues import MAX_STALE_ENTRIES, FairQueue
from tests.scheduling.factories import WEIGHTS, create_requests


def create_queue(*groups: list[Request]) -> tuple[FairQueue, FairShare]:
    share = FairShare(WEIGHTS)
    queue = FairQueue(share)
    for group in groups:
        for request in group:
            queue.push(request)
    return queue, share


def take(queue: FairQueue) -> str:
    request = queue.peek()
    assert request is not None
    queue.remove(request)
    return request.request_id


def test_empty_queue_has_no_head() -> None:
    queue, _ = create_queue()
    assert queue.peek() is None
    assert len(queue) == 0


def test_source_is_first_in_first_out() -> None:
    queue, _ = create_queue(create_requests(3))
    assert [take(queue) for _ in range(3)] == ["default-0", "default-1", "default-2"]


def test_looking_changes_nothing() -> None:
    queue, _ = create_queue(create_requests(3))
    assert queue.peek() is queue.peek()
    assert len(queue) == 3


def test_parked_request_goes_to_the_front_of_its_source() -> None:
    queue, _ = create_queue(create_requests(2))
    (parked,) = create_requests(1, arrival_at=5.0)
    parked.request_id = "parked"
    queue.push(parked, front=True)
    assert take(queue) == "parked"


def test_counter_that_grows_while_waiting_moves_its_source_back() -> None:
    queue, share = create_queue(create_requests(1, source="a"), create_requests(1, source="b", arrival_at=1.0))
    assert queue.peek().request_id == "a-0"  # type: ignore[union-attr]
    share.charge("interactive", "a", 1.0)
    assert queue.peek().request_id == "b-0"  # type: ignore[union-attr]
    share.charge("interactive", "b", 2.0)
    assert queue.peek().request_id == "a-0"  # type: ignore[union-attr]


def test_least_served_class_comes_first() -> None:
    queue, share = create_queue(
        create_requests(1, source="v", fairness_class="voice"), create_requests(1, source="d", fairness_class="coding")
    )
    share.charge("voice", "v", 9.0)
    share.charge("coding", "d", 2.0)  # 9/8 > 2/2
    assert take(queue) == "d-0"


def test_request_can_leave_from_the_middle() -> None:
    requests = create_requests(3)
    queue, _ = create_queue(requests)
    queue.remove(requests[1])
    assert [take(queue) for _ in range(2)] == ["default-0", "default-2"]


def test_source_that_left_and_came_back_has_one_place() -> None:
    (request,) = create_requests(1)
    queue, _ = create_queue([request])
    queue.remove(request)
    queue.push(request)
    assert take(queue) == "default-0"
    assert queue.peek() is None


def test_coming_and_going_behind_a_head_leaves_nothing_behind() -> None:
    queue, share = create_queue(create_requests(1, source="head"))
    share.charge("interactive", "restless", 100.0)
    for request in create_requests(5000, source="restless"):
        queue.push(request)
        queue.remove(request)
    (of_class,) = queue._classes.values()
    assert len(of_class._heap) <= MAX_STALE_ENTRIES + 3


def test_order_is_that_of_a_plain_search() -> None:
    rng = random.Random(5)
    share = FairShare(WEIGHTS)
    queue, line = FairQueue(share), []
    sources = [(f"{c}-{i}", c) for c in WEIGHTS for i in range(5)]

    def expected() -> Request:
        """The definition: least class, then least source, then the source that waits longest."""
        in_class = min((r.fairness_class for r in line), key=share.class_key)
        heads: dict[str, Request] = {}
        for request in line:
            if request.fairness_class == in_class:
                heads.setdefault(request.source, request)
        return min(heads.values(), key=lambda r: (share.of_class(in_class)[r.source], r.arrival_at, r.source))

    for number in range(3000):
        if rng.random() < 0.55:
            source, fairness_class = rng.choice(sources)
            (request,) = create_requests(1, source=source, fairness_class=fairness_class, arrival_at=float(number))
            if parked := rng.random() < 0.2:
                line.insert(0, request)
            else:
                line.append(request)
            queue.push(request, front=parked)
        elif line:
            request = rng.choice(line) if rng.random() < 0.2 else expected()
            line.remove(request)
            queue.remove(request)
        share.charge(*reversed(rng.choice(sources)), cost=rng.choice([0.0, 1.0, 10.0]))
        assert len(queue) == len(line)
        if line:
            assert queue.peek() is expected()
