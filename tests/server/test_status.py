"""The snapshot says what is so, and making it changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from homeai.keys import KeyStore
from homeai.messages import LoadProgress, Progress, Served
from homeai.request import WaitReason
from homeai.server.service import Service
from homeai.server.startup import Startup
from homeai.server.status import MAX_REQUESTS, snapshot
from homeai.server.supervisor import State
from homeai.server.warmup import Pin
from homeai.status import GPUStatus, KVStatus, StartupStatus, Status
from tests.server.fakes import READY, STATS, FakeText, finished, make_add, make_service, output, step


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """While the model loads."""
    with closing(KeyStore(tmp_path / "ledger.db")) as keys:
        yield make_service(keys)


def become_resident(service: Service) -> None:
    service.supervisor.state, service.supervisor.ready = State.RESIDENT, READY
    service.open(FakeText())


def submit(service: Service, *request_ids: str, fairness_class: str = "interactive") -> None:
    service.client.submit([make_add(request_id, fairness_class) for request_id in request_ids], api="/test")


def requests(service: Service) -> dict[str, tuple[str, str | None]]:
    """Status and reason of each."""
    return {request.id: (request.status, request.wait_reason) for request in snapshot(service).requests}


# ---- the model -----------------------------------------------------------------------------------------


def test_load_shows_its_progress_and_no_model_yet(service: Service) -> None:
    service.supervisor.progress = LoadProgress("weights", 0.25)
    status = snapshot(service)
    assert status.state == "loading"
    assert (status.load.stage, status.load.fraction) == ("weights", 0.25)
    assert (status.model.name, status.model.file, status.model.device) == (None, "gemma.gguf", None)
    assert status.memory.model_bytes == 0


def test_resident_model_is_described(service: Service) -> None:
    become_resident(service)
    status = snapshot(service)
    assert status.state == "resident"
    assert status.load is None
    model = status.model
    assert (model.name, model.device, model.max_model_len, model.load_s) == ("gemma", "cpu", 8192, 0.5)
    assert model.template == "chat template"


def test_parts_of_the_last_load_are_told(service: Service) -> None:
    assert snapshot(service).startup is None
    become_resident(service)
    service.supervisor.startup = Startup(1.5, {"imports": 0.5, "weights": 1.0})
    assert snapshot(service).startup == StartupStatus(1.5, {"imports": 0.5, "weights": 1.0}, FakeText.load_s)


def test_memory_is_that_of_both_processes_and_the_machine(service: Service) -> None:
    become_resident(service)
    memory = snapshot(service).memory
    assert (memory.model_bytes, memory.kv_bytes) == (READY.model_bytes, READY.kv_bytes)
    assert (memory.engine_rss_bytes, memory.server_rss_bytes) == (20, 10)
    assert (memory.total_bytes, memory.available_bytes) == (1000, 400)
    assert memory.gpu == GPUStatus("H200", 20, 140, 0.5)


def test_failure_is_told(service: Service) -> None:
    service.supervisor.give_up("not a GGUF")
    status = snapshot(service)
    assert (status.state, status.failure) == ("failed", "not a GGUF")


def test_owner_is_told_what_to_look_at(service: Service) -> None:
    assert snapshot(service).notes == []
    become_resident(service)
    assert snapshot(service).notes == ["a note"]


# ---- requests ------------------------------------------------------------------------------------------


async def test_requests_wait_for_the_model_while_it_loads(service: Service) -> None:
    submit(service, "a")
    assert requests(service) == {"a": ("waiting", WaitReason.NOT_RESIDENT)}


def test_waiting_request_shows_the_engine_s_reason(service: Service) -> None:
    become_resident(service)
    submit(service, "a")
    assert requests(service) == {"a": ("waiting", None)}  # not told yet
    service.client.handle(step(progress=[Progress("a", "waiting", 3, 0, 0, WaitReason.KV_SPACE)]))
    assert requests(service) == {"a": ("waiting", WaitReason.KV_SPACE)}
    service.supervisor.drain()
    assert requests(service) == {"a": ("waiting", WaitReason.KV_SPACE)}


def test_started_request_runs_even_before_the_next_progress(service: Service) -> None:
    become_resident(service)
    submit(service, "a")
    service.client.handle(step(progress=[Progress("a", "waiting", 3, 0, 0, WaitReason.SEQUENCE_SLOT)]))
    service.client.handle(step(output("a", 0), admitted=("a",)))
    (request,) = snapshot(service).requests
    assert (request.status, request.wait_reason) == ("running", None)
    assert request.num_output_tokens == 1


def test_parked_request_says_so_and_why(service: Service) -> None:
    become_resident(service)
    submit(service, "a")
    progress = Progress("a", "preempted", 3, 0, 0, WaitReason.KV_SPACE)
    service.client.handle(step(admitted=("a",), progress=[progress]))
    assert requests(service) == {"a": ("preempted", WaitReason.KV_SPACE)}


def test_progress_shows_how_far_each_is(service: Service) -> None:
    become_resident(service)
    submit(service, "a")
    service.client.handle(step(admitted=("a",), progress=[Progress("a", "running", 3, 2, 0, None)]))
    (request,) = snapshot(service).requests
    assert (request.num_computed_tokens, request.num_prompt_tokens, request.max_tokens) == (2, 3, 8)
    assert (request.source, request.fairness_class) == ("kitchen", "interactive")


def test_ended_request_is_not_shown(service: Service) -> None:
    become_resident(service)
    submit(service, "a")
    service.client.handle(step(finished("a"), admitted=("a",)))
    assert requests(service) == {}
    assert snapshot(service).totals.finished == 1


def test_classes_count_their_own(service: Service) -> None:
    become_resident(service)
    submit(service, "a", "b", fairness_class="voice")
    submit(service, "c", fairness_class="background")
    service.client.handle(step(admitted=("a",)))
    counts = {c.name: (c.running, c.waiting) for c in snapshot(service).classes}
    assert counts == {"voice": (1, 1), "interactive": (0, 0), "coding": (0, 0), "background": (0, 1)}


async def test_number_of_requests_shown_is_bounded(service: Service) -> None:
    submit(service, *(f"r{i}" for i in range(MAX_REQUESTS + 1)))
    assert len(snapshot(service).requests) == MAX_REQUESTS


# ---- the rest ------------------------------------------------------------------------------------------


def test_last_step_is_shown(service: Service) -> None:
    become_resident(service)
    service.client.handle(step())
    status = snapshot(service)
    assert (status.batch.mode, status.batch.num_running, status.kv.used) == ("continuous", 1, STATS.kv_used)
    assert (status.kv.total, status.batch.max_num_seqs) == (16384, 8)


def test_cells_that_give_way_at_once_are_told_apart(service: Service) -> None:
    become_resident(service)
    stats = msgspec.structs.replace(STATS, num_cached_tokens=4, host_bytes=2**20, predicted_s=0.25)
    service.client.handle(msgspec.structs.replace(step(), stats=stats))
    status = snapshot(service)
    assert status.kv == KVStatus(used=STATS.kv_used, total=16384, kept=4, host_bytes=2**20)
    assert status.batch.predicted_s == 0.25


def test_pins_are_told_with_what_became_of_them(service: Service) -> None:
    kept, waiting = (Pin(name, "kitchen", "voice", [1, 2, 3]) for name in ("kept", "waiting"))
    service.supervisor.pin([kept, waiting, Pin("long", "kitchen", "voice", [], "too long")])
    kept.is_kept = True
    status = snapshot(service)
    assert [(pin.name, pin.num_tokens, pin.state) for pin in status.pins] == [
        ("kept", 3, "kept"),
        ("waiting", 3, "waiting"),
        ("long", 0, "refused"),
    ]
    assert status.notes == ["pin 'long' is left out: too long"]


def test_ended_request_tells_where_its_time_went(service: Service) -> None:
    become_resident(service)
    stream = service.client.submit([make_add("a")], api="/test")
    service.client.handle(step(progress=[Progress("a", "waiting", 3, 0, 0, WaitReason.KV_SPACE)]))
    service.client.handle(step(output("a", 0), admitted=("a",)))
    service.client.handle(step(finished("a", num_output_tokens=1, num_cached_tokens=2)))
    assert len(list(stream.read())) == 2
    (request,) = snapshot(service).recent
    assert (request.source, request.status, request.problem) == ("kitchen", 200, None)
    assert (request.wait_reason, request.num_cached_tokens, request.num_output_tokens) == ("kv_space", 2, 1)


def test_pace_counts_first_tokens_gaps_and_steps(service: Service) -> None:
    become_resident(service)
    submit(service, "a")
    service.client.handle(step(output("a", 0), admitted=("a",)))
    service.client.handle(step(output("a", 1)))
    pace = snapshot(service).pace
    assert pace is not None
    assert sum(pace.written) == 2 * STATS.num_decode_tokens
    assert pace.classes["interactive"].ttft_p95_s is not None
    assert pace.classes["interactive"].itl_p95_s is not None


def test_expected_wait_grows_with_the_place_in_the_queue(service: Service) -> None:
    become_resident(service)
    submit(service, "a", "b", "c")
    assert [request.expected_wait_s for request in snapshot(service).requests] == [None] * 3
    service.client.handle(step(admitted=("a",)))
    first, second, third = (request.expected_wait_s for request in snapshot(service).requests)
    assert first is None
    assert second is not None
    assert third == pytest.approx(2 * second)


def test_shares_are_what_the_engine_said_and_what_weights_give(service: Service) -> None:
    become_resident(service)
    submit(service, "a", fairness_class="voice")
    told = msgspec.structs.replace(step(), served=[Served("background", "night", 9.0)])
    service.client.handle(told)
    shares = {share.source: (share.served, share.due) for share in snapshot(service).shares}
    assert shares == {"night": (1.0, pytest.approx(1 / 9, abs=1e-3)), "kitchen": (0.0, pytest.approx(8 / 9, abs=1e-3))}


def test_memory_of_the_context_is_told_by_source(service: Service) -> None:
    become_resident(service)
    service.supervisor.ready = msgspec.structs.replace(READY, kv_bytes=16384)
    submit(service, "a")
    progress = Progress("a", "running", 3, 3, 0, None, num_step_tokens=3, num_kv_cells=10)
    service.client.handle(step(admitted=("a",), progress=[progress]))
    status = snapshot(service)
    assert status.requests[0].num_step_tokens == 3
    assert status.memory_map is not None
    assert status.memory_map.where == "RAM"  # the model is on the CPU


def test_what_the_engine_died_of_is_an_event(service: Service) -> None:
    become_resident(service)
    service.supervisor.num_restarts = 1
    service.client.recover("exit code -6", True)
    assert [(event.kind, event.detail) for event in snapshot(service).events] == [("crash", "exit code -6")]


def test_looking_changes_nothing(service: Service) -> None:
    become_resident(service)
    submit(service, "a")

    def look() -> Status:
        status = msgspec.structs.replace(snapshot(service), uptime_s=0.0, now=0.0, pace=None)
        return msgspec.structs.replace(status, requests=[msgspec.structs.replace(status.requests[0], age_s=0.0)])

    assert look() == look()


def test_snapshot_is_what_clients_decode(service: Service) -> None:
    become_resident(service)
    submit(service, "a")
    status = snapshot(service)
    assert msgspec.json.decode(msgspec.json.encode(status), type=Status) == status
