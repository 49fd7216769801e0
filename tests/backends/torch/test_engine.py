"""The real scheduler and engine on this backend: whatever was scheduled how, every text is the model's own."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from homeai.backends.torch.runner import TorchRunner
from homeai.clock import VirtualClock
from homeai.engine.engine import Engine
from homeai.request import FinishReason, Request, SampledToken, SamplingParams
from homeai.sampling.sampler import BatchSampler
from homeai.sampling.state import SamplerState
from homeai.scheduling.plan import KVOpKind
from tests.backends.torch.factories import VOCAB_SIZE, model_of, reference, start_runner, text
from tests.scheduling.factories import WEIGHTS, create_scheduler

DELTA = 1e-3  # a near-tie may fall the other way
NUM_CELLS = 320
MAX_STEPS = 3000


@dataclass
class House:
    """An engine on a runner, and what it said; checks after every step that both count the same."""

    runner: TorchRunner
    engine: Engine
    tokens: dict[str, list[SampledToken]] = field(default_factory=lambda: defaultdict(list))
    ends: Counter[str] = field(default_factory=Counter)
    requests: list[Request] = field(default_factory=list)
    ops: Counter[KVOpKind] = field(default_factory=Counter)
    num_drafts: int = 0

    @classmethod
    def of(cls, runner: TorchRunner, **config: object) -> House:
        limits = runner.limits
        for seq_id in range(limits.num_seqs):
            runner._tables.drop(seq_id)
        defaults: dict[str, object] = {
            "num_kv_cells": limits.num_kv_cells,
            "num_seqs": limits.num_seqs,
            "max_num_seqs": limits.max_num_seqs,
            "max_model_len": limits.max_model_len,
            "max_num_batched_tokens": 48,
            "max_chunk_tokens": 32,
            "end_token_ids": limits.end_token_ids,
            "max_kept_cells": None,
            "kv_bytes_per_token": limits.kv_bytes_per_token,
        }
        scheduler = create_scheduler(**defaults | config)
        scheduler.cache._is_worth_moving = lambda num_tokens, num_computed: True  # a tiny model computes faster
        return cls(runner, Engine(scheduler, runner, VirtualClock()))

    def add(self, request: Request) -> None:
        self.requests.append(request)
        self.engine.add(request)

    def step(self) -> None:
        step = self.engine.step()
        self.ops.update(op.kind for op in step.plan.kv_ops)
        self.num_drafts += step.result.num_draft_tokens
        for output in step.outputs:
            if output.token is not None:
                assert output.output_index == len(self.tokens[output.request_id])
                self.tokens[output.request_id].append(output.token)
            self.ends[output.request_id] += output.finish_reason is not None
        scheduler = self.engine.scheduler
        for request in scheduler.running:
            if not any(
                op.seq_id == scheduler._batch.sequences[request.request_id].seq_id for op in scheduler.cache.pending_ops
            ):
                length = self.runner._tables.length(scheduler._batch.sequences[request.request_id].seq_id)
                assert length == request.num_computed_tokens
        self.runner._tables.check()

    def finish(self) -> None:
        for _ in range(MAX_STEPS):
            if not self.engine.has_work:
                return
            self.step()
        raise AssertionError("no progress")

    def check(self, model: PreTrainedModel) -> None:
        for request in self.requests:
            drawn = [token.token_id for token in self.tokens[request.request_id]]
            if drawn:
                check_greedy(model, request.prompt_token_ids, drawn)


def check_greedy(model: PreTrainedModel, prompt: Sequence[int], drawn: Sequence[int]) -> None:
    """Each token is the likeliest one behind the text before it."""
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *drawn]])).logits[0, len(prompt) - 1 : -1].float().numpy()
    best, chosen = logits.max(1), logits[np.arange(len(drawn)), list(drawn)]
    assert (best - chosen).max() < DELTA


@pytest.fixture(scope="module")
def path(model_folder: Path) -> Path:
    return model_of("gemma3", model_folder)


@pytest.fixture(scope="module")
def model(path: Path) -> PreTrainedModel:
    return reference(path)


@pytest.fixture(scope="module", params=[True, False], ids=["swa_full", "window_only"])
def runner(request: pytest.FixtureRequest, path: Path) -> Iterator[TorchRunner]:
    runner = start_runner(
        path, swa_full=request.param, num_kv_cells=NUM_CELLS, num_cached_seqs=5, max_num_batched_tokens=48, max_drafts=3
    )
    yield runner
    runner.close()


def greedy(name: str, prompt: list[int], max_tokens: int, **fields: object) -> Request:
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return Request(name, prompt, sampling, **fields)  # type: ignore[arg-type]


ASKED = st.fixed_dictionaries(
    {
        "beginning": st.integers(0, 2),
        "num_shared": st.sampled_from([0, 16, 30, 47, 64, 100]),
        "num_own": st.integers(1, 40),
        "max_tokens": st.integers(1, 40),
        "fairness_class": st.sampled_from(sorted(WEIGHTS)),
        "at_step": st.integers(0, 40),
        "leaves_after": st.one_of(st.none(), st.integers(0, 30)),
        "cache_prompt": st.booleans(),
    }
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=st.lists(ASKED, min_size=1, max_size=9), host_bytes=st.sampled_from([0, 10**6]))
def test_every_text_is_the_models_own_whatever_happened_to_it(
    runner: TorchRunner, model: PreTrainedModel, asked: list[dict[str, object]], host_bytes: int
) -> None:
    house = House.of(runner, host_bytes=host_bytes)
    waiting = sorted(enumerate(asked), key=lambda pair: pair[1]["at_step"])  # type: ignore[arg-type, return-value]
    leaving: dict[int, list[str]] = defaultdict(list)
    for step in range(MAX_STEPS):
        while waiting and waiting[0][1]["at_step"] <= step:  # type: ignore[operator]
            number, one = waiting.pop(0)
            prompt = text(200, seed=int(str(one["beginning"])))[: int(str(one["num_shared"]))]
            prompt += text(int(str(one["num_own"])), seed=100 + number)
            fields = {key: one[key] for key in ("fairness_class", "cache_prompt")}
            house.add(greedy(f"r{number}", prompt, int(str(one["max_tokens"])), source=f"s{number % 3}", **fields))
            if one["leaves_after"] is not None:
                leaving[step + int(str(one["leaves_after"]))].append(f"r{number}")
        for name in leaving.pop(step, ()):
            house.ends[name] += house.engine.abort(name) is not None
        if not waiting and not house.engine.has_work:
            break
        house.step()
    assert all(house.ends[request.request_id] == 1 for request in house.requests)
    house.check(model)
    for seq_id in range(runner.limits.num_seqs):
        runner._tables.drop(seq_id)
    assert all(pool.num_free == pool.num_blocks for pool in runner._tables.pools)


def test_parked_to_host_memory_when_the_cache_is_full_and_brought_back(
    runner: TorchRunner, model: PreTrainedModel
) -> None:
    house = House.of(runner, host_bytes=10**7)
    for i in range(4):
        house.add(greedy(f"r{i}", text(70, seed=i), 60, source=f"s{i}"))
    house.finish()
    assert house.ops[KVOpKind.SAVE]
    assert house.ops[KVOpKind.RESTORE]
    assert {len(tokens) for tokens in house.tokens.values()} == {60}
    house.check(model)


def test_prefix_is_computed_once_for_all(runner: TorchRunner, model: PreTrainedModel) -> None:
    house = House.of(runner)
    shared = text(77, seed=5)
    for i in range(4):
        house.add(greedy(f"r{i}", shared + text(5, seed=10 + i), 8, source=f"s{i}"))
    house.finish()
    assert sum(request.num_cached_tokens for request in house.requests) >= 3 * 64
    house.check(model)


def test_guesses_change_no_text(runner: TorchRunner, model: PreTrainedModel) -> None:
    texts = []
    for max_drafts in (0, 3):
        house = House.of(runner, max_drafts=max_drafts)
        house.add(greedy("r", text(12, seed=3) * 4, 60))
        house.finish()
        house.check(model)
        texts.append([token.token_id for token in house.tokens["r"]])
        assert bool(house.num_drafts) == bool(max_drafts)
    assert texts[0] == texts[1]


def test_draws_are_those_of_the_sampler_by_seed_and_index(runner: TorchRunner, model: PreTrainedModel) -> None:
    house = House.of(runner)
    params = SamplingParams(seed=42, temperature=1.3, max_tokens=12, repeat_penalty=1.2, logprobs=1, ignore_eos=True)
    prompt = text(20, seed=8)
    house.add(Request("r", prompt, params))
    house.finish()
    state = SamplerState(params, prompt)
    sampler = BatchSampler(VOCAB_SIZE, runner.limits.end_token_ids)
    drawn: list[int] = []
    for index, token in enumerate(house.tokens["r"]):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + drawn])).logits[0, -1:].float().numpy()
        expected = sampler.draw(logits, 0, state, index)
        assert expected.token_id == token.token_id
        assert token.logprob == pytest.approx(expected.logprob, abs=1e-3)
        state.observe(token.token_id)
        drawn.append(token.token_id)


def test_request_ends_when_the_model_says_so(runner: TorchRunner) -> None:
    house = House.of(runner)
    params = SamplingParams(temperature=0.0, max_tokens=50, logit_bias={1: 1e4}, min_tokens=3)
    house.add(Request("r", text(20), params))
    house.finish()
    assert house.requests[0].finish_reason is FinishReason.STOP
    assert len(house.tokens["r"]) == 4
