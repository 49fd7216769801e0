"""What the runner does beside computing: grammars, draws on the device, running out of room, what its limits say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from homeai.backends.torch.device_sampler import DeviceSampler
from homeai.backends.torch.runner import TorchRunner
from homeai.clock import VirtualClock
from homeai.engine.engine import Engine
from homeai.errors import BrokenLogits, DeviceUnavailable, GrammarFailed, ModelLoadError
from homeai.request import Grammar, Request, SamplingParams
from homeai.scheduling.plan import Chunk, KVOp, KVOpKind, StepPlan
from tests.backends.torch.factories import VOCAB_SIZE, Driver, model_of, start_runner, text, token_of
from tests.scheduling.factories import create_scheduler


@pytest.fixture
def path(model_folder: Path) -> Path:
    return model_of("llama", model_folder)


def on_device(runner: TorchRunner) -> TorchRunner:
    """As on a GPU: tokens are drawn by the device's sampler."""
    ends = runner.limits.end_token_ids
    runner._device_sampler = DeviceSampler(VOCAB_SIZE, ends, torch.device("cpu"))
    return runner


def texts_of(runner: TorchRunner, *params: SamplingParams) -> list[list[int]]:
    """What requests with these parameters write, all at once."""
    limits = runner.limits
    scheduler = create_scheduler(
        num_kv_cells=limits.num_kv_cells, num_seqs=limits.num_seqs, max_num_seqs=4, end_token_ids=limits.end_token_ids
    )
    engine = Engine(scheduler, runner, VirtualClock())
    drawn: dict[str, list[int]] = {}
    for i, one in enumerate(params):
        drawn[f"r{i}"] = []
        engine.add(Request(f"r{i}", text(20, seed=i), one))
    while engine.has_work:
        step = engine.step()
        assert not step.result.failed, step.result.failed
        for output in step.outputs:
            if output.token is not None:
                drawn[output.request_id].append(output.token.token_id)
    return list(drawn.values())


MIXED = (
    SamplingParams(seed=1, max_tokens=20, ignore_eos=True),
    SamplingParams(seed=2, temperature=1.2, top_k=0, repeat_penalty=1.3, max_tokens=20, min_tokens=10),
    SamplingParams(seed=3, temperature=2.0, typical_p=0.9, logprobs=2, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=0.0, logit_bias={5: 20.0}, frequency_penalty=1.0, max_tokens=20, ignore_eos=True),
)


def test_texts_are_the_same_whoever_draws(path: Path) -> None:
    assert texts_of(on_device(start_runner(path)), *MIXED) == texts_of(start_runner(path), *MIXED)


@pytest.mark.parametrize("draws_on_device", [False, True])
def test_grammar_is_followed_and_its_text_ends(path: Path, draws_on_device: bool) -> None:
    runner = on_device(start_runner(path)) if draws_on_device else start_runner(path)
    grammar = Grammar('start: "a" ("b" | "c") "d"')
    plain = SamplingParams(seed=4, temperature=1.5, max_tokens=8, ignore_eos=True)
    (guided, free) = texts_of(runner, SamplingParams(seed=7, temperature=1.5, max_tokens=8, grammar=grammar), plain)
    assert guided in ([*map(token_of, "abd"), 1], [*map(token_of, "acd"), 1])
    assert len(free) == 8


def test_grammar_that_cannot_be_compiled_fails_its_request_alone(path: Path) -> None:
    runner = start_runner(path)
    with pytest.raises(GrammarFailed):
        runner.add(Request("r", [5], SamplingParams(grammar=Grammar("start: nothing"))))


def test_out_of_room_is_a_result_and_changes_nothing(path: Path) -> None:
    driver = Driver(start_runner(path, num_kv_cells=256, max_num_seqs=2, num_cached_seqs=0))
    driver.add("a", 0, text(280, seed=1))
    driver.add("b", 1, text(60, seed=2))
    driver.step(("a", 200), ("b", 20))
    num_free = driver.runner._tables.pools[0].num_free
    result = driver.step(("a", 80), ("b", 40))
    assert result.out_of_room
    assert (result.num_computed, list(result.sampled)) == ([0, 0], [(), ()])
    assert driver.runner._tables.pools[0].num_free == num_free
    driver.step(("b", 1))
    driver.check(path, "a", "b")


def test_chunk_of_a_failed_restore_is_not_computed_and_the_others_are(path: Path) -> None:
    driver = Driver(start_runner(path))
    driver.add("a", 0, text(60, seed=1))
    driver.add("b", 1, text(60, seed=2), start=50)
    driver.step(("a", 30))
    result = driver.step(("b", 10), ("a", 1), ops=[KVOp(KVOpKind.RESTORE, 1, 7, 50)])
    assert [done.ok for done in result.kv_op_results] == [False]
    assert result.num_computed == [0, 1]
    driver.check(path, "a")


def test_restoring_what_lies_on_the_device_still_moves_nothing(path: Path) -> None:
    driver = Driver(start_runner(path))
    driver.add("a", 0, text(80, seed=1))
    driver.step(("a", 48))
    saved, _ = driver.step(ops=[KVOp(KVOpKind.SAVE, 0, 7, 48), KVOp(KVOpKind.DROP, 0)]).kv_op_results
    assert saved.num_bytes == 48 * driver.runner.limits.kv_bytes_per_token
    (restored,) = driver.step(ops=[KVOp(KVOpKind.RESTORE, 0, 7, 48)]).kv_op_results
    assert (restored.ok, restored.num_bytes) == (True, 0)
    driver.step(("a", 20))
    driver.check(path, "a")


def test_chunk_that_does_not_follow_what_is_there_is_a_bug_and_said(path: Path) -> None:
    driver = Driver(start_runner(path))
    driver.add("a", 0, text(60))
    with pytest.raises(AssertionError, match="holds 0 tokens, not 5"):
        driver.runner.execute(StepPlan(chunks=[Chunk("a", 0, 5, 3, 1)]))


def test_broken_logits_end_the_engine(path: Path) -> None:
    for runner in (start_runner(path), on_device(start_runner(path))):
        with torch.no_grad():
            runner._model._model.get_output_embeddings().weight.fill_(float("nan"))
        with pytest.raises(BrokenLogits):
            texts_of(runner, SamplingParams(max_tokens=3))


def test_limits_say_what_the_cache_holds(path: Path) -> None:
    runner = start_runner(path, num_kv_cells=512, max_num_seqs=3, num_cached_seqs=5, max_drafts=4, max_model_len=300)
    limits = runner.limits
    assert (limits.num_kv_cells, limits.max_num_seqs, limits.num_seqs) == (512, 3, 8)
    assert (limits.max_model_len, limits.max_drafts, limits.can_share, limits.is_partitioned) == (300, 4, True, False)
    assert limits.kv_bytes_per_token == 4 * 2 * 2 * 16 * 4
    assert limits.end_token_ids == {1}
    assert runner.kv_bytes >= 512 * limits.kv_bytes_per_token


def test_layers_with_a_window_take_only_the_room_that_it_needs(model_folder: Path) -> None:
    path = model_of("gemma3", model_folder)
    sizes = {"num_kv_cells": 8192, "max_num_batched_tokens": 64}
    whole, windows = (start_runner(path, swa_full=swa_full, **sizes) for swa_full in (True, False))
    assert windows.limits.num_kv_cells == whole.limits.num_kv_cells
    assert windows.kv_bytes < 0.6 * whole.kv_bytes


def test_gpu_that_is_not_there_is_never_replaced_by_the_cpu(path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(DeviceUnavailable, match="torch sees no GPU"):
        start_runner(path, device="cuda")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            '{"model_type": "llama", "vocab_size": 160, "layer_types": ["mamba"], "num_hidden_layers": 1}',
            "linear_attention",
        ),
        ('{"model_type": "no-such-model"}', "no-such-model"),
        ("{", "JSON"),
    ],
)
def test_folder_that_cannot_be_loaded_says_why(path: Path, tmp_path: Path, config: str, reason: str) -> None:
    for file in path.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ModelLoadError, match=reason):
        start_runner(tmp_path)
