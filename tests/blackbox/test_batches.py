"""Files and batches through the `openai` package: shapes, who sees what, and 200 answers through power cuts (I5)."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from openai.types import Batch

from tests.blackbox.asking import error_of
from tests.daemon import Daemon, eventually, free_port
from tests.streaming import exactly

NUM_POWER_CUTS = int(os.environ.get("NUM_POWER_CUTS", "3"))  # scripts/torture-batches wants more
NUM_LINES = 200
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
SETTINGS = "model.num_threads=1"


@pytest.fixture
def client(daemon: Daemon) -> Iterator[openai.OpenAI]:
    with sdk(daemon) as client:
        yield client


def sdk(daemon: Daemon, key: str = "unused", source: str = "batcher") -> openai.OpenAI:
    headers = {"X-HomeAI-Source": source}
    return openai.OpenAI(base_url=f"{daemon.url}/v1", api_key=key, default_headers=headers, max_retries=0)


def line(custom_id: str, url: str = COMPLETIONS, **body: object) -> dict[str, object]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def upload(client: openai.OpenAI, lines: list[dict[str, object]] | bytes) -> str:
    content = lines if isinstance(lines, bytes) else "".join(json.dumps(one) + "\n" for one in lines).encode()
    return client.files.create(file=("requests.jsonl", content), purpose="batch").id


def submit(client: openai.OpenAI, lines: list[dict[str, object]] | bytes, endpoint: Any = COMPLETIONS) -> Batch:
    return client.batches.create(
        input_file_id=upload(client, lines), endpoint=endpoint, completion_window="24h", metadata={"job": "night"}
    )


def ended(client: openai.OpenAI, batch_id: str) -> Batch:
    def look() -> Batch | None:
        batch = client.batches.retrieve(batch_id)
        return batch if batch.status not in ("validating", "in_progress", "finalizing", "cancelling") else None

    return eventually(look)


def content(client: openai.OpenAI, file_id: str | None) -> list[Any]:
    assert file_id is not None
    return [json.loads(text) for text in client.files.content(file_id).text.splitlines()]


def counts(batch: Batch) -> tuple[int, int, int]:
    assert batch.request_counts is not None
    return batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed


# ---- files ---------------------------------------------------------------------------------------------


def test_file_is_kept_as_it_was_sent_until_it_is_deleted(client: openai.OpenAI) -> None:
    sent = json.dumps(line("a", prompt="ä")).encode()
    file = client.files.create(file=("night.jsonl", sent), purpose="batch")
    assert (file.object, file.bytes, file.filename, file.purpose) == ("file", len(sent), "night.jsonl", "batch")
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).content == sent
    assert file in client.files.list(purpose="batch").data
    assert client.files.list(purpose="batch_output", limit=1).data != [file]
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.content(file.id)


def test_list_goes_on_from_page_to_page(client: openai.OpenAI) -> None:
    ids = [upload(client, b"{}") for _ in range(5)]
    assert [file.id for file in client.files.list(limit=2)][:5] == ids[::-1]
    assert [file.id for file in client.files.list(limit=2, order="asc")][-5:] == ids
    assert [file.id for file in client.files.list(after=ids[1], limit=2, order="asc").data] == ids[2:4]
    for file_id in ids:
        client.files.delete(file_id)


def test_file_tells_when_it_goes(client: openai.OpenAI) -> None:
    file = client.files.create(
        file=("a.jsonl", b"{}"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 7200}
    )
    assert file.expires_at is not None
    assert abs(file.expires_at - file.created_at - 7200) <= 1


def test_file_for_something_else_or_without_a_file_is_refused(daemon: Daemon) -> None:
    def post(**parts: Any) -> Any:
        return error_of(httpx.post(f"{daemon.url}/v1/files", **parts))

    file = {"file": ("a.jsonl", b"{}")}
    assert post(files=file, data={"purpose": "fine-tune"})["param"] == "purpose"
    assert post(files=file)["param"] == "purpose"
    assert post(files={"other": ("a", b"")}, data={"purpose": "batch"})["param"] == "file"
    assert post(data={"file": "text", "purpose": "batch"})["param"] == "file"
    assert post(json={"purpose": "batch"})["param"] == "file"
    assert "boundary" in post(content=b"x", headers={"content-type": "multipart/form-data"})["message"].lower()
    seconds = {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "5"}
    assert post(files=file, data=seconds)["param"] == "expires_after.seconds"


def test_queries_that_cannot_be_read_are_refused(daemon: Daemon) -> None:
    for path, param in [
        *(("files?limit=0", "limit"), ("files?limit=many", "limit"), ("files?order=up", "order")),
        *(("batches?limit=101", "limit"), ("batches?after=batch_x", "after")),
    ]:
        response = httpx.get(f"{daemon.url}/v1/{path}")
        assert error_of(response, response.status_code)["param"] == param
        assert response.status_code in (400, 404)


def test_files_beyond_the_limits_are_refused(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon(
        *(SETTINGS, "batches.max_file_bytes=20000", "batches.max_stored_bytes=30000", "server.max_body_bytes=1000"),
    )
    with sdk(daemon) as client:
        first = upload(client, b"x" * 20_000)  # larger than any other body may be
        with pytest.raises(openai.APIStatusError, match="20001 bytes > 20000") as too_large:
            upload(client, b"x" * 20_001)
        with pytest.raises(openai.APIStatusError, match="request body is too large"):
            upload(client, b"x" * 200_000)
        with pytest.raises(openai.APIStatusError, match="20000 bytes are stored and it has 15000") as full:
            upload(client, b"x" * 15_000)
        assert (too_large.value.status_code, full.value.status_code) == (413, 413)
        client.files.delete(first)
        upload(client, b"x" * 15_000)


# ---- batches -------------------------------------------------------------------------------------------


def test_batch_is_answered_in_openais_shape(client: openai.OpenAI) -> None:
    hello = [{"role": "user", "content": "Hello"}]
    made = submit(client, [line(f"r{i}", CHAT, messages=hello, max_tokens=2, n=2) for i in range(3)], CHAT)
    assert (made.object, made.endpoint, made.completion_window) == ("batch", CHAT, "24h")
    assert made.expires_at == made.created_at + 86_400
    batch = ended(client, made.id)
    assert (batch.status, counts(batch), batch.error_file_id) == ("completed", (3, 3, 0), None)
    assert (batch.metadata, batch.errors) == ({"job": "night"}, None)
    assert batch.completed_at is not None
    answers = content(client, batch.output_file_id)
    assert [answer["custom_id"] for answer in answers] == ["r0", "r1", "r2"]
    assert len({answer["id"] for answer in answers}) == 3
    for answer in answers:
        assert (answer["error"], answer["response"]["status_code"]) == (None, 200)
        assert answer["response"]["body"]["object"] == "chat.completion"
        assert len(answer["response"]["body"]["choices"]) == 2
    bodies = [answer["response"]["body"] for answer in answers]
    assert batch.usage is not None
    assert batch.usage.total_tokens == sum(body["usage"]["total_tokens"] for body in bodies)
    output = client.files.retrieve(batch.output_file_id or "")
    assert output.purpose == "batch_output"
    assert output.bytes == len(client.files.content(output.id).content)
    assert made.id in [batch.id for batch in client.batches.list(limit=1)]


@pytest.mark.parametrize(
    ("endpoint", "body", "kind"),
    [
        (COMPLETIONS, {"prompt": "a", "max_tokens": 1}, "text_completion"),
        ("/v1/responses", {"input": "a", "max_output_tokens": 2}, "response"),
        ("/v1/embeddings", {"input": "a"}, "list"),
    ],
)
def test_each_endpoint_answers_as_it_does_over_http(
    client: openai.OpenAI, endpoint: str, body: dict[str, object], kind: str
) -> None:
    batch = ended(client, submit(client, [line("a", endpoint, **body)], endpoint).id)
    (answer,) = content(client, batch.output_file_id)
    assert answer["response"]["body"]["object"] == kind
    assert batch.usage is not None
    assert batch.usage.input_tokens > 0


def test_lines_that_are_refused_are_in_the_error_file(client: openai.OpenAI) -> None:
    lines = [
        line("fine", **exactly(1)),
        line("hot", prompt="a", temperature=9),
        line("streams", **exactly(1), stream=True),
        line("foreign", **exactly(1), model="gpt-9"),
        line("noted", **exactly(1), num_ctx=9),
    ]
    batch = ended(client, submit(client, lines).id)
    assert (batch.status, counts(batch)) == ("completed", (5, 2, 3))
    failed = {answer["custom_id"]: answer["response"] for answer in content(client, batch.error_file_id)}
    assert {name: response["status_code"] for name, response in failed.items()} == {
        "hot": 400,
        "streams": 400,
        "foreign": 404,
    }
    assert {name: response["body"]["error"]["param"] for name, response in failed.items()} == {
        "hot": "temperature",
        "streams": "stream",
        "foreign": "model",
    }
    fine, noted = content(client, batch.output_file_id)
    assert "notes" not in fine["response"]
    assert "num_ctx" in noted["response"]["notes"]


def test_file_with_bad_lines_fails_the_batch_before_anything_runs(client: openai.OpenAI) -> None:
    lines = [line("a", prompt="a"), line("a", prompt="a"), line("b", CHAT, messages=[]), {"custom_id": "c"}]
    raw = "\n".join(map(json.dumps, lines)).encode() + b"\nnot json\n"
    batch = submit(client, raw)
    assert (batch.status, counts(batch)) == ("failed", (0, 0, 0))
    assert batch.failed_at is not None
    assert batch.errors is not None
    assert [(error.line, error.code, error.param) for error in batch.errors.data or ()] == [
        (2, "duplicate_custom_id", "custom_id"),
        (3, "invalid_url", "url"),
        (4, "missing_method", "method"),
        (5, "invalid_json_line", None),
    ]
    assert client.batches.retrieve(batch.id) == batch


def test_orders_that_cannot_be_met_are_refused(daemon: Daemon, client: openai.OpenAI) -> None:
    order: dict[str, object] = {
        "input_file_id": upload(client, [line("a", prompt="a")]),
        "endpoint": COMPLETIONS,
        "completion_window": "24h",
    }

    def refusal(status: int, **fields: object) -> Any:
        return error_of(httpx.post(f"{daemon.url}/v1/batches", json=order | fields), status)["param"]

    assert refusal(404, input_file_id="file-x") == "input_file_id"
    assert refusal(400, endpoint="/v1/images/generations") == "endpoint"
    assert refusal(400, completion_window="soon") == "completion_window"
    assert refusal(400, completion_window="31d") == "completion_window"
    assert refusal(400, completion_window=None) == "completion_window"
    assert refusal(400, metadata={"a": 1}) == "metadata.a"
    assert refusal(400, metadata={str(i): "" for i in range(17)}) == "metadata"
    assert refusal(400, output_expires_after={"anchor": "created_at", "seconds": 1}) == "output_expires_after.seconds"


@pytest.fixture(scope="module")
def paused(start_daemon: Callable[..., Daemon]) -> Daemon:
    """Batches wait there until its background class is let go on."""
    daemon = start_daemon(SETTINGS)
    control(daemon, "pause")
    return daemon


def control(daemon: Daemon, what: str, **fields: object) -> None:
    body = {"class": "background"} if what in ("pause", "resume") else fields
    assert httpx.post(f"{daemon.url}/api/admin/{what}", json=body).status_code == 200


def test_cancelled_batch_keeps_what_it_has_and_says_what_was_not_run(paused: Daemon) -> None:
    with sdk(paused) as client:
        made = submit(client, [line(f"r{i}", **exactly(1)) for i in range(3)])
        with pytest.raises(openai.BadRequestError, match="in progress"):
            client.files.delete(made.input_file_id)
        batch = client.batches.cancel(made.id)
        assert (batch.status, counts(batch), batch.output_file_id) == ("cancelled", (3, 0, 3), None)
        assert client.batches.cancel(made.id) == batch
        errors = content(client, batch.error_file_id)
        assert [error["custom_id"] for error in errors] == ["r0", "r1", "r2"]
        assert {error["error"]["code"] for error in errors} == {"batch_cancelled"}
        assert client.files.delete(made.input_file_id).deleted
        assert client.files.delete(batch.error_file_id or "").deleted
        with pytest.raises(openai.NotFoundError):
            client.files.content(batch.error_file_id or "")


def test_batch_expires_with_its_window(paused: Daemon) -> None:
    with sdk(paused) as client:
        made = client.batches.create(
            input_file_id=upload(client, [line("late", prompt="a")]),
            endpoint=COMPLETIONS,
            completion_window="1s",  # type: ignore[arg-type]
        )
        batch = ended(client, made.id)
        assert (batch.status, counts(batch)) == ("expired", (1, 0, 1))
        (error,) = content(client, batch.error_file_id)
        assert (error["response"], error["error"]["code"]) == (None, "batch_expired")


def test_keys_see_their_own_and_this_machine_sees_all(paused: Daemon) -> None:
    ann, bob = paused.keys("add", "ann"), paused.keys("add", "bob")
    with sdk(paused, ann) as of_ann, sdk(paused, bob) as of_bob, sdk(paused) as owner:
        made = submit(of_ann, [line("secret", prompt="a")])
        others = submit(of_bob, [line("own", prompt="a")])
        assert [batch.id for batch in of_ann.batches.list()] == [made.id]
        assert [file.id for file in of_bob.files.list()] == [others.input_file_id]
        for call in (of_bob.batches.retrieve, of_bob.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                call(made.id)
        for read in (of_bob.files.retrieve, of_bob.files.content, of_bob.files.delete):
            with pytest.raises(openai.NotFoundError):
                read(made.input_file_id)
        with pytest.raises(openai.NotFoundError):
            of_bob.batches.create(input_file_id=made.input_file_id, endpoint=COMPLETIONS, completion_window="24h")
        assert {made.id, others.id} <= {batch.id for batch in owner.batches.list()}
        for batch in (made, others):
            owner.batches.cancel(batch.id)


def test_revoked_key_answers_no_more_lines(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon(SETTINGS)
    control(daemon, "pause")
    with sdk(daemon, daemon.keys("add", "gone")) as theirs, sdk(daemon) as owner:
        made = submit(theirs, [line("a", **exactly(1))])
        daemon.keys("revoke", "gone")
        control(daemon, "resume")
        batch = ended(owner, made.id)
        (error,) = content(owner, batch.error_file_id)
        assert (error["response"]["status_code"], counts(batch)) == (401, (1, 0, 1))


def test_lines_run_in_the_background_for_the_source_that_asked(start_daemon: Callable[..., Daemon]) -> None:
    """Voice is served first, although batches hold all seats."""
    daemon = start_daemon(SETTINGS, "scheduler.max_num_seqs=2", "sources=[{name: kitchen, class: voice}]")
    with sdk(daemon, source="kitchen") as client:
        made = submit(client, [line(f"r{i}", **exactly(1000)) for i in range(4)])
        eventually(lambda: daemon.status()["batch"]["num_running"] == 2)
        assert {(r["source"], r["class"]) for r in daemon.status()["requests"]} == {("kitchen", "background")}
        voice = client.completions.create(model="default", prompt="Turn on the light", max_tokens=3)
        assert voice.usage is not None
        assert counts(client.batches.retrieve(made.id)) == (4, 0, 0)
        (row,) = daemon.status()["batches"]
        assert (row["id"], row["source"], row["num_lines"], row["num_running"]) == (made.id, "kitchen", 4, 2)
        assert client.batches.cancel(made.id).status == "cancelled"
        eventually(lambda: daemon.status()["requests"] == [])
        assert daemon.status()["batches"] == []


def test_batch_waits_for_the_model_and_does_not_bring_it_back(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon(SETTINGS)
    control(daemon, "unload")
    eventually(lambda: daemon.status()["state"] == "sleeping")
    with sdk(daemon) as client:
        made = submit(client, [line("a", **exactly(1))])
        assert daemon.status()["state"] == "sleeping"
        control(daemon, "load")
        assert counts(ended(client, made.id)) == (1, 1, 0)


def test_death_of_the_engine_fails_no_line(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon(SETTINGS)
    with sdk(daemon) as client:
        made = submit(client, [line(f"r{i}", **exactly(8)) for i in range(20)])
        eventually(lambda: counts(client.batches.retrieve(made.id))[1] > 2)
        (engine,) = daemon.engines
        engine.kill()
        assert counts(ended(client, made.id)) == (20, 20, 0)


def test_stop_does_not_wait_for_lines_and_the_next_start_goes_on_with_them(model_path: Path, tmp_path: Path) -> None:
    settings = SETTINGS, "server.drain_timeout_s=3600"
    with Daemon.start(model_path, tmp_path, *settings) as daemon, sdk(daemon) as client:
        made = submit(client, [line("long", **exactly(8000))])
        eventually(lambda: daemon.status()["batch"]["num_running"] == 1)
        assert daemon.stop() == 0
    with Daemon.start(model_path, tmp_path, *settings) as daemon, sdk(daemon) as client:
        eventually(lambda: daemon.status()["batch"]["num_running"] == 1)
        assert [batch["id"] for batch in daemon.status()["batches"]] == [made.id]
        assert client.batches.cancel(made.id).status == "cancelled"


# ---- power cuts ----------------------------------------------------------------------------------------


def pull_the_plug(daemon: Daemon) -> None:
    """SIGKILL for all of it at once, as a power cut."""
    processes = [*psutil.Process(daemon.process.pid).children(recursive=True), psutil.Process(daemon.process.pid)]
    for process in processes:
        process.suspend()  # nobody does anything any more while the others are killed
    for process in processes:
        process.kill()
    daemon.process.wait()
    daemon.close()


def so_far(client: openai.OpenAI, batch_id: str, num_lines: int) -> Batch:
    """As soon as so many lines are done."""

    def look() -> Batch | None:
        batch = client.batches.retrieve(batch_id)
        return batch if counts(batch)[1] >= num_lines else None

    return eventually(look)


def cut_while_starting(model_path: Path, data_dir: Path) -> None:
    daemon = Daemon.launch(model_path, data_dir, SETTINGS, port=free_port())
    eventually(lambda: psutil.Process(daemon.process.pid).children())
    pull_the_plug(daemon)


def test_every_line_is_answered_once_through_power_cuts(model_path: Path, tmp_path: Path) -> None:
    rng = random.Random(11)
    lines = [line(f"line {i}", **exactly(1 + i % 3, f"Number {i}")) for i in range(NUM_LINES)]
    daemon = Daemon.start(model_path, tmp_path, SETTINGS)
    with sdk(daemon) as client:
        made = submit(client, lines)
    num_done = 0
    for target in sorted(rng.sample(range(NUM_LINES - 10), NUM_POWER_CUTS)):
        with sdk(daemon) as client:
            batch = so_far(client, made.id, target)
        pull_the_plug(daemon)
        assert counts(batch)[1] >= num_done, "what was done stays done"
        num_done = counts(batch)[1]
        if rng.random() < 0.5:  # and once more, while it starts
            cut_while_starting(model_path, tmp_path)
        daemon = Daemon.start(model_path, tmp_path, SETTINGS)
    with daemon, sdk(daemon) as client:
        batch = ended(client, made.id)
        assert (batch.status, counts(batch)) == ("completed", (NUM_LINES, NUM_LINES, 0))
        answers = content(client, batch.output_file_id)
        tokens = {a["custom_id"]: a["response"]["body"]["usage"]["completion_tokens"] for a in answers}
        assert [answer["custom_id"] for answer in answers] == [f"line {i}" for i in range(NUM_LINES)]
        assert tokens == {f"line {i}": 1 + i % 3 for i in range(NUM_LINES)}
        runs = Counter(row["client_request_id"] for row in daemon.ledger_rows("batcher") if row["status"] == 200)
        num_again = sum(count - 1 for name, count in runs.items() if name and name.startswith("batch_req_"))
        assert num_again <= 2 * NUM_POWER_CUTS, "only what was in flight is run again"
