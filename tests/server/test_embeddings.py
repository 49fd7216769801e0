"""Who waits for whom when vectors are asked for, and what is refused before anything is computed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from homeai import config
from homeai.backends.llamacpp.vocab import load_vocabulary
from homeai.embedding.messages import LoadEmbedder
from homeai.errors import InvalidRequest, ModelNotFound, NotReady, PromptTooLong, TooManyRequests
from homeai.server.embeddings import MAX_INPUTS, Embeddings
from homeai.server.prompts import PromptRenderer
from homeai.server.text import Text

NUM_DIMS = 640


class RecordingChild:
    """Answers a text of n tokens with n everywhere, as soon as it `may_answer`."""

    def __init__(self) -> None:
        self.pid = 1
        self.asked: list[list[int]] = []
        self.was_asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.was_closed = asyncio.Event()
        self.error: Exception | None = None

    async def embed(self, token_ids: list[int]) -> bytes:
        self.asked.append(token_ids)
        self.was_asked.set()
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return np.full(NUM_DIMS, len(token_ids), np.float32).tobytes()

    async def close(self) -> None:
        self.was_closed.set()


class House:
    """The service under test and the children that it started."""

    def __init__(self, text: Text, model_path: Path, **settings: float) -> None:
        self.text = text
        self.children: list[RecordingChild] = []
        self.next_child = RecordingChild()
        self.loads: list[LoadEmbedder] = []
        overrides = [(f"embeddings.{key}", str(value)) for key, value in settings.items()]
        self.embeddings = Embeddings(config.load(None, env={}, overrides=overrides).embeddings, model_path, self.start)

    async def start(self, load: LoadEmbedder) -> RecordingChild:
        self.loads.append(load)
        self.children.append(self.next_child)
        self.next_child = RecordingChild()
        return self.children[-1]

    async def embed(self, *inputs: str | list[int], **options: object) -> list[bytes]:
        return (await self.embeddings.embed(self.text, inputs, **options)).vectors  # type: ignore[arg-type]

    def ask(self, *inputs: str | list[int]) -> asyncio.Task[list[bytes]]:
        return asyncio.create_task(self.embed(*inputs))


@pytest.fixture(scope="module")
def text(model_path: Path) -> Iterator[Text]:
    vocabulary = load_vocabulary(model_path)
    yield Text("gemma", vocabulary, PromptRenderer(vocabulary, None), config.load(None, env={}))
    vocabulary.close()


@pytest.fixture
async def house(text: Text, model_path: Path) -> House:
    return House(text, model_path)


# ---- whose turn it is ----------------------------------------------------------------------------------


async def test_one_input_does_not_wait_for_all_of_a_long_request(house: House) -> None:
    child = house.next_child
    child.may_answer.clear()
    many = house.ask([5], [6], [7])
    await child.was_asked.wait()
    one = house.ask([8])
    await asyncio.sleep(0)
    child.may_answer.set()
    await one
    await many
    assert child.asked == [[5], [6], [8], [7]] or child.asked == [[5], [8], [6], [7]]


async def test_vectors_come_in_the_order_of_the_inputs(house: House) -> None:
    vectors = await house.embed([5, 5], [6], [7, 7, 7])
    assert [np.frombuffer(vector, np.float32)[0] for vector in vectors] == [2, 1, 3]


async def test_nothing_more_is_computed_for_a_client_that_left(house: House) -> None:
    child = house.next_child
    child.may_answer.clear()
    gone = house.ask([5], [6], [7])
    await child.was_asked.wait()
    waiting = house.ask([8])
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    child.may_answer.set()
    await waiting
    assert child.asked == [[5], [8]]


async def test_too_many_requests_are_told_to_come_back(text: Text, model_path: Path) -> None:
    house = House(text, model_path, max_waiting=1)
    child = house.next_child
    child.may_answer.clear()
    first = house.ask([5])
    await child.was_asked.wait()
    second = house.ask([6])
    for _ in range(10):
        await asyncio.sleep(0)
    with pytest.raises(TooManyRequests, match="1 requests wait") as caught:
        await house.embed([7])
    assert caught.value.retry_after_s
    child.may_answer.set()
    await asyncio.gather(first, second)


# ---- the child -----------------------------------------------------------------------------------------


async def test_child_is_started_by_the_first_request_and_serves_the_next(house: House) -> None:
    assert not house.loads
    await house.embed([5])
    await house.embed([6])
    assert len(house.loads) == 1


async def test_a_child_that_fails_is_replaced_with_the_next_request(house: House) -> None:
    broken = house.next_child
    broken.error = NotReady("the embedding process ended")
    with pytest.raises(NotReady):
        await house.embed([5])
    assert broken.was_closed.is_set()
    assert len(await house.embed([6])) == 1
    assert len(house.children) == 2


async def test_a_bug_fails_its_request_and_no_other(house: House) -> None:
    house.next_child.error = AssertionError("one answer for each text")
    results = await asyncio.gather(house.embed([5]), house.embed([6]), return_exceptions=True)
    assert isinstance(results[0], Exception)
    assert isinstance(results[1], list)


async def test_child_ends_when_nobody_asks_and_starts_again(text: Text, model_path: Path) -> None:
    house = House(text, model_path, idle_timeout_s=0.01)
    child = house.next_child
    await house.embed([5])
    await child.was_closed.wait()
    assert house.embeddings.queue.child_pid is None
    await house.embed([6])
    assert len(house.children) == 2


async def test_closing_ends_the_child(house: House) -> None:
    await house.embed([5])
    await house.embeddings.close()
    assert house.children[0].was_closed.is_set()


# ---- refused, with nothing computed --------------------------------------------------------------------


async def test_too_long_a_text_is_refused_with_both_counts(text: Text, model_path: Path) -> None:
    """B1, for embeddings: nothing is cut off silently."""
    house = House(text, model_path, max_tokens=16)
    with pytest.raises(PromptTooLong, match="101 tokens > 16 maximum") as caught:
        await house.embed("short", " a" * 100)
    assert caught.value.param == "input[1]"
    with pytest.raises(PromptTooLong, match=r"at least \d+ tokens > 16 maximum"):
        await house.embed("a" * 1_000_000)
    assert not house.loads


@pytest.mark.parametrize("token_id", [-1, 262144, 5279552648203111001])
async def test_a_token_that_does_not_exist_is_refused(house: House, token_id: int) -> None:
    """E8"""
    with pytest.raises(InvalidRequest, match=f"input\\[0\\] has token {token_id}"):
        await house.embed([token_id])
    assert not house.loads


async def test_nothing_to_embed_is_refused(house: House) -> None:
    with pytest.raises(InvalidRequest, match="input is empty"):
        await house.embed()
    with pytest.raises(InvalidRequest, match=r"input\[0\] is empty"):
        await house.embed([])


async def test_too_many_texts_are_refused(house: House) -> None:
    with pytest.raises(InvalidRequest, match=f"{MAX_INPUTS + 1} > {MAX_INPUTS} maximum"):
        await house.embed(*[[5]] * (MAX_INPUTS + 1))


async def test_another_model_is_not_found(house: House) -> None:
    with pytest.raises(ModelNotFound, match="'text-embedding-3-small' does not exist"):
        await house.embed([5], model="text-embedding-3-small")
    assert await house.embed([5], model="gemma")


@pytest.mark.parametrize("dimensions", [0, -1, NUM_DIMS + 1])
async def test_dimensions_that_cannot_be_are_refused(house: House, dimensions: int) -> None:
    with pytest.raises(InvalidRequest, match=f"dimensions is {dimensions}; .* 1 to {NUM_DIMS}"):
        await house.embed([5], dimensions=dimensions)


async def test_fewer_dimensions_are_the_first_ones_again_of_length_one(house: House) -> None:
    (vector,) = await house.embed([5, 5, 5], dimensions=4)
    assert np.frombuffer(vector, np.float32).tolist() == [0.5, 0.5, 0.5, 0.5]


# ---- which model ---------------------------------------------------------------------------------------


async def test_vectors_of_the_resident_model_say_so(house: House) -> None:
    embedded = await house.embeddings.embed(house.text, ["a"])
    assert embedded.model == "gemma"
    assert embedded.notes == ["embeddings.model is not set: these come from gemma, pooling mean"]
    assert embedded.num_tokens == 2


async def test_a_model_of_its_own_has_its_own_name(text: Text, model_path: Path) -> None:
    settings = config.load(None, env={}, overrides=[("embeddings.model", str(model_path))]).embeddings
    house = House(text, model_path)
    house.embeddings = Embeddings(settings, Path("other.gguf"), house.start)
    embedded = await house.embeddings.embed(text, ["a"], model=model_path.stem)
    assert (embedded.model, embedded.notes) == (model_path.stem, [])
    assert house.loads[0].model_path == str(model_path)


async def test_a_file_that_cannot_be_read_is_said_and_looked_at_again(
    text: Text, tmp_path: Path, model_path: Path
) -> None:
    house = House(text, model_path)
    settings = config.load(None, env={}, overrides=[("embeddings.model", str(tmp_path / "none.gguf"))]).embeddings
    house.embeddings = Embeddings(settings, model_path, house.start)
    with pytest.raises(NotReady, match="model file not found"):
        await house.embed("a")
    (tmp_path / "none.gguf").symlink_to(model_path)
    assert await house.embed("a")


async def test_a_clients_own_limit_holds_for_each_input(house: House) -> None:
    assert len(await house.embed([5] * 4, [6] * 4, max_tokens=4)) == 2
    with pytest.raises(PromptTooLong, match="5 tokens > 4 maximum") as caught:
        await house.embed([5], [6] * 5, max_tokens=4)
    assert caught.value.param == "input[1]"
