"""What the daemon notices of itself: slices of samples and steps, and the figures of `/api/admin/vitals`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from homeai.evaluation.doctor.gather import settings_of
from homeai.keys import KeyStore
from homeai.messages import Progress
from homeai.request import WaitReason
from homeai.server.service import Service
from homeai.server.supervisor import State
from homeai.server.tokenising import NUM_KEPT, Tokenising
from homeai.server.vitals import NUM_SLICES, SLICE_SAMPLES, Recorder, Sample, engine_io, sample_of, vitals
from homeai.vitals import Vitals
from tests.server.fakes import READY, STATS, FakeText, make_add, make_service, step


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with closing(KeyStore(tmp_path / "ledger.db")) as keys:
        yield make_service(keys)


def busy(num_running: int = 1, num_waiting: int = 0, **changes: object) -> Sample:
    reasons = Counter({"sequence_slot": num_waiting}) if num_waiting else Counter()
    return Sample(num_running, num_waiting, num_running + num_waiting, reasons, **changes)  # type: ignore[arg-type]


IDLE = Sample(0, 0, 0, Counter())

# ---- slices --------------------------------------------------------------------------------------------


def test_slice_holds_means_maxima_and_sums() -> None:
    recorder = Recorder(lambda: 1000.0)
    for num_prefill in (100, 0):
        stats = {
            "num_prefill_tokens": num_prefill,
            "step_s": 0.5,
            "host_s": 0.1,
            "kv_used": 50,
            "num_cached_tokens": 20,
        }
        recorder.stepped(msgspec.structs.replace(STATS, **stats))
    recorder.sample(busy(2, 3, lag_s=0.2, gpu_load=0.4))
    recorder.sample(busy(4, 1))
    recorder.sample(IDLE)
    (slice_,) = recorder.slices
    assert (slice_.at, slice_.num_samples, slice_.num_busy_samples) == (1000.0, 3, 2)
    assert (slice_.running, slice_.max_running, slice_.max_waiting) == (2.0, 4, 3)
    assert slice_.reasons == {"sequence_slot": 4.0}
    assert (slice_.num_steps, slice_.num_prefill_tokens, slice_.num_decode_tokens) == (2, 100, 2)
    assert (slice_.step_s, slice_.host_s, slice_.max_lag_s, slice_.gpu_load) == (1.0, 0.2, 0.2, 0.4)
    assert slice_.max_kv_used == 30  # what is only kept is not in use


def test_loop_that_came_late_while_nobody_was_there_held_nobody_up() -> None:
    """While the daemon starts, say."""
    recorder = Recorder(lambda: 1000.0)
    recorder.sample(Sample(0, 0, 0, Counter(), lag_s=0.5))
    recorder.sample(busy(1, lag_s=0.1))
    assert [slice_.max_lag_s for slice_ in recorder.slices] == [0.1]


def test_slices_are_bounded_and_the_oldest_go() -> None:
    times = iter(range(10_000))
    recorder = Recorder(lambda: float(next(times)))
    for _ in range((NUM_SLICES + 5) * SLICE_SAMPLES):
        recorder.sample(IDLE)
    slices = recorder.slices
    assert len(slices) == NUM_SLICES + 1
    assert [slices[0].at, slices[-1].at] == [5.0, NUM_SLICES + 5.0]


def test_step_that_computed_nothing_is_none() -> None:
    recorder = Recorder()
    recorder.stepped(msgspec.structs.replace(STATS, num_decode_tokens=0, num_preemptions=2, out_of_room=True))
    (slice_,) = recorder.slices
    assert (slice_.num_steps, slice_.num_preemptions, slice_.num_out_of_room) == (0, 2, 1)


# ---- samples -------------------------------------------------------------------------------------------


async def test_who_waits_is_told_by_reason_and_who_has_them(service: Service) -> None:
    service.client.submit([make_add("a", "interactive")], api="/test")
    sample = sample_of(service, 0.0)
    assert (sample.num_running, sample.num_waiting, sample.num_inside) == (0, 1, 0)
    assert sample.reasons == {"not_resident": 1}
    assert sample.gpu_load is not None


async def test_running_and_waiting_in_the_engine_are_told_apart(service: Service) -> None:
    service.supervisor.state, service.supervisor.ready = State.RESIDENT, READY
    service.open(FakeText())
    service.client.submit([make_add("a", "interactive"), make_add("b", "interactive")], api="/test")
    service.supervisor._unsent.clear()
    waiting = Progress("b", "waiting", 4, 0, 0, WaitReason.SEQUENCE_SLOT)
    service.client.handle(msgspec.structs.replace(step(admitted=["a"]), progress=[waiting]))
    sample = sample_of(service, 0.0)
    assert (sample.num_running, sample.num_waiting, sample.num_inside) == (1, 1, 2)
    assert sample.reasons == {"sequence_slot": 1}
    assert service.recorder.slices[0].num_steps == 1


def test_nobody_there_opens_no_gpu(service: Service) -> None:
    assert sample_of(service, 0.0).gpu_load is None


# ---- all of it -----------------------------------------------------------------------------------------


def test_settings_come_back_as_they_are_and_hold_no_secrets(service: Service) -> None:
    told = msgspec.json.decode(msgspec.json.encode(vitals(service)), type=Vitals)
    settings = settings_of(told.settings)
    assert settings.scheduler == service.config.scheduler
    assert settings.classes == service.config.classes
    assert settings.data_dir == service.config.data_dir
    assert told.settings.keys() == {"data_dir", "model", "scheduler", "classes", "residency", "ledger", "sources"}


def test_engine_s_reads_are_those_of_its_process() -> None:
    io = engine_io(os.getpid())
    assert io.num_major_faults is not None
    assert engine_io(2**22 + 1) == type(io)(None, None)


async def test_tokenising_is_timed_in_threads_and_at_once() -> None:
    tokenising = Tokenising()
    assert tokenising.here(lambda: 5) == 5
    with ThreadPoolExecutor(1) as threads:
        for _ in range(NUM_KEPT + 1):
            assert await tokenising.in_thread(threads, 3000, lambda: 7) == 7
    assert tokenising.num_texts == NUM_KEPT + 2
    assert len(tokenising.latest) == NUM_KEPT
    assert all(text.num_chars == 3000 and text.waited_s >= 0 <= text.worked_s for text in tokenising.latest)
