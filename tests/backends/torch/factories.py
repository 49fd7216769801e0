"""Tiny random models of several families, runners on them, and steps to hand these."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
)

from homeai.backends.torch.load import load
from homeai.backends.torch.runner import TorchRunner
from homeai.request import Request, SamplingParams
from homeai.scheduling.plan import Chunk, KVOp, StepPlan, StepResult
from tests.engine.factories import create_engine_config

VOCAB_SIZE: Final = 160
WINDOW: Final = 24
SIZES: Final = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
LAYER_TYPES: Final = ["sliding_attention", "full_attention"] * 2
FAMILIES: Final = ("llama", "qwen3", "gemma3", "mistral")
CAPPED: Final = "gemma2"
WITH_SINKS: Final = "gpt_oss"
TOLERANCE: Final = 1e-4


def family_config(family: str) -> PreTrainedConfig:
    match family:
        case "llama":
            return LlamaConfig(**SIZES)
        case "qwen3":
            return Qwen3Config(**SIZES)
        case "gemma3":
            return Gemma3TextConfig(**SIZES, sliding_window=WINDOW, layer_types=LAYER_TYPES, query_pre_attn_scalar=16)
        case "mistral":
            return MistralConfig(**SIZES, sliding_window=WINDOW)
        case "gemma2":  # caps its logits
            caps = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 30.0}
            return Gemma2Config(
                **SIZES, sliding_window=WINDOW, layer_types=LAYER_TYPES, query_pre_attn_scalar=16, **caps
            )
        case "gpt_oss":  # has sinks, and experts
            return GptOssConfig(
                **SIZES, sliding_window=WINDOW, layer_types=LAYER_TYPES, num_local_experts=4, num_experts_per_tok=2
            )
    raise ValueError(family)


def model_of(family: str, folder: Path) -> Path:
    """The folder of a model in float32 that is the same in every run."""
    path = folder / family
    if not path.exists():
        config = family_config(family)
        torch.manual_seed(sum(family.encode()))
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():  # else the logits of a fresh model hardly differ
                parameter.normal_(std=0.3 if parameter.ndim > 1 else 0.1)
        model.save_pretrained(path)
        words = ["<s>", "</s>", "<pad>", "\n", *map(chr, range(32, 127))]
        words += [f"<unused{i}>" for i in range(VOCAB_SIZE - len(words))]
        tokenizer = Tokenizer(BPE({word: i for i, word in enumerate(words)}, []))
        tokenizer.add_special_tokens(words[:3])
        tokenizer.save(str(path / "tokenizer.json"))
    return path


def start_runner(path: Path, **changes: object) -> TorchRunner:
    defaults: dict[str, object] = {"num_kv_cells": 1024, "max_num_seqs": 4, "num_cached_seqs": 4}
    return load(path, create_engine_config(path, **defaults | changes), lambda fraction: None)


@functools.cache
def reference(path: Path) -> PreTrainedModel:
    """The same model as transformers computes it, with nothing of ours in it."""
    return AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager")


def reference_logits(path: Path, token_ids: Sequence[int]) -> np.ndarray:
    """[tokens, vocabulary], by one forward pass over the whole text."""
    with torch.inference_mode():
        return reference(path)(torch.tensor([list(token_ids)])).logits[0].float().numpy()


def text(num_tokens: int, seed: int = 0) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(3, VOCAB_SIZE) for _ in range(num_tokens)]


def token_of(character: str) -> int:
    return ord(character) - 32 + 4


class Driver:
    """Hands a runner plans as a scheduler would, with the text given, and keeps the logits of every output."""

    def __init__(self, runner: TorchRunner) -> None:
        """Whatever the runner held is dropped."""
        for seq_id in range(runner.limits.num_seqs):
            runner._tables.drop(seq_id)
        self.runner = runner
        self.texts: dict[str, list[int]] = {}
        self.num_computed: dict[str, int] = {}
        self.seq_ids: dict[str, int] = {}
        self.logits: dict[str, dict[int, np.ndarray]] = {}  # of a request, by position

    def add(self, name: str, seq_id: int, token_ids: list[int], *, start: int = 0) -> None:
        """`token_ids`: all that it will ever compute. `start`: tokens that the sequence will hold by then."""
        self.runner.add(Request(name, token_ids, SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)))
        self.texts[name] = token_ids
        self.num_computed[name] = start
        self.seq_ids[name] = seq_id
        self.logits.setdefault(name, {})

    def step(self, *counts: tuple[str, int], ops: Sequence[KVOp] = ()) -> StepResult:
        """So many tokens more of each request; the logits of the last ones are kept."""
        chunks = [Chunk(name, self.seq_ids[name], self.num_computed[name], count, 1) for name, count in counts]
        seen: list[np.ndarray] = []
        forward = self.runner._model.forward

        def noting(*args: object) -> torch.Tensor:
            logits = forward(*args)  # type: ignore[arg-type]
            seen.append(logits.numpy().copy())
            return logits

        self.runner._model.forward = noting  # type: ignore[assignment, method-assign]
        try:
            result = self.runner.execute(StepPlan(kv_ops=list(ops), chunks=chunks))
        finally:
            del self.runner._model.forward
        rows = iter(seen[0]) if seen else iter(())
        for (name, _), num_computed in zip(counts, result.num_computed, strict=True):
            self.num_computed[name] += num_computed
            if num_computed:
                self.logits[name][self.num_computed[name] - 1] = next(rows)
        self.runner._tables.check()
        return result

    def check(self, path: Path, *names: str) -> None:
        """All logits of these requests are those of transformers."""
        for name in names:
            expected = reference_logits(path, self.texts[name])
            for position, row in self.logits[name].items():
                worst = np.abs(row - expected[position]).max()
                assert worst < TOLERANCE, f"{name} at {position}: {worst}"
