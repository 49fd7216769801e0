"""The runner on the real model: that batching, chunking, parking and running out of room change no text.

"The text equals" only for an isolated request in a fresh context. Elsewhere logits vary a little with what
else is in the batch and in the cache, so texts agree teacher-forced: computed alone, with the text given,
every token's logit is within DELTA of the highest.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

from homeai.backends.llamacpp.binding import Model, supports_gpu
from homeai.backends.llamacpp.runner import LlamaCppRunner, load, resolve_device
from homeai.backends.llamacpp.sequences import SCRATCH
from homeai.backends.shared.tokens import TokenBuffer
from homeai.clock import MonotonicClock
from homeai.engine.engine import Engine, Step
from homeai.errors import DeviceUnavailable, ModelLoadError
from homeai.policy import ClassPolicy
from homeai.request import FinishReason, Request, RequestStatus, SampledToken, SamplingParams
from homeai.sampling.row import Logits
from homeai.sampling.state import SamplerState
from homeai.scheduling.plan import Chunk, KVOpKind, StepPlan
from tests.backends.factories import CHUNK, Cells, encode, long_text
from tests.engine.factories import create_engine_config
from tests.scheduling.factories import create_scheduler

LONG_S = 10.0  # longer than anybody is left alone in the batch
DELTA = 0.6  # batch composition alone moves a logit by up to 0.7; a context that lost text, by more than 4
PROMPTS = {
    "short": "The capital of France is",
    "code": "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "german": "Die drei größten Städte Österreichs sind",
    "emoji": "🙂 means happy, 😢 means sad, 😡 means",
    "long": "The lighthouse keeper wrote down the weather every morning: wind, clouds, waves and birds. " * 16
    + "On the last day",
}


@pytest.fixture(scope="module")
def model(model_path: Path) -> Iterator[Model]:
    model = Model(model_path)
    yield model
    model.close()


@pytest.fixture
def start_runner(model_path: Path) -> Iterator[Callable[..., LlamaCppRunner]]:
    runners: list[LlamaCppRunner] = []

    def start(**changes: object) -> LlamaCppRunner:
        runners.append(load(create_engine_config(model_path, **changes), lambda fraction: None))
        return runners[-1]

    yield start
    for runner in runners:
        runner.close()


@dataclass
class Run:
    """An engine on a real runner; checks after every step that llama.cpp holds what the scheduler believes."""

    runner: LlamaCppRunner
    engine: Engine
    tokens: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    ended: dict[str, FinishReason] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)

    @classmethod
    def of(cls, runner: LlamaCppRunner, **config: object) -> Run:
        limits = runner.limits
        defaults: dict[str, object] = {
            "num_kv_cells": limits.num_kv_cells,
            "num_seqs": limits.num_seqs,
            "max_model_len": limits.max_model_len,
            "max_num_seqs": limits.max_num_seqs,
            "max_num_batched_tokens": CHUNK,
            "max_chunk_tokens": CHUNK,
            "end_token_ids": limits.end_token_ids,
        }
        return cls(runner, Engine(create_scheduler(**defaults | config), runner, MonotonicClock()))

    def add(
        self, name: str, prompt: list[int], *, max_tokens: int, source: str = "default", **fields: object
    ) -> Request:
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        fields = {"arrival_at": float(len(self.requests))} | fields
        request = Request(name, prompt, sampling, source=source, **fields)  # type: ignore[arg-type]
        self.requests.append(request)
        self.engine.add(request)
        return request

    def step(self) -> Step:
        step = self.engine.step()
        for output in step.outputs:
            if output.token is not None:
                assert output.output_index == len(self.tokens[output.request_id])
                self.tokens[output.request_id].append(output.token.token_id)
            if output.finish_reason is not None:
                self.ended[output.request_id] = output.finish_reason
        for request in self.engine.scheduler.running:
            sequence = self.engine.scheduler._batch.sequences[request.request_id]
            assert self.runner._sequences.positions(sequence.seq_id) == range(request.num_computed_tokens)
        return step

    def finish(self) -> None:
        for _ in range(2000):
            if not self.engine.has_work:
                return
            self.step()
        raise AssertionError("no progress")


def gaps(model: Model, prompt: list[int], outputs: list[int], chunk: int = CHUNK) -> list[float]:
    """Computed alone: how far each output token's logit is below the highest, given the text before it."""
    cells = Cells.open(model, num_kv_cells=2048, max_num_seqs=1, num_cached_seqs=0, max_num_batched_tokens=chunk)
    row = cells.extend(0, prompt, chunk=chunk)
    found = []
    for token, following in itertools.zip_longest(outputs, outputs[:-1]):
        found.append(float(row.max() - row[token]))
        if following is not None:
            row = cells.extend(0, [following])
    cells.close()
    return found


def assert_agrees(model: Model, request: Request, outputs: list[int]) -> None:
    assert max(gaps(model, request.prompt_token_ids, outputs)) <= DELTA


# ---- text -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama(model_path: Path) -> Iterator[llama_cpp.Llama]:
    llama = llama_cpp.Llama(
        str(model_path),
        n_ctx=2048,
        n_batch=CHUNK,
        n_ubatch=CHUNK,
        n_threads=1,
        n_threads_batch=1,
        flash_attn=True,
        swa_full=True,
        verbose=False,
    )
    yield llama
    llama.close()


@pytest.mark.parametrize("name", PROMPTS)
def test_isolated_text_equals_llama_cpp_pythons(
    model: Model, llama: llama_cpp.Llama, start_runner: Callable[..., LlamaCppRunner], name: str
) -> None:
    prompt = encode(model, PROMPTS[name])
    run = Run.of(start_runner())
    run.add(name, prompt, max_tokens=16)
    run.finish()
    llama.reset()  # nothing of the previous prompt
    expected = [
        token for token, _ in zip(llama.generate(prompt, temp=0.0, repeat_penalty=1.0), range(16), strict=False)
    ]
    assert run.tokens[name] == expected


def test_texts_of_a_batch_agree_with_each_alone(model: Model, start_runner: Callable[..., LlamaCppRunner]) -> None:
    run = Run.of(start_runner())
    requests = [run.add(name, encode(model, text), max_tokens=16) for name, text in PROMPTS.items()]
    run.finish()
    for request in requests:
        assert_agrees(model, request, run.tokens[request.request_id])


def test_newcomers_do_not_disturb_a_running_text(model: Model, start_runner: Callable[..., LlamaCppRunner]) -> None:
    run = Run.of(start_runner(), max_chunk_tokens=64)
    talking = run.add("talking", encode(model, PROMPTS["code"]), max_tokens=24)
    for number in range(2):
        for _ in range(3):
            run.step()
        run.add(f"newcomer-{number}", encode(model, PROMPTS["long"]), max_tokens=2, source=f"s{number}")
    run.finish()
    assert_agrees(model, talking, run.tokens["talking"])


@pytest.mark.parametrize("chunk", [7, 64])
def test_chunked_prompt_agrees_with_the_whole(
    model: Model, start_runner: Callable[..., LlamaCppRunner], chunk: int
) -> None:
    run = Run.of(start_runner(), mode="continuous", max_chunk_tokens=chunk)
    request = run.add("long", encode(model, PROMPTS["long"]), max_tokens=8)
    run.finish()
    assert_agrees(model, request, run.tokens["long"])


def test_prompt_longer_than_the_budget_is_computed_whole_without_chunking(
    model: Model, start_runner: Callable[..., LlamaCppRunner]
) -> None:
    run = Run.of(start_runner(chunked_prefill=False), chunked_prefill=False)
    request = run.add("long", encode(model, PROMPTS["long"]), max_tokens=8)
    assert run.step().plan.num_prefill_tokens == request.num_prompt_tokens > CHUNK
    run.finish()
    assert max(gaps(model, request.prompt_token_ids, run.tokens["long"], chunk=512)) == 0.0, "alone and whole, both"


def test_penalties_follow_a_request_through_parking(model: Model, start_runner: Callable[..., LlamaCppRunner]) -> None:
    """Sampler state outlives the KV: with a ban on repeating itself, no token comes twice."""
    run = Run.of(start_runner(num_kv_cells=256))
    sampling = SamplingParams(
        temperature=0.0, max_tokens=40, presence_penalty=1000.0, repeat_last_n=-1, ignore_eos=True
    )
    for seed, name in enumerate(("a", "b")):
        run.engine.add(Request(name, long_text(model, 110, seed=seed), sampling, source=name))
    run.finish()
    assert run.engine.scheduler.num_preemptions > 0
    for name in ("a", "b"):
        assert len(set(run.tokens[name])) == 40


# ---- parking, and running out of room ---------------------------------------------------------------


def test_parked_request_goes_on_at_the_exact_position(
    model: Model, start_runner: Callable[..., LlamaCppRunner]
) -> None:
    run = Run.of(start_runner(num_kv_cells=256))
    prompts = {name: long_text(model, 110, seed=seed) for seed, name in enumerate(("first", "second"))}
    requests = [run.add(name, prompt, max_tokens=40, source=name) for name, prompt in prompts.items()]
    run.finish()
    assert [r.num_preemptions for r in requests] == [0, 1]
    for request in requests:
        assert len(run.tokens[request.request_id]) == 40
        assert_agrees(model, request, run.tokens[request.request_id])


class HastyClock(MonotonicClock):
    """Steps take as long as they take; between them time can be left out."""

    skipped_s = 0.0

    def now(self) -> float:
        return super().now() + self.skipped_s


@pytest.mark.parametrize(
    ("num_cached_seqs", "host_bytes", "ops"),
    [
        pytest.param(4, 0, set(), id="in place"),
        pytest.param(0, 2**28, {KVOpKind.SAVE, KVOpKind.RESTORE}, id="saved"),
        pytest.param(0, 0, {KVOpKind.DROP}, id="computed again"),
    ],
)
def test_request_parked_a_hundred_times_says_what_it_would_have_said(
    model: Model,
    start_runner: Callable[..., LlamaCppRunner],
    num_cached_seqs: int,
    host_bytes: int,
    ops: set[KVOpKind],
) -> None:
    runner = start_runner(num_kv_cells=512, max_num_seqs=1, num_cached_seqs=num_cached_seqs)
    cache = {"max_kept_cells": None, "host_bytes": host_bytes, "kv_bytes_per_token": runner.limits.kv_bytes_per_token}
    classes = {"voice": ClassPolicy(weight=8.0, ttft_target_s=1.0), "background": ClassPolicy(weight=1.0)}
    run = Run.of(runner, classes=classes, **cache)
    clock = run.engine.clock = HastyClock()
    parked = run.add("parked", encode(model, PROMPTS["short"]), max_tokens=110, fairness_class="background")
    kinds: set[KVOpKind] = set()
    while run.engine.has_work:
        if parked.status is RequestStatus.RUNNING and parked.num_output_tokens and parked.num_preemptions < 100:
            at, name = clock.now(), f"hurried {len(run.requests)}"
            run.add(name, encode(model, "Hello"), max_tokens=1, fairness_class="voice", arrival_at=at)
        clock.skipped_s += LONG_S
        kinds |= {op.kind for op in run.step().plan.kv_ops}
    assert parked.num_preemptions == 100
    assert kinds >= ops
    assert len(run.tokens["parked"]) == 110
    assert_agrees(model, parked, run.tokens["parked"])


# ---- going on in another engine ----------------------------------------------------------------------


def continued(model: Model, start_runner: Callable[..., LlamaCppRunner], name: str, num_drawn: int) -> list[int]:
    """40 tokens, of which the first engine drew so many."""
    prompt = encode(model, PROMPTS[name])
    first = Run.of(start_runner())
    first.add(name, prompt, max_tokens=num_drawn)
    first.finish()
    drawn = first.tokens[name]
    second = Run.of(start_runner())
    second.tokens[name] += drawn
    sampling = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    second.engine.add(Request(name, prompt, sampling, output_token_ids=list(drawn)))
    second.finish()
    assert second.ended == {name: FinishReason.LENGTH}
    return second.tokens[name]


@pytest.mark.parametrize("name", PROMPTS)
def test_request_goes_on_in_another_engine_behind_its_last_token(
    model: Model, start_runner: Callable[..., LlamaCppRunner], name: str
) -> None:
    outputs = continued(model, start_runner, name, 30)
    assert len(outputs) == 40
    assert max(gaps(model, encode(model, PROMPTS[name]), outputs)) <= DELTA


@pytest.mark.parametrize("name", PROMPTS)
def test_few_tokens_are_replayed_so_that_the_text_is_the_same(
    model: Model, start_runner: Callable[..., LlamaCppRunner], name: str
) -> None:
    run = Run.of(start_runner())
    run.add(name, encode(model, PROMPTS[name]), max_tokens=40)
    run.finish()
    assert continued(model, start_runner, name, 8) == run.tokens[name]


def test_penalties_know_what_another_engine_drew(model: Model, start_runner: Callable[..., LlamaCppRunner]) -> None:
    run = Run.of(start_runner())
    sampling = SamplingParams(temperature=0.0, max_tokens=40, presence_penalty=1000.0, repeat_last_n=-1)
    drawn = encode(model, "One two three four five six")[1:]
    run.tokens["a"] += drawn
    run.engine.add(Request("a", encode(model, PROMPTS["code"]), sampling, output_token_ids=list(drawn)))
    run.finish()
    assert len(set(run.tokens["a"])) == len(run.tokens["a"])


def test_context_with_less_room_than_counted_fails_nobody(
    model: Model, start_runner: Callable[..., LlamaCppRunner]
) -> None:
    run = Run.of(start_runner(num_kv_cells=256), num_kv_cells=1024)
    prompts = {name: long_text(model, 90, seed=seed) for seed, name in enumerate("abcd")}
    requests = [run.add(name, prompt, max_tokens=12, source=name) for name, prompt in prompts.items()]
    run.step()
    assert run.step().result.out_of_room
    assert [r.status for r in requests].count(RequestStatus.PREEMPTED) == 1
    run.finish()
    assert run.ended == dict.fromkeys(("a", "b", "c", "d"), FinishReason.LENGTH)
    for request in requests:
        assert len(run.tokens[request.request_id]) == 12
        assert_agrees(model, request, run.tokens[request.request_id])


def test_lone_request_fills_the_real_context_and_ends(
    model: Model, start_runner: Callable[..., LlamaCppRunner]
) -> None:
    run = Run.of(start_runner(num_kv_cells=256), num_kv_cells=1024, max_model_len=1024)
    run.add("alone", encode(model, PROMPTS["long"])[:250], max_tokens=100)
    run.finish()
    assert run.ended == {"alone": FinishReason.LENGTH}
    assert len(run.tokens["alone"]) == 256 - 250 + 1, "the last needs no cell any more"


def test_aborted_request_leaves_its_sequence_empty(model: Model, start_runner: Callable[..., LlamaCppRunner]) -> None:
    run = Run.of(start_runner())
    for name in ("a", "b"):
        run.add(name, encode(model, PROMPTS["short"]), max_tokens=20)
    run.step()
    run.engine.abort("a")
    run.finish()
    assert all(not run.runner._sequences.positions(seq_id) for seq_id in range(8))
    assert len(run.tokens["b"]) == 20


def test_rows_for_nobody_leave_no_cell_and_change_no_text(
    model: Model, start_runner: Callable[..., LlamaCppRunner]
) -> None:
    run = Run.of(start_runner())
    run.runner._padding.padded = lambda num_rows: max(8, num_rows)  # type: ignore[method-assign]
    counts = []
    decode = run.runner._context.decode
    run.runner._context.decode = lambda batch: counts.append(batch.num_tokens) or decode(batch)  # type: ignore[method-assign,func-returns-value]
    requests = [run.add(name, encode(model, text), max_tokens=16) for name, text in list(PROMPTS.items())[:3]]
    run.finish()
    assert counts.count(8) >= 15
    assert not run.runner._context.positions(SCRATCH)
    for request in requests:
        assert_agrees(model, request, run.tokens[request.request_id])


def test_rows_for_nobody_are_left_out_where_there_is_no_room_for_them(
    model: Model, start_runner: Callable[..., LlamaCppRunner]
) -> None:
    runner = start_runner(num_kv_cells=256)
    runner._padding.padded = lambda num_rows: max(8, num_rows)  # type: ignore[method-assign]
    run = Run.of(runner, max_model_len=256)
    run.add("whole", long_text(model, 100, seed=1), max_tokens=156)
    run.finish()
    assert len(run.tokens["whole"]) == 156


def test_texts_agree_with_each_alone_with_everything_on(
    model: Model, start_runner: Callable[..., LlamaCppRunner]
) -> None:
    """Shared beginnings, sequences kept, evicted, saved and restored, parking, guesses; and too few cells for it."""
    runner = start_runner(num_kv_cells=768, max_num_seqs=3, num_cached_seqs=4, max_drafts=15)
    run = Run.of(
        runner,
        max_kept_cells=None,
        host_bytes=2**28,
        kv_bytes_per_token=runner.limits.kv_bytes_per_token,
        max_drafts=15,
        max_chunk_tokens=64,
    )
    common = long_text(model, 150)
    kinds: set[KVOpKind] = set()
    for number in range(12):
        beginning = common if number % 3 else long_text(model, 300, seed=number)
        prompt = [*beginning, *encode(model, f" {number}. The next numbers are 4, 5, 6, 4, 5, 6, 4, 5,")[1:]]
        run.add(str(number), prompt, max_tokens=24, source=f"s{number % 4}")
        for _ in range(6):
            kinds |= {op.kind for op in run.step().plan.kv_ops}
    while run.engine.has_work:
        kinds |= {op.kind for op in run.step().plan.kv_ops}
    assert kinds >= {KVOpKind.SHARE, KVOpKind.DROP}
    for request in run.requests:
        assert len(run.tokens[request.request_id]) == 24
        assert_agrees(model, request, run.tokens[request.request_id])


# ---- limits and loading -----------------------------------------------------------------------------


def test_model_length_is_that_of_the_file_as_far_as_the_cells_go(
    model: Model, start_runner: Callable[..., LlamaCppRunner]
) -> None:
    assert start_runner(num_kv_cells=512).limits.max_model_len == 512
    assert start_runner(num_kv_cells=512, max_model_len=300).limits.max_model_len == 300
    assert model.n_ctx_train == 32_768


def test_all_end_tokens_of_the_vocabulary_are_known(start_runner: Callable[..., LlamaCppRunner]) -> None:
    assert start_runner(num_kv_cells=256).limits.end_token_ids == {1, 106, 212}


def test_warm_up_leaves_nothing_behind(start_runner: Callable[..., LlamaCppRunner]) -> None:
    runner = start_runner(num_kv_cells=256)
    runner.warm_up()
    assert (runner._sequences.length(0), runner._sequences.positions(0)) == (0, range(0))


def test_broken_file_is_a_load_error(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(ModelLoadError, match=r"broken\.gguf"):
        load(create_engine_config(path), lambda fraction: None)


def test_impossible_context_is_a_load_error(model_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="context"):
        load(create_engine_config(model_path, kv_type="q8_0", flash_attention="off"), lambda fraction: None)


def test_device_is_never_quietly_another() -> None:
    assert resolve_device("cpu") == "cpu"
    if supports_gpu():
        assert resolve_device("auto") == resolve_device("cuda") == "cuda"
    else:
        assert resolve_device("auto") == "cpu"
        with pytest.raises(DeviceUnavailable, match="no GPU"):
            resolve_device("cuda")


def test_token_buffer_grows_and_keeps_its_tokens() -> None:
    buffer = TokenBuffer([1, 2, 3], room=1)
    for token_id in range(4, 100):
        buffer.append(token_id)
    assert len(buffer) == 99
    assert buffer.slice(0, 99).tolist() == list(range(1, 100))
    with pytest.raises(AssertionError, match="tokens 98\\+2 of 99"):
        buffer.slice(98, 2)


def test_long_prompt_beside_streams_is_a_pass_of_its_own_and_changes_nothing(model_path: Path) -> None:
    """The logits of every row are those of one pass for all, but for what batch composition moves."""

    def rows(*, splits: bool) -> list[Logits]:
        config = create_engine_config(model_path, num_kv_cells=2048)
        runner = load(config, lambda fraction: None)
        assert runner._splits, "a CPU with one pool of cells"
        runner._native_sampler = None  # the other one tells what it is given
        runner._splits = splits
        seen: list[Logits] = []
        draw = runner._sampler.draw

        def recording(logits: Logits, row: int, state: SamplerState, output_index: int) -> SampledToken:
            seen.append(logits[row].copy())
            return draw(logits, row, state, output_index)

        runner._sampler.draw = recording  # type: ignore[method-assign]
        prompts = [long_text(runner._model, 150, seed=i) for i in range(4)]
        sampling = SamplingParams(temperature=0.0, max_tokens=4)
        for i, prompt in enumerate(prompts):
            runner.add(Request(f"r{i}", prompt, sampling))
        for i, prompt in enumerate(prompts[:3]):
            list(runner.execute(StepPlan(chunks=[Chunk(f"r{i}", i, 0, len(prompt) - 1, 0)])).sampled)
        chunks = [Chunk(f"r{i}", i, len(prompt) - 1, 1, 1) for i, prompt in enumerate(prompts[:3])]
        chunks.insert(1, Chunk("r3", 3, 0, len(prompts[3]), 1))
        result = runner.execute(StepPlan(chunks=chunks))
        assert runner._batch.num_outputs == 4, "all at once, whichever pass their tokens are computed in"
        assert [len(tokens) for tokens in result.sampled] == [1] * 4
        assert result.num_computed == [1, len(prompts[3]), 1, 1]
        runner.close()
        return seen

    for together, apart in zip(rows(splits=False), rows(splits=True), strict=True):
        assert np.abs(together - apart).max() < 1.5


def test_compiled_draws_change_no_text(model: Model, start_runner: Callable[..., LlamaCppRunner]) -> None:
    wishes = [
        SamplingParams(seed=1, max_tokens=20),
        SamplingParams(seed=2, max_tokens=20, repeat_penalty=1.3, logit_bias={5: 3.0}, ignore_eos=True),
        SamplingParams(seed=3, max_tokens=20, typical_p=0.9, min_tokens=5),
        SamplingParams(seed=4, max_tokens=20, logprobs=1),
    ]

    def texts(*, are_compiled: bool) -> dict[str, list[int]]:
        runner = start_runner()
        if not are_compiled:
            runner._native_sampler = None
        run = Run.of(runner)
        for number, sampling in enumerate(wishes):
            run.engine.add(Request(f"r{number}", encode(model, PROMPTS["code"]), sampling, source=f"s{number}"))
        run.finish()
        return dict(run.tokens)

    assert texts(are_compiled=True) == texts(are_compiled=False)
