"""The `ollama` package works against the daemon as it is: answers, streams, models, errors."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import ollama
import pytest

from tests.daemon import Daemon

MODEL = "default"
HELLO = [{"role": "user", "content": "Say hello."}]
SHORT = {"temperature": 0, "num_predict": 12}
COUNTING = "1 2 3 4 5 6 7 8 9 10 11 12"


@pytest.fixture
def client(daemon: Daemon) -> Iterator[ollama.Client]:
    with ollama.Client(host=daemon.url) as client:
        yield client


@pytest.fixture
async def async_client(daemon: Daemon) -> AsyncIterator[ollama.AsyncClient]:
    async with ollama.AsyncClient(host=daemon.url) as client:
        yield client


# ---- chat ----------------------------------------------------------------------------------------------


def test_chat_is_answered(client: ollama.Client) -> None:
    answer = client.chat(MODEL, HELLO, options=SHORT)
    assert (answer.model, answer.done, answer.message.role) == (MODEL, True, "assistant")
    assert answer.message.content
    assert answer.done_reason in ("stop", "length")
    assert answer.prompt_eval_count is not None
    assert answer.eval_count is not None
    assert (answer.prompt_eval_count > 0, 0 < answer.eval_count <= 12) == (True, True)
    assert answer.total_duration is not None
    assert answer.eval_duration is not None
    assert answer.total_duration > answer.eval_duration > 0


def test_streamed_chat_is_the_same_as_the_whole_one(client: ollama.Client) -> None:
    whole = client.chat(MODEL, HELLO, options=SHORT)
    *chunks, last = client.chat(MODEL, HELLO, options=SHORT, stream=True)
    assert "".join(chunk.message.content or "" for chunk in chunks) == whole.message.content
    assert not any(chunk.done for chunk in chunks)
    assert (last.done, last.done_reason, last.message.content) == (True, whole.done_reason, "")
    assert (last.eval_count, last.prompt_eval_count) == (whole.eval_count, whole.prompt_eval_count)


async def test_asynchronous_chats_and_streams_mix(async_client: ollama.AsyncClient) -> None:
    async def streamed() -> str:
        stream = await async_client.chat(MODEL, HELLO, options=SHORT, stream=True)
        return "".join([chunk.message.content or "" async for chunk in stream])

    wholes = [async_client.chat(MODEL, HELLO, options=SHORT) for _ in range(3)]
    *answers, first, second = await asyncio.gather(*wholes, streamed(), streamed())
    assert all(answer.message.content for answer in answers)
    assert first
    assert second


def test_c7_answer_that_is_cut_says_so(client: ollama.Client) -> None:
    answer = client.generate(MODEL, COUNTING, raw=True, options={"num_predict": 3, "temperature": 0})
    assert (answer.done_reason, answer.eval_count) == ("length", 3)


def test_answer_ends_before_a_stop_string(client: ollama.Client) -> None:
    options = {"temperature": 0, "num_predict": 40, "stop": ["17 18"]}
    answer = client.generate(MODEL, COUNTING, raw=True, options=options)
    assert answer.done_reason == "stop"
    assert answer.response is not None
    assert answer.response.rstrip().endswith("16")


def test_f15_answer_that_was_begun_is_continued(client: ollama.Client) -> None:
    messages = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": COUNTING}]
    answer = client.chat(MODEL, messages, options={"temperature": 0, "num_predict": 8})
    assert answer.message.content is not None
    assert "13" in answer.message.content


def test_same_seed_draws_the_same_text(client: ollama.Client) -> None:
    options = {"temperature": 1.0, "seed": 42, "num_predict": 8}
    first, second = (client.generate(MODEL, COUNTING, raw=True, options=options) for _ in range(2))
    assert first.eval_count == second.eval_count


def test_log_probabilities_come_in_ollamas_shape(client: ollama.Client) -> None:
    answer = client.chat(MODEL, HELLO, options=SHORT, logprobs=True, top_logprobs=3)
    assert answer.logprobs
    for entry in answer.logprobs:
        assert entry.logprob <= 0
        assert entry.top_logprobs is not None
        assert [len(entry.top_logprobs), entry.top_logprobs[0].token] == [3, entry.token]
    assert answer.message.content is not None
    assert answer.message.content in "".join(entry.token for entry in answer.logprobs)


# ---- generate ------------------------------------------------------------------------------------------


def test_question_is_answered_through_the_template(client: ollama.Client) -> None:
    answer = client.generate(MODEL, "Say hello.", options=SHORT)
    assert answer.response == client.chat(MODEL, HELLO, options=SHORT).message.content


def test_system_prompt_counts(client: ollama.Client) -> None:
    bare = client.generate(MODEL, "Say hello.", options=SHORT)
    with_system = client.generate(MODEL, "Say hello.", system="You are a parrot.", options=SHORT)
    assert with_system.prompt_eval_count is not None
    assert bare.prompt_eval_count is not None
    assert with_system.prompt_eval_count > bare.prompt_eval_count


def test_raw_text_goes_on_as_it_is(client: ollama.Client) -> None:
    *chunks, last = client.generate(
        MODEL, COUNTING, raw=True, stream=True, options={"temperature": 0, "num_predict": 6}
    )
    text = "".join(chunk.response or "" for chunk in chunks)
    assert text.startswith(" 13")
    assert last.done


def test_control_tokens_of_a_raw_prompt_count(client: ollama.Client) -> None:
    """The client's own template wrote them."""
    plain = client.generate(MODEL, "start of turn", raw=True, options={"num_predict": 0})
    marked = client.generate(MODEL, "<start_of_turn>", raw=True, options={"num_predict": 0})
    assert (marked.prompt_eval_count, plain.prompt_eval_count) == (2, 4)


def test_gap_needs_a_model_that_was_trained_to_fill_gaps(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match='"default" does not support insert') as raised:
        client.generate(MODEL, "def f(", suffix="return 1")
    assert raised.value.status_code == 400


def test_gap_is_filled_as_continue_and_zed_ask_for_it(fim_daemon: Daemon) -> None:
    """Continue sends a suffix, Zed writes the control tokens itself: the same prompt."""
    options = {"temperature": 0, "num_predict": 6}
    with ollama.Client(host=fim_daemon.url) as client:
        by_suffix = client.generate(MODEL, "def add(a, b):\n    ", suffix="\n\nprint(add(1, 2))", options=options)
        raw = "<fim_prefix>def add(a, b):\n    <fim_suffix>\n\nprint(add(1, 2))<fim_middle>"
        by_hand = client.generate(MODEL, raw, raw=True, options=options)
        assert (by_suffix.response, by_suffix.prompt_eval_count) == (by_hand.response, by_hand.prompt_eval_count)
        shown = client.show(MODEL)
    assert "{{ .Suffix }}" in (shown.template or "")
    assert "insert" in (shown.capabilities or ())


# ---- how long ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(start_daemon: Callable[..., Daemon]) -> Daemon:
    return start_daemon("scheduler.max_model_len=64")


@pytest.mark.parametrize("num_predict", [-1, -2, None])
def test_c3_unlimited_answer_ends_with_the_context(small: Daemon, num_predict: int | None) -> None:
    with ollama.Client(host=small.url) as client:
        answer = client.generate(MODEL, COUNTING, raw=True, options={"temperature": 0, "num_predict": num_predict})
    assert answer.done_reason == "length"
    assert answer.prompt_eval_count is not None
    assert answer.eval_count is not None
    assert answer.prompt_eval_count + answer.eval_count == 64


@pytest.mark.parametrize("stream", [False, True])
def test_b3_prompt_that_is_too_long_is_refused_and_the_next_one_served(small: Daemon, stream: bool) -> None:
    long = [{"role": "user", "content": "word " * 300}]
    with ollama.Client(host=small.url) as client:
        with pytest.raises(ollama.ResponseError, match=r"prompt is too long: .*\d+ tokens > 63 maximum") as raised:
            list(client.chat(MODEL, long, stream=True)) if stream else client.chat(MODEL, long)
        assert raised.value.status_code == 400
        with pytest.raises(ollama.ResponseError, match="prompt is too long: "):
            client.generate(MODEL, COUNTING * 30, raw=True)
        assert client.chat(MODEL, HELLO, options=SHORT).done


@pytest.mark.parametrize("num_tokens", [0, 1, 2])
def test_c1_exactly_as_many_tokens_as_asked_for(client: ollama.Client, num_tokens: int) -> None:
    answer = client.generate(MODEL, COUNTING, raw=True, options={"num_predict": num_tokens, "temperature": 0})
    assert answer.eval_count == num_tokens


# ---- thinking, loading ---------------------------------------------------------------------------------


@pytest.mark.parametrize("think", [True, "low", "high", "max"])
def test_model_that_cannot_think_says_so(client: ollama.Client, think: bool | str) -> None:
    with pytest.raises(ollama.ResponseError, match='"default" does not support thinking') as raised:
        client.chat(MODEL, HELLO, think=think)  # type: ignore[call-overload]
    assert raised.value.status_code == 400


def test_h20_not_to_think_is_always_possible(client: ollama.Client) -> None:
    answer = client.chat(MODEL, HELLO, think=False, options=SHORT)
    assert answer.message.content
    assert answer.message.thinking is None


THINKER = """
{%- for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}
{%- if add_generation_prompt %}assistant: <think>
{%- if enable_thinking is defined and not enable_thinking %}

</think>

{% endif %}{% endif %}"""


@pytest.fixture(scope="module")
def thinker(start_daemon: Callable[..., Daemon], tmp_path_factory: pytest.TempPathFactory) -> Daemon:
    """The default model with the template of one that thinks: it does not know how to end a thought."""
    path = tmp_path_factory.mktemp("template") / "thinker.jinja"
    path.write_text(THINKER)
    return start_daemon(f"model.chat_template={path}")


@pytest.mark.parametrize("think", [True, "high", None])
def test_thoughts_are_apart_from_the_answer(thinker: Daemon, think: bool | str | None) -> None:
    with ollama.Client(host=thinker.url) as client:
        answer = client.chat(MODEL, HELLO, think=think, options=SHORT)  # type: ignore[call-overload]
        *chunks, _end = client.chat(MODEL, HELLO, think=think, options=SHORT, stream=True)  # type: ignore[call-overload]
        assert "thinking" in (client.show(MODEL).capabilities or ())
        generated = client.generate(MODEL, "Say hello.", think=think, options=SHORT)  # type: ignore[call-overload]
    assert (bool(answer.message.thinking), answer.message.content) == (True, "")
    assert "".join(chunk.message.thinking or "" for chunk in chunks) == answer.message.thinking
    assert (generated.thinking, generated.response) == (answer.message.thinking, "")


def test_h20_no_thought_and_no_mark_of_one_comes_where_none_is_wanted(thinker: Daemon) -> None:
    with ollama.Client(host=thinker.url) as client:
        answer = client.chat(MODEL, [{"role": "user", "content": COUNTING}], think=False, options=SHORT)
        generated = client.generate(MODEL, COUNTING, think=False, options=SHORT)
    for text, thinking in ((answer.message.content, answer.message.thinking), (generated.response, generated.thinking)):
        assert text
        assert "think>" not in text
        assert thinking is None


@pytest.mark.parametrize("keep_alive", [-1, 0, 300, "-1", "0", "5m", "24h", "-1m", "-1s", "1h30m"])
def test_h9_every_way_of_keeping_the_model_is_accepted(client: ollama.Client, keep_alive: float | str) -> None:
    assert client.chat(MODEL, HELLO, keep_alive=keep_alive, options={"num_predict": 1}).done


def test_f2_chat_without_messages_loads_the_model(client: ollama.Client) -> None:
    assert client.chat(MODEL, []).done_reason == "load"
    assert client.generate(MODEL).done_reason == "load"
    (only,) = client.chat(MODEL, [], stream=True)
    assert (only.done, only.done_reason) == (True, "load")


def test_model_is_not_unloaded_on_request(client: ollama.Client) -> None:
    assert client.generate(MODEL, keep_alive=0).done_reason == "unload"
    assert client.chat(MODEL, [], keep_alive="0").done_reason == "unload"
    assert len(client.ps().models) == 1


# ---- models --------------------------------------------------------------------------------------------


def test_the_one_model_is_listed(client: ollama.Client, model_path: Path) -> None:
    (model,) = client.list().models
    assert model.model is not None
    assert model.details is not None
    assert model.size is not None
    assert (model.details.format, model.details.family, model.details.quantization_level) == (
        ("safetensors", "gemma3_text", "BF16") if model_path.is_dir() else ("gguf", "gemma3", "Q4_K_M")
    )
    assert model.details.parameter_size == "268.10M"
    assert model.size > 100_000_000
    assert model.modified_at is not None
    assert model.digest is not None
    assert len(bytes.fromhex(model.digest)) == 32
    assert client.chat(model.model, HELLO, options={"num_predict": 1}).model == model.model


def test_the_one_model_is_running_for_good(client: ollama.Client) -> None:
    (model,) = client.ps().models
    assert model.expires_at is not None
    assert model.expires_at > datetime(2300, 1, 1, tzinfo=UTC)
    assert (model.size_vram, model.context_length) == (0, 16384)


def test_model_is_shown(client: ollama.Client, model_path: Path) -> None:
    shown = client.show(MODEL)
    family = "gemma3_text" if model_path.is_dir() else "gemma3"
    assert shown.modelinfo is not None
    assert shown.modelinfo["general.architecture"] == family
    assert shown.modelinfo[f"{family}.context_length"] == 32768
    assert shown.modelinfo["general.parameter_count"] == 268098176
    assert shown.capabilities is not None
    assert {"completion", "tools"} <= {*shown.capabilities}
    assert not {"insert", "thinking", "vision"} & {*shown.capabilities}
    assert shown.parameters is not None
    assert "num_ctx" in shown.parameters
    assert shown.modified_at is not None
    assert shown.template is not None
    assert (".Suffix" in shown.template, ".Tools" in shown.template) == (False, True)


@pytest.mark.parametrize("suffix", ["", ":latest"])
def test_model_answers_to_its_names(client: ollama.Client, suffix: str) -> None:
    (model,) = client.list().models
    assert model.model is not None
    for name in (model.model, MODEL):
        assert client.generate(name + suffix, "Hi", options={"num_predict": 1}).model == name + suffix
        assert client.show(name + suffix).details == model.details


def test_any_name_will_do_where_the_settings_say_so(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon('model.aliases=["*"]')
    with ollama.Client(host=daemon.url) as client:
        assert client.chat("llama3.2:3b", HELLO, options={"num_predict": 1}).model == "llama3.2:3b"
        assert client.pull("llama3.2:3b").status == "success"


def test_model_that_is_there_need_not_be_pulled(client: ollama.Client) -> None:
    assert client.pull(MODEL).status == "success"
    assert [progress.status for progress in client.pull(MODEL, stream=True)] == ["success"]


def test_other_models_are_not_found(client: ollama.Client) -> None:
    asks: list[Callable[[], object]] = [
        lambda: client.chat("llama3.2", HELLO),
        lambda: list(client.chat("llama3.2", HELLO, stream=True)),
        lambda: client.generate("llama3.2", "Hi"),
        lambda: client.chat("llama3.2", []),
        lambda: client.show("llama3.2"),
        lambda: client.pull("llama3.2"),
        lambda: list(client.pull("llama3.2", stream=True)),
        lambda: client.embed("llama3.2", "Hi"),
    ]
    for ask in asks:
        with pytest.raises(ollama.ResponseError, match=r"model 'llama3\.2' not found") as raised:
            ask()
        assert raised.value.status_code == 404


def test_models_are_not_managed(client: ollama.Client) -> None:
    asks: list[Callable[[], object]] = [
        lambda: client.create("mine", from_=MODEL),
        lambda: client.copy(MODEL, "mine"),
        lambda: client.delete(MODEL),
        lambda: client.push(MODEL),
    ]
    for ask in asks:
        with pytest.raises(ollama.ResponseError, match="homeai manages one resident model") as raised:
            ask()
        assert raised.value.status_code == 501


# ---- embeddings ----------------------------------------------------------------------------------------


def test_texts_become_vectors(client: ollama.Client) -> None:
    answer = client.embed(MODEL, ["A cat sleeps.", "A dog barks."])
    first, second = answer.embeddings
    assert len(first) == len(second) == 640
    assert math.hypot(*first) == pytest.approx(1, abs=1e-3)
    assert answer.prompt_eval_count is not None
    assert answer.prompt_eval_count > 2
    (single,) = client.embed(MODEL, "A cat sleeps.").embeddings
    assert single == pytest.approx(first, abs=1e-2)
    assert client.embeddings(MODEL, "A cat sleeps.").embedding == pytest.approx(single, abs=1e-2)


def test_fewer_dimensions_are_possible(client: ollama.Client) -> None:
    (vector,) = client.embed(MODEL, "A cat sleeps.", dimensions=64).embeddings
    assert len(vector) == 64
    assert math.hypot(*vector) == pytest.approx(1, abs=1e-3)


def test_no_text_becomes_no_vector(client: ollama.Client) -> None:
    assert client.embed(MODEL, "").embeddings == []
    assert client.embed(MODEL, []).embeddings == []
    assert client.embeddings(MODEL, "").embedding == []


def test_text_that_is_too_long_is_not_cut(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="prompt is too long: ") as raised:
        client.embed(MODEL, "word " * 100_000, truncate=True)
    assert raised.value.status_code == 400


# ---- mistakes ------------------------------------------------------------------------------------------


def test_mistake_is_one_sentence_that_names_the_field(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError) as raised:
        client.chat(MODEL, HELLO, options={"temperature": 5})
    assert raised.value.error.startswith("options.temperature: ")
    assert raised.value.status_code == 400
