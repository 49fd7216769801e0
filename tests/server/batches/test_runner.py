"""Lines in flight: a few at once, retried when they could not be served, none lost and none done twice (I5)."""

from __future__ import annotations

import asyncio
import io
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from homeai.server.batches import turns
from homeai.server.batches.archive import Archive
from homeai.server.batches.asking import Answer
from homeai.server.batches.lines import Line
from homeai.server.batches.records import Batch, Status
from homeai.server.batches.runner import Runner
from homeai.server.batches.store import Store
from homeai.server.sources import Identity, OnBehalf
from tests.server.batches.factories import make_batch, make_file, make_lines, make_places
from tests.server.fakes import until

FINE = Answer(200, b'{"usage": {"prompt_tokens": 2, "completion_tokens": 1}}', "id")
BUSY = Answer(429, b"{}", "id")


class House:
    """A runner above a real archive; the app is what a test makes of it."""

    def __init__(self, folder: Path, **options: int) -> None:
        self.archive = Archive(folder)
        self.is_open = True
        self.asked: Counter[str] = Counter()
        self.in_flight: list[str] = []
        self.most_in_flight = 0
        self.answers: dict[str, list[Answer]] = {}  # of a line, by its name, before it is fine
        self.gate = asyncio.Event()
        self.gate.set()
        self.runner = Runner(
            self.archive,
            max_running=options.get("max_running", 2),
            retention_s=None,
            on_behalf=lambda batch: OnBehalf(Identity(batch.source, "background"), batch.key),
            may_run=lambda on_behalf: self.is_open,
        )
        self._task: asyncio.Task[None] | None = None

    async def ask(self, name: str, line: Line, on_behalf: OnBehalf) -> Answer:
        self.asked[name] += 1
        self.in_flight.append(name)
        self.most_in_flight = max(self.most_in_flight, len(self.in_flight))
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
            planned = self.answers.get(name)
            return planned.pop(0) if planned else FINE
        finally:
            self.in_flight.remove(name)

    def start(self) -> None:
        self._task = asyncio.create_task(self.runner.run(self.ask))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def submit(self, batch_id: str = "batch_1", num_lines: int = 5, **fields: object) -> Batch:
        batch = make_batch(batch_id, num_lines, **fields)
        path = self.archive.contents.path(batch.input_file_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\n".join(make_lines(num_lines)))
        await self.archive.do(Store.add_batch, batch, make_places(num_lines))
        self.runner.add(batch)
        return batch

    async def now(self, batch_id: str = "batch_1") -> Batch:
        batch = await self.archive.do(Store.batch, batch_id)
        assert batch is not None
        return batch

    async def done(self, batch_id: str = "batch_1") -> Batch:
        await until(lambda: batch_id not in {batch.batch_id for batch in self.runner.batches})
        return await self.now(batch_id)


@pytest.fixture
async def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    monkeypatch.setattr(turns, "FIRST_RETRY_S", 0.0)
    monkeypatch.setattr("homeai.server.batches.runner.LOOK_S", 0.01)
    await Archive(tmp_path).do(Store.add_file, make_file())
    house = House(tmp_path)
    yield house
    await house.stop()
    await house.archive.close()


async def test_all_lines_are_asked_once_and_a_few_at_a_time(house: House) -> None:
    house.gate.clear()
    house.start()
    await house.submit(num_lines=20)
    await until(lambda: len(house.in_flight) == 2)
    house.gate.set()
    batch = await house.done()
    assert (batch.status, batch.num_completed, batch.num_input_tokens) == (Status.COMPLETED, 20, 40)
    assert house.asked == Counter(f"batch_req_1_{number}" for number in range(1, 21))
    assert house.most_in_flight == 2


async def test_line_that_could_not_be_served_is_asked_again(house: House) -> None:
    house.answers = {"batch_req_1_2": [BUSY, Answer(503, b"{}", "id"), BUSY]}
    house.start()
    await house.submit()
    batch = await house.done()
    assert (batch.num_completed, batch.num_failed) == (5, 0)
    assert house.asked["batch_req_1_2"] == 4


@pytest.mark.parametrize("status", [400, 401, 404, 413, 500, 501])
async def test_line_that_is_to_blame_fails(house: House, status: int) -> None:
    house.answers = {"batch_req_1_2": [Answer(status, b'{"error": 1}', "batch_req_1_2")]}
    house.start()
    await house.submit()
    batch = await house.done()
    assert (batch.num_completed, batch.num_failed) == (4, 1)
    file = await house.archive.do(Store.file, batch.error_file_id or "")
    assert file is not None
    part = await house.archive.do(Store.answers, file, 0)
    assert part is not None
    line = json.loads(part[0])
    assert line["response"] == {"status_code": status, "request_id": "batch_req_1_2", "body": {"error": 1}}


async def test_stop_leaves_what_is_in_flight_for_the_next_run(house: House, tmp_path: Path) -> None:
    house.gate.clear()
    house.start()
    await house.submit()
    await until(lambda: len(house.in_flight) == 2)
    await house.stop()
    assert house.in_flight == []
    assert (await house.now()).num_completed == 0
    later = House(tmp_path)
    later.start()
    await until(lambda: sum(later.asked.values()) == 5)
    batch = await later.done()
    assert (batch.status, batch.num_completed) == (Status.COMPLETED, 5)
    await later.stop()
    await later.archive.close()


async def test_nothing_starts_while_lines_may_not_run(house: House) -> None:
    house.is_open = False
    house.start()
    await house.submit(expires_at=0.0)
    batch = await house.done()
    assert (batch.status, house.asked) == (Status.EXPIRED, Counter())
    await house.submit("batch_2")
    house.is_open = True
    assert (await house.done("batch_2")).num_completed == 5


async def test_dropped_batch_gives_up_what_is_in_flight(house: House) -> None:
    house.gate.clear()
    house.start()
    await house.submit()
    await house.submit("batch_2", source="bob")
    await until(lambda: len(house.in_flight) == 2)
    assert {house.runner.num_in_flight(name) for name in ("batch_1", "batch_2")} == {1}
    await house.archive.do(Store.end, "batch_1", Status.CANCELLED, "code", "why", 1.0)
    await house.runner.drop("batch_1")
    assert all(name.startswith("batch_req_2") for name in house.in_flight)
    house.gate.set()
    assert (await house.done("batch_2")).num_completed == 5
    assert (await house.now()).num_completed == 0


async def test_short_batch_of_one_does_not_wait_for_the_end_of_a_long_one_of_another(house: House) -> None:
    house.start()
    await house.submit(num_lines=40)
    await house.submit("batch_2", num_lines=2, source="bob")
    await house.done("batch_2")
    assert (await house.now()).num_completed < 40


async def test_busy_batch_does_not_keep_others_from_running(house: House) -> None:
    house.answers = {f"batch_req_1_{number}": [Answer(429, b"{}", "id", retry_after_s=1e9)] for number in (1, 2)}
    house.start()
    await house.submit(num_lines=2)
    await house.submit("batch_2", num_lines=9)
    assert (await house.done("batch_2")).num_completed == 9
    assert [batch.batch_id for batch in house.runner.batches] == ["batch_1"]


async def test_missing_input_fails_its_lines(house: House) -> None:
    await house.submit()
    house.archive.contents.remove("file-in")
    house.start()
    batch = await house.done()
    assert (batch.status, batch.num_failed) == (Status.COMPLETED, 5)


async def test_database_that_cannot_be_written_costs_no_answer(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is run again."""
    write, num_failures = Store._write, 3

    def full(self: Store, batch: Batch) -> None:
        nonlocal num_failures
        num_failures -= 1
        if num_failures >= 0:
            raise OSError(28, "no space left on device")
        write(self, batch)

    monkeypatch.setattr(Store, "_write", full)
    monkeypatch.setattr("homeai.server.batches.archive.RETRY_S", 0.0)
    house.start()
    await house.submit()
    batch = await house.done()
    assert (batch.num_completed, batch.num_failed) == (5, 0)
    assert house.asked.total() == 8


async def test_expired_upload_leaves_the_disk(house: House) -> None:
    file = make_file("file-old", expires_at=1.0)
    await house.archive.do(Store.add_file, file)
    house.archive.contents.write("file-old", io.BytesIO(b"x"))
    house.start()
    await until(lambda: not house.archive.contents.path("file-old").exists())
    assert await house.archive.do(Store.file, "file-old") is None
