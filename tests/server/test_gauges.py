"""What /metrics says of the daemon as it is now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from homeai.keys import KeyStore
from homeai.messages import Progress
from homeai.request import WaitReason
from homeai.server.gauges import families
from homeai.server.service import Service
from homeai.server.supervisor import State
from tests.server.fakes import READY, STATS, FakeText, make_add, make_service, output, step


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """While the model loads."""
    with closing(KeyStore(tmp_path / "ledger.db")) as keys:
        yield make_service(keys)


def become_resident(service: Service) -> None:
    service.supervisor.state, service.supervisor.ready = State.RESIDENT, READY
    service.open(FakeText())


def value(service: Service, name: str, **labels: str) -> float | None:
    """Of one sample; None where there is none."""
    samples = (sample for family in families(service) for sample in family.samples)
    return next((s.value for s in samples if s.name == f"homeai_{name}" and s.labels == labels), None)


def submit(service: Service, *request_ids: str, fairness_class: str = "voice") -> None:
    service.client.submit([make_add(request_id, fairness_class) for request_id in request_ids], api="/test")


def test_model_that_loads_has_no_cells(service: Service) -> None:
    assert value(service, "model_resident") == 0
    assert value(service, "model_state", state="loading") == 1
    assert value(service, "kv_cache_size_tokens") == value(service, "kv_cache_usage_perc") == 0
    assert value(service, "model_load_seconds") is None


def test_resident_model_and_its_memory_are_told(service: Service) -> None:
    become_resident(service)
    assert value(service, "model_resident") == value(service, "model_state", state="resident") == 1
    assert value(service, "model_state", state="loading") == 0
    assert value(service, "model_info", model="gemma", device="cpu") == 1
    assert (value(service, "model_weights_bytes"), value(service, "kv_cache_bytes")) == (1, 2)
    assert value(service, "kv_cache_size_tokens") == READY.num_kv_cells
    assert value(service, "model_load_seconds") == READY.load_s
    assert value(service, "gpu_memory_used_bytes") == 20
    assert value(service, "resident_memory_bytes", process="server") == 10


def test_kept_cells_are_used_and_not_in_use(service: Service) -> None:
    become_resident(service)
    stats = msgspec.structs.replace(STATS, kv_used=4096, num_cached_tokens=1024)
    service.client.handle(msgspec.structs.replace(step(), stats=stats))
    assert value(service, "kv_cache_used_tokens") == 4096
    assert value(service, "kv_cache_kept_tokens") == 1024
    assert value(service, "kv_cache_usage_perc") == 3072 / READY.num_kv_cells


def test_requests_are_running_waiting_or_parked_each_in_one_place(service: Service) -> None:
    become_resident(service)
    submit(service, "runs", "waits", "parked")
    service.client.handle(
        step(
            output("runs", 0),
            output("parked", 0),
            admitted=("runs", "parked"),
            progress=[
                Progress("runs", "running", 3, 3, 1, None),
                Progress("waits", "waiting", 3, 0, 0, WaitReason.SEQUENCE_SLOT),
                Progress("parked", "preempted", 3, 3, 1, WaitReason.KV_SPACE),
            ],
        )
    )
    for state in ("running", "waiting", "parked"):
        assert value(service, f"num_requests_{state}", **{"class": "voice"}) == 1
        assert value(service, f"num_requests_{state}", **{"class": "coding"}) == 0
    assert value(service, "num_requests_waiting_by_reason", reason="sequence_slot") == 1
    assert value(service, "num_requests_waiting_by_reason", reason="kv_space") == 1
    assert value(service, "num_requests_waiting_by_reason", reason="paused") == 0


def test_limits_and_weights_of_classes_are_the_configured_ones(service: Service) -> None:
    voice = service.config.classes["voice"]
    assert value(service, "class_weight", **{"class": "voice"}) == voice.weight
    assert value(service, "max_num_requests_waiting", **{"class": "voice"}) == voice.max_waiting
    assert value(service, "class_paused", **{"class": "voice"}) == 0
    service.client.pause("voice")
    assert value(service, "class_paused", **{"class": "voice"}) == 1
