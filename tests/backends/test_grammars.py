"""Grammars on the real model: a base model, which by itself would write anything but what is asked for here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from homeai.backends.llamacpp.runner import LlamaCppRunner, load
from homeai.clock import MonotonicClock
from homeai.engine.engine import Engine
from homeai.errors import GrammarFailed
from homeai.request import FinishReason, Grammar, Request, SamplingParams
from homeai.sampling.grammar import Allowed, GrammarState
from homeai.sampling.grammars import MAX_REMEMBERED, Grammars
from homeai.sampling.guidance import Matcher, Tokenizer
from homeai.scheduling.plan import KVOp, KVOpKind
from homeai.server.conversation import Chat, Tool, ToolChoice
from homeai.server.families import known
from homeai.server.grammars import grammar_for
from homeai.server.schemas import enforceable, grammar_of
from tests.backends.factories import Driver, encode
from tests.backends.test_llamacpp_runner import DELTA, gaps
from tests.backends.test_speculation import MAX_DRAFTS, FreeSteps
from tests.engine.factories import create_engine_config
from tests.scheduling.factories import create_scheduler

PET: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["Kätzchen", "小狗", "🐢"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 30},
        "toys": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,8}$"}, "maxItems": 3},
    },
    "required": ["name", "kind", "age", "toys"],
    "additionalProperties": False,
}
PROMPT = "My pet, described for the vet:\n"


def json_grammar(schema: Any) -> Grammar:
    return Grammar(grammar_of(enforceable(schema, param="format", notes=[])))


@pytest.fixture(scope="module")
def runner(model_path: Path) -> Iterator[LlamaCppRunner]:
    config = create_engine_config(model_path, num_kv_cells=4096, max_drafts=MAX_DRAFTS)
    runner = load(config, lambda fraction: None)
    runner._guesses.costs = FreeSteps()
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def tokenizer(runner: LlamaCppRunner) -> Tokenizer:
    return Tokenizer(runner._model.vocab, runner.limits.end_token_ids)


@dataclass
class House:
    """An engine, and what each request came to."""

    runner: LlamaCppRunner
    engine: Engine = field(init=False)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    ended: dict[str, FinishReason | None] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        limits = self.runner.limits
        scheduler = create_scheduler(
            num_kv_cells=limits.num_kv_cells,
            num_seqs=limits.num_seqs,
            max_model_len=limits.max_model_len,
            max_num_seqs=limits.max_num_seqs,
            end_token_ids=limits.end_token_ids,
            max_num_batched_tokens=256,
            max_chunk_tokens=256,
        )
        self.engine = Engine(scheduler, self.runner, MonotonicClock())

    def add(
        self, name: str, grammar: Grammar | None, prompt: str = PROMPT, outputs: tuple[int, ...] = (), **sampling: Any
    ) -> Request:
        params = SamplingParams(**{"max_tokens": 300, "grammar": grammar} | sampling)
        request = Request(
            name, encode(self.runner._model, prompt), params, cache_prompt=False, output_token_ids=list(outputs)
        )
        self.tokens[name] = list(outputs)
        self.engine.add(request)
        return request

    def finish(self) -> None:
        while self.engine.scheduler.requests:
            step = self.engine.step()
            for name, reason in step.result.failed.items():
                self.failed[name] = reason
                self.engine.abort(name)
            for output in step.outputs:
                if output.token is not None:
                    self.tokens[output.request_id].append(output.token.token_id)
                if output.finish_reason is not None:
                    self.ended[output.request_id] = output.finish_reason

    def text(self, name: str) -> str:
        vocab = self.runner._model.vocab
        return b"".join(vocab.piece(token_id, special=False) for token_id in self.tokens[name]).decode()


@pytest.fixture
def house(runner: LlamaCppRunner) -> Iterator[House]:
    house = House(runner)
    yield house
    for name in list(house.engine.scheduler.requests):
        house.engine.abort(name)
    if house.engine.has_work:
        house.engine.step()
    for seq_id in range(runner.limits.num_seqs):
        runner._sequences.drop(seq_id)


# ---- answers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.0}, {}, {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0}]
)
def test_answers_of_eight_at_once_fit_their_schema(house: House, sampling: dict[str, Any]) -> None:
    grammar = json_grammar(PET)
    for i in range(8):
        house.add(f"pet {i}", grammar, seed=i, **sampling)
    house.finish()
    for i in range(8):
        assert house.ended[f"pet {i}"] is FinishReason.STOP
        text = house.text(f"pet {i}")
        jsonschema.validate(json.loads(text), PET)
        assert text.endswith("}"), "nothing behind the closing brace"


def test_any_object_comes_to_its_end_or_to_its_length(house: House) -> None:
    """G15: and never to blanks without end."""
    for seed in range(8):
        house.add(f"json {seed}", json_grammar({"type": "object"}), seed=seed, temperature=1.5, max_tokens=150)
    house.finish()
    for seed in range(8):
        text = house.text(f"json {seed}")
        assert "   " * 12 not in text.replace("\n", "")
        if house.ended[f"json {seed}"] is FinishReason.STOP:
            assert isinstance(json.loads(text), dict)


def test_neighbours_write_what_they_would_alone(house: House) -> None:
    chats = [house.add(f"chat {i}", None, f"Chapter {i + 1}. It was", temperature=0.0, max_tokens=24) for i in range(3)]
    for i in range(4):
        house.add(f"pet {i}", json_grammar(PET), seed=i, temperature=1.5)
    house.finish()
    for chat in chats:
        outputs = house.tokens[chat.request_id]
        assert max(gaps(house.runner._model, chat.prompt_token_ids, outputs)) <= DELTA
    for i in range(4):
        jsonschema.validate(json.loads(house.text(f"pet {i}")), PET)


def test_same_seed_writes_the_same(house: House) -> None:
    texts = []
    for name in "ab":
        house.add(name, json_grammar(PET), seed=5, temperature=1.0)
        house.finish()
        texts.append(house.text(name))
    assert texts[0] == texts[1]


def test_answer_may_run_out_of_tokens(house: House) -> None:
    house.add("cut", json_grammar(PET), max_tokens=5)
    house.finish()
    assert house.ended["cut"] is FinishReason.LENGTH
    assert len(house.tokens["cut"]) == 5


def test_largest_schemas_that_are_taken_are_followed(house: House) -> None:
    """G9: with one optional property more they are refused before they queue."""
    properties = {f"p{i}": {"type": "string", "maxLength": 3} for i in range(450)}
    schema = {"type": "object", "properties": properties, "additionalProperties": True}
    house.add("json", json_grammar(schema), max_tokens=24)
    tools = (Tool("f", parameters=schema),)
    for family in (known.QWEN_CODER, known.GEMMA):
        chat = Chat(messages=[], tools=tools, tool_choice=ToolChoice("required"))
        grammar = grammar_for(chat, family, begins_in_reasoning=False, marker_id=lambda _: None, notes=[])
        house.add(family.name, grammar, max_tokens=24)
    house.finish()
    assert not house.failed


# ---- ends -------------------------------------------------------------------------------------------

YES_OR_NO = Grammar('start: "yes" | "no"\n')
WORDS = Grammar('start: /[a-z]+/ (" " /[a-z]+/)*\n')


@pytest.mark.parametrize("sampling", [{"ignore_eos": True}, {"min_tokens": 50}])
def test_answer_ends_where_its_grammar_leaves_nothing_else(house: House, sampling: dict[str, Any]) -> None:
    house.add("answer", YES_OR_NO, **sampling)
    house.finish()
    assert house.text("answer") in ("yes", "no")
    assert house.ended["answer"] is FinishReason.STOP


@pytest.mark.parametrize("sampling", [{"ignore_eos": True}, {"min_tokens": 30}])
def test_answer_goes_on_where_its_grammar_lets_it(house: House, sampling: dict[str, Any]) -> None:
    ends = dict.fromkeys(house.runner.limits.end_token_ids, 100.0)
    house.add("answer", WORDS, max_tokens=40, logit_bias=ends, **sampling)
    house.finish()
    assert len(house.tokens["answer"]) >= 30


def test_every_end_token_ends_a_grammar(tokenizer: Tokenizer, runner: LlamaCppRunner) -> None:
    """The vocabulary has three."""
    matcher = Matcher.compile(tokenizer, YES_OR_NO.source)
    assert not set(allowed_ids(matcher, runner)) & runner.limits.end_token_ids
    for token_id in tokenizer.tokenize(b"yes"):
        matcher.consume(token_id)
    assert set(allowed_ids(matcher, runner)) == runner.limits.end_token_ids


def allowed_ids(matcher: Matcher, runner: LlamaCppRunner) -> list[int]:
    return Allowed(matcher.mask(), runner._model.vocab.n_tokens).ids.tolist()


# ---- triggers ---------------------------------------------------------------------------------------


def test_text_is_free_until_the_trigger_and_forced_from_there(house: House) -> None:
    grammar = Grammar('start: " the" "m" "!"\n', (" the",))
    house.add("lazy", grammar, "The cat sat on the mat. The dog sat on the mat. The mouse sat on", temperature=0.0)
    house.finish()
    free, _, forced = house.text("lazy").partition(" the")
    assert forced == "m!", f"after {free!r}"
    assert house.ended["lazy"] is FinishReason.STOP


def test_answer_without_the_trigger_is_as_without_a_grammar(house: House) -> None:
    for name, grammar in (("plain", None), ("lazy", Grammar('start: "<tool_call>" /x+/\n', ("<tool_call>",)))):
        house.add(name, grammar, temperature=0.0, max_tokens=30)
        house.finish()
    assert house.tokens["lazy"] == house.tokens["plain"]


def test_trigger_and_markers_may_be_control_tokens(house: House) -> None:
    (turn,) = house.runner._model.vocab.tokenize(b"<start_of_turn>", add_special=False, parse_special=True)
    grammar = Grammar(f'start: <[{turn}]> "call(" /[a-z]{{3}}/ ")"\n', ("<start_of_turn>",))
    house.add("lazy", grammar, logit_bias={turn: 100.0}, temperature=0.0)
    house.finish()
    assert house.tokens["lazy"][0] == turn
    assert house.text("lazy").startswith("call(")
    assert house.ended["lazy"] is FinishReason.STOP


# ---- guesses, parking, coming back ------------------------------------------------------------------


def test_guesses_change_nothing_but_the_number_of_steps(runner: LlamaCppRunner) -> None:
    pets = [{"name": f"Rex {i}", "kind": "🐢", "age": 3, "toys": ["ball", "bone"]} for i in range(3)]
    prompt = encode(runner._model, "\n".join(json.dumps(pet, ensure_ascii=False) for pet in pets) + "\n")
    driver = Driver(runner)
    texts = []
    for name, num_drafts in (("plain", 0), ("fast", MAX_DRAFTS)):
        driver.num_steps = 0
        driver.add(name, 0, prompt, grammar=json_grammar(PET))
        while not driver.tokens[name][len(prompt) :] or driver.tokens[name][-1] not in runner.limits.end_token_ids:
            driver.step(name, num_drafts=num_drafts)
            driver.check(name)
        texts.append((driver.tokens[name], driver.num_steps))
        driver.runner.remove(name)
        driver.ops(KVOp(KVOpKind.DROP, 0))
    assert texts[0][0] == texts[1][0]
    assert driver.num_drafts > 0
    assert texts[1][1] < texts[0][1]


def test_request_that_comes_back_goes_on_in_its_grammar(house: House) -> None:
    house.add("first", json_grammar(PET), temperature=0.0)
    house.finish()
    whole = house.tokens["first"]
    house.add("again", json_grammar(PET), outputs=tuple(whole[:9]), temperature=0.0)
    house.finish()
    assert house.tokens["again"][:9] == whole[:9]
    jsonschema.validate(json.loads(house.text("again")), PET)


# ---- failures ---------------------------------------------------------------------------------------

BOMB = json.dumps({"grammars": [{"json_schema": {"type": "string", "pattern": "^(([a-z]{1,100}){1,100}){60,100}$"}}]})


@pytest.mark.parametrize(
    "source", [BOMB, 'start: "a" "b" & "c"\n', json.dumps({"grammars": [{"json_schema": {"$ref": "#"}}]})]
)
def test_grammar_that_cannot_be_followed_fails_its_request_alone(house: House, source: str) -> None:
    house.add("chat", None, temperature=0.0, max_tokens=12)
    house.add("pet", json_grammar(PET))
    with_error = "bad"
    try:
        house.add(with_error, Grammar(source))
    except GrammarFailed as error:
        house.failed[with_error] = str(error)
    house.finish()
    assert house.failed[with_error]
    assert "\n" not in house.failed[with_error]
    assert house.ended == {"chat": FinishReason.LENGTH, "pet": FinishReason.STOP}
    jsonschema.validate(json.loads(house.text("pet")), PET)


@pytest.mark.parametrize(
    "source", ["start: (", 'start: "a\0"', "start: <nothing>", "start: <[999999999]>", '{"grammars": 3}', ""]
)
def test_grammar_that_is_none_fails_at_its_beginning(house: House, source: str) -> None:
    with pytest.raises(GrammarFailed) as info:
        house.add("bad", Grammar(source))
    assert 0 < len(str(info.value)) <= 300
    assert not house.engine.scheduler.requests


# ---- what is remembered -----------------------------------------------------------------------------


def test_grammar_that_came_before_is_there_at_once(runner: LlamaCppRunner) -> None:
    grammars = Grammars(runner._model.vocab, runner.limits.end_token_ids)
    first = grammars.start(WORDS)
    assert not first.done(), "the vocabulary is read beside the loop"
    first.result()
    assert grammars.start(WORDS).done()
    assert grammars.start(Grammar(WORDS.source, ("trigger",))).done()
    assert grammars.start(WORDS).result() is not first.result(), "every text has a place of its own"
    grammars.close()


def test_few_grammars_are_remembered(runner: LlamaCppRunner) -> None:
    for i in range(MAX_REMEMBERED + 5):
        runner._live._grammars.start(Grammar(f'start: "{i}"\n')).result()
    assert len(runner._live._grammars._compiled) == MAX_REMEMBERED
    assert not runner._live._grammars.start(Grammar('start: "0"\n')).done()


def test_texts_of_one_grammar_do_not_disturb_each_other(runner: LlamaCppRunner) -> None:
    one, other = (runner._live._grammars.start(YES_OR_NO).result() for _ in range(2))
    one.advance(encode(runner._model, "yes")[-1])
    assert len(ids_of(one)) == len(runner.limits.end_token_ids)
    assert len(ids_of(other)) > 3


def ids_of(state: GrammarState) -> list[int]:
    allowed = state.allowed()
    assert allowed is not None
    return allowed.ids.tolist()


# ---- the vocabulary ---------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["Grüße", "日本語", "🙂🙃", "a  b\n\n\tc", '{"a": [1, 2]}', "<table>"])
def test_forced_text_is_written_as_llama_cpp_would(tokenizer: Tokenizer, runner: LlamaCppRunner, text: str) -> None:
    matcher = Matcher.compile(tokenizer, f"start: {json.dumps(text, ensure_ascii=False)}\n")
    written: list[int] = []
    while len(ids := allowed_ids(matcher, runner)) == 1:
        matcher.consume(ids[0])
        written.append(ids[0])
    vocab = runner._model.vocab
    assert b"".join(vocab.piece(token_id, special=False) for token_id in written) == text.encode()
    assert written == vocab.tokenize(text.encode(), add_special=False, parse_special=False)


def test_control_tokens_are_no_text(tokenizer: Tokenizer, runner: LlamaCppRunner) -> None:
    vocab = runner._model.vocab
    allowed = set(allowed_ids(Matcher.compile(tokenizer, "start: /(?s:.*)/\n"), runner))
    for token_id in np.random.default_rng(3).integers(0, vocab.n_tokens, 2000).tolist():
        is_text = bool(vocab.piece(token_id, special=False))
        if not is_text and token_id not in runner.limits.end_token_ids:
            assert token_id not in allowed
