"""Many at once: everybody's answer is whole and their own, nobody is held up, and a full house says so."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from tests.blackbox.apis import APIS
from tests.daemon import Daemon, eventually_async
from tests.streaming import CHAT, COMPLETIONS, Stream, document, exactly

MARKERS = ["apple", "banana", "cherry", "tiger", "zebra", "river", "mountain", "yellow"]
MARKERS += ["purple", "seven", "twelve", "doctor", "pilot", "guitar", "violin", "winter"]


@pytest.fixture(autouse=True)
async def _nobody_is_left(daemon: Daemon) -> None:
    await eventually_async(lambda: not daemon.status()["requests"])


# ---- whole answers -------------------------------------------------------------------------------------


async def test_eight_streams_at_once_are_all_whole(daemon: Daemon) -> None:
    async with daemon.async_client() as client:
        streams = [Stream(client, exactly(20 + i, f"Chapter {i}.", stop="\n\n\n\n")) for i in range(8)]
        for i, stream in enumerate(streams):
            await stream.ended()
            assert (stream.num_tokens, stream.finish_reason, stream.is_done) == (20 + i, "length", True)


async def test_streamed_and_whole_chats_share_the_batch(daemon: Daemon) -> None:
    def chat(i: int) -> dict[str, object]:
        return {"messages": [{"role": "user", "content": f"Count from {i} on."}], "max_tokens": 12, "ignore_eos": True}

    async with daemon.async_client() as client:
        streams = [Stream(client, chat(i), path=CHAT) for i in range(4)]
        wholes = await asyncio.gather(*(client.post(CHAT, json=chat(i)) for i in range(4)))
        assert [(await stream.ended()).is_done for stream in streams] == [True] * 4
        for whole in wholes:
            (choice,) = whole.json()["choices"]
            assert choice["message"]["role"] == "assistant"
            assert choice["finish_reason"] in ("stop", "length")


@pytest.mark.parametrize("num_clients", [8, 16])
async def test_no_answer_holds_another_ones_text(daemon: Daemon, num_clients: int) -> None:
    """Each prompt repeats a word, and greedy decoding goes on with it."""
    async with daemon.async_client() as client:
        markers = MARKERS[:num_clients]
        streams = [Stream(client, exactly(24, f"{marker} " * 24 + marker)) for marker in markers]
        for marker, stream in zip(markers, streams, strict=True):
            words = (await stream.ended()).text.split()
            assert words.count(marker) >= 12
            assert set(words).isdisjoint(set(MARKERS) - {marker})


async def test_two_hundred_at_once_over_all_apis_each_get_their_own_number_h19(
    start_daemon: Callable[..., Daemon],
) -> None:
    """Each prompt repeats a number of its own, and greedy decoding goes on with it; half of them are streamed."""
    daemon = start_daemon("classes.interactive.max_waiting=200", "classes.interactive.queue_timeout_s=600")
    numbers = [str(100 + 4 * i + 7 * i % 4) for i in range(200)]
    apis = [api for api in APIS.values() if api.path != "/v1/responses"]  # it has no text that goes on

    async def answer(client: httpx.AsyncClient, i: int) -> str:
        api = apis[i % len(apis)]
        body = api.body(" ".join([numbers[i]] * 5), 8, stream=i % 4 < 2)
        return api.said(await client.post(api.path, json=body, timeout=600)).text

    async with daemon.async_client() as client:
        texts = await asyncio.gather(*(answer(client, i) for i in range(200)))
    for number, text in zip(numbers, texts, strict=True):
        assert set(re.findall(r"\d{3}", text)) & set(numbers) == {number}, text


async def test_identical_greedy_prompts_all_get_whole_answers(daemon: Daemon) -> None:
    """Their texts may differ: logits vary slightly with who shares the batch (H6)."""
    async with daemon.async_client() as client:
        streams = [Stream(client, exactly(16, "The capital of France is")) for _ in range(8)]
        for stream in streams:
            await stream.ended()
            assert (stream.num_tokens, stream.finish_reason) == (16, "length")


async def test_identical_greedy_prompts_have_one_text_when_served_one_by_one(
    start_daemon: Callable[..., Daemon],
) -> None:
    """H6: the mode for those to whom that matters."""
    single = start_daemon("scheduler.mode=single")
    async with single.async_client() as client:
        body = exactly(16, "The capital of France is", cache_prompt=False)
        streams = [Stream(client, body, source=f"twin-{i}") for i in range(8)]
        texts = {(await stream.ended()).text for stream in streams}
    assert len(texts) == 1


async def test_long_prompt_is_read_to_its_end_whatever_times_out_elsewhere(start_daemon: Callable[..., Daemon]) -> None:
    """A15: a request that runs is bounded by nothing, and a client that waits for it owes nothing."""
    bound_s, num_tokens = 0.2, 1000
    bounds = [f"server.{name}={bound_s}" for name in ("header_timeout_s", "body_timeout_s", "slow_reader_s")]
    steps = "scheduler.max_num_batched_tokens=32", "scheduler.adaptive_budget=false"
    impatient = start_daemon(*bounds, *steps, f"classes.interactive.queue_timeout_s={bound_s}")
    for streams in (False, True):
        async with impatient.async_client() as client:
            body = exactly(2, document(num_tokens), stream=streams, cache_prompt=False)
            response = await client.post(COMPLETIONS, json=body)
        assert response.status_code == 200
        timings = json.loads(response.text.split("data: ")[-2])["timings"] if streams else response.json()["timings"]
        assert (timings["prompt_n"], timings["predicted_n"]) == (num_tokens, 2)
        assert timings["prompt_ms"] > 2 * 1000 * bound_s, "else nothing was put to the test"


async def test_more_clients_than_seats_are_all_served(daemon: Daemon) -> None:
    async with daemon.async_client() as client:
        streams = [Stream(client, exactly(4, f"Number {i}"), source=f"client-{i}") for i in range(40)]
        assert [(await stream.ended()).num_tokens for stream in streams] == [4] * 40


# ---- a long prompt holds nobody up ---------------------------------------------------------------------


def running(daemon: Daemon, source: str) -> bool:
    seen = daemon.live(source)
    return bool(seen) and seen["status"] == "running"


async def test_others_go_on_while_a_long_prompt_is_read(daemon: Daemon) -> None:
    async with daemon.async_client() as client:
        writer = Stream(client, exactly(3000), source="writer")
        await writer.begun()
        reader = Stream(client, exactly(2, document(1500), cache_prompt=False), source="reader")
        await eventually_async(lambda: running(daemon, "reader"))
        num_before = len(writer.events)
        assert (await client.get("/health")).json() == {"status": "ok"}
        assert not reader.events, "/health waited for the long prompt"
        await reader.begun()
        assert len(writer.events) - num_before >= 3, "a chunk at a time, a token after each"
        assert (await reader.ended()).num_tokens == 2
        await writer.leave()


@pytest.mark.parametrize("documents", ["chat", "documents"], ids=["same-source", "other-source"])
async def test_a_chat_that_comes_after_a_long_document_starts_before_it(daemon: Daemon, documents: str) -> None:
    async with daemon.async_client() as client:
        assert (await Stream(client, exactly(5, "Hello"), source="chat").ended()).num_tokens == 5
        long = Stream(client, exactly(3, document(1500), cache_prompt=False), source=documents)
        await eventually_async(lambda: running(daemon, documents))
        short = Stream(client, exactly(3, "Hello again"), source="chat")
        await short.begun()
        assert not long.events, "the document's prefill ended first"
        assert ((await short.ended()).num_tokens, (await long.ended()).num_tokens) == (3, 3)


# ---- a full house --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def narrow(start_daemon: Callable[..., Daemon]) -> Daemon:
    return start_daemon(
        "scheduler.max_num_seqs=1",
        "classes.interactive.max_waiting=1",
        "classes.voice.queue_timeout_s=0.3",
        "sources=[{name: kitchen, class: voice}, {name: nightly, class: background}]",
    )


@pytest.fixture
async def client(narrow: Daemon) -> AsyncIterator[httpx.AsyncClient]:
    async with narrow.async_client() as client:
        yield client


@pytest.fixture
async def talker(client: httpx.AsyncClient) -> AsyncIterator[Stream]:
    """Sits on the only seat until it leaves."""
    stream = Stream(client, exactly(5000), source="talker")
    await stream.begun()
    yield stream
    await stream.leave()


async def test_beyond_the_bound_of_a_class_requests_are_refused_and_not_queued_a9(
    narrow: Daemon, client: httpx.AsyncClient, talker: Stream
) -> None:
    streams = [Stream(client, exactly(3), source=f"excess-{i}") for i in range(5)]
    await eventually_async(lambda: sum(stream.status == 429 for stream in streams) == 4)
    refused = [stream for stream in streams if stream.status == 429]
    for stream in refused:
        (error,) = (await stream.ended()).errors
        assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
        assert int(stream.headers["retry-after"]) > 0
        assert int(stream.headers["retry-after-ms"]) > 0
        assert "x-should-retry" not in stream.headers
    (accepted,) = set(streams) - set(refused)
    assert len(narrow.status()["requests"]) == 2
    await talker.leave()
    assert (await accepted.ended()).num_tokens == 3


async def test_refused_request_takes_no_place(narrow: Daemon, client: httpx.AsyncClient, talker: Stream) -> None:
    waiting = Stream(client, exactly(3), source="first-in-line")
    await eventually_async(lambda: narrow.live("first-in-line"))
    for body in (exactly(3), exactly(3, stream=True)):
        assert (await client.post(COMPLETIONS, json=body)).status_code == 429
    await waiting.leave()
    await eventually_async(lambda: narrow.live("first-in-line") is None)
    successor = Stream(client, exactly(3), source="next-in-line")
    await eventually_async(lambda: narrow.live("next-in-line"))
    await talker.leave()
    assert (await successor.ended()).num_tokens == 3


async def test_full_class_does_not_close_the_door_to_another(
    narrow: Daemon, client: httpx.AsyncClient, talker: Stream
) -> None:
    interactive = Stream(client, exactly(3), source="first-in-line")
    await eventually_async(lambda: narrow.live("first-in-line"))
    background = [Stream(client, exactly(3), source="nightly") for _ in range(3)]
    await eventually_async(lambda: len(narrow.status()["requests"]) == 5)
    await talker.leave()
    assert [(await stream.ended()).num_tokens for stream in (interactive, *background)] == [3] * 4


@pytest.mark.parametrize("streams", [True, False], ids=["streaming", "whole"])
async def test_waiting_longer_than_the_class_allows_ends_in_503(
    narrow: Daemon, client: httpx.AsyncClient, talker: Stream, streams: bool
) -> None:
    patient = Stream(client, exactly(3), source="nightly")
    await eventually_async(lambda: narrow.live("nightly"))
    num_ledger_rows = len(narrow.ledger_rows("kitchen"))
    expired = await client.post(COMPLETIONS, json=exactly(3, stream=streams), headers={"X-HomeAI-Source": "kitchen"})
    assert (expired.status_code, expired.json()["error"]["code"]) == (503, "queue_timeout")
    assert int(expired.headers["retry-after"]) > 0
    assert narrow.live("nightly")["status"] == "waiting"
    await talker.leave()
    assert (await patient.ended()).num_tokens == 3
    (row,) = await eventually_async(lambda: narrow.ledger_rows("kitchen")[num_ledger_rows:])
    assert (row["status"], row["finish_reason"], row["num_output_tokens"]) == (503, "timeout", 0)
