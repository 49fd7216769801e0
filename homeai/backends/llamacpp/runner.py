"""Runs step plans on llama.cpp: one `llama_decode` per step for all sequences, then one sampling pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from homeai.backends.llamacpp.binding import Batch, Context, Model, supports_gpu
from homeai.engine.runner import RunnerLimits
from homeai.errors import ModelLoadError
from homeai.messages import EngineConfig
from homeai.request import Request, SampledToken, longest_request
from homeai.sampling.sampler import BatchSampler
from homeai.sampling.state import SamplerState
from homeai.scheduling.plan import Chunk, KVOpKind, StepPlan, StepResult

NO_ROOM = 1
ALL_LAYERS = 9999
MAX_UBATCH_TOKENS = {"cpu": 256, "cuda": 512}  # tokens computed at a time: on a CPU 3 % faster than 512


class TokenBuffer:
    """A request's tokens, prompt and output, in an array that grows by doubling."""

    __slots__ = ("_array", "_length")

    def __init__(self, tokens: list[int], room: int) -> None:
        self._array = np.empty(len(tokens) + room, np.int32)
        self._array[: len(tokens)] = tokens
        self._length = len(tokens)

    def append(self, token_id: int) -> None:
        if self._length == len(self._array):
            self._array = np.resize(self._array, 2 * self._length)
        self._array[self._length] = token_id
        self._length += 1

    def slice(self, start: int, count: int) -> npt.NDArray[np.int32]:
        assert start + count <= self._length, f"tokens {start}+{count} of {self._length}"
        return self._array[start : start + count]

    def __len__(self) -> int:
        return self._length


class _Live:
    """What the runner keeps of one request."""

    __slots__ = ("num_prompt_tokens", "sampler", "tokens")

    def __init__(self, request: Request) -> None:
        self.num_prompt_tokens = request.num_prompt_tokens
        self.tokens = TokenBuffer(request.prompt_token_ids, room=64)
        self.sampler = SamplerState(request.sampling, request.prompt_token_ids)


class LlamaCppRunner:
    """The `ModelRunner` of GGUF models."""

    def __init__(self, model: Model, context: Context, limits: RunnerLimits, *, device: str, kv_type: str) -> None:
        self.device = device
        self.model_bytes = model.size_bytes
        self.kv_bytes = limits.num_kv_cells * model.kv_bytes_per_token(kv_type)
        self._model = model
        self._context = context
        self._limits = limits
        self._batch = Batch(limits.max_num_batched_tokens)
        self._sampler = BatchSampler(model.vocab.n_tokens, limits.end_token_ids)
        self._live: dict[str, _Live] = {}

    @property
    def limits(self) -> RunnerLimits:
        return self._limits

    def warm_up(self) -> None:
        """Touch every weight once, so that the first request does not wait for the disk."""
        self._batch.clear()
        self._batch.add(0, 0, [max(self._model.vocab.bos, 0)], wants_logits=True)
        code = self._context.decode(self._batch, [(0, 1)])
        if code != 0:
            raise RuntimeError(f"the first llama_decode failed with code {code}: is there enough memory?")
        self._context.drop(0)

    def add(self, request: Request) -> None:
        self._live[request.request_id] = _Live(request)

    def remove(self, request_id: str) -> None:
        self._live.pop(request_id, None)

    def execute(self, plan: StepPlan) -> StepResult:
        for op in plan.kv_ops:
            assert op.kind is KVOpKind.DROP, f"llama.cpp runner has no {op.kind}"
            self._context.drop(op.seq_id)
        if not plan.chunks:
            return StepResult([], [], 0.0)
        self._fill(plan.chunks)
        started_at = time.perf_counter()
        code = self._context.decode(self._batch, [(c.seq_id, c.num_tokens) for c in plan.chunks])
        self._context.synchronize()  # a GPU is not done when llama_decode returns
        forward_s = time.perf_counter() - started_at
        if code == NO_ROOM:
            return StepResult([0] * len(plan.chunks), [None] * len(plan.chunks), forward_s, out_of_room=True)
        if code != 0:
            raise RuntimeError(f"llama_decode failed with code {code} on {self._batch.num_tokens} tokens")
        return StepResult([c.num_tokens for c in plan.chunks], self._draw(plan.chunks), forward_s)

    def _fill(self, chunks: list[Chunk]) -> None:
        self._batch.clear()
        for chunk in chunks:
            length = self._context.length(chunk.seq_id)
            assert chunk.start == length, f"sequence {chunk.seq_id} holds {length} tokens, not {chunk.start}"
            tokens = self._live[chunk.request_id].tokens.slice(chunk.start, chunk.num_tokens)
            self._batch.add(chunk.seq_id, chunk.start, tokens, wants_logits=chunk.num_outputs > 0)

    def _draw(self, chunks: list[Chunk]) -> Iterator[SampledToken | None]:
        """Each chunk's token when it is asked for, out of the logits of the last decode."""
        rows = [self._live[c.request_id] for c in chunks if c.num_outputs]
        indices = [len(row.tokens) - row.num_prompt_tokens for row in rows]
        samplers = [row.sampler for row in rows]
        drawn = self._sampler.draw(self._context.logits(len(rows)), samplers, indices) if rows else iter(())
        for chunk in chunks:
            if not chunk.num_outputs:
                yield None
                continue
            token = next(drawn)
            live = self._live[chunk.request_id]
            live.tokens.append(token.token_id)
            live.sampler.observe(token.token_id)
            yield token

    def close(self) -> None:
        self._context.close()
        self._model.close()


def load(config: EngineConfig, on_progress: Callable[[float], None]) -> LlamaCppRunner:
    """Read the weights and make the context. Raises `ModelLoadError`; anything it took is freed then."""
    device = resolve_device(config.device)
    layers = 0 if device == "cpu" else (config.n_gpu_layers if config.n_gpu_layers >= 0 else ALL_LAYERS)
    model = Model(Path(config.model_path), n_gpu_layers=layers, on_progress=on_progress)
    try:
        max_model_len = longest_request(config.max_model_len, model.n_ctx_train, config.num_kv_cells)
        limits = RunnerLimits(
            num_kv_cells=config.num_kv_cells,
            max_num_seqs=config.max_num_seqs,
            # without chunking one whole prompt must fit a step, whatever the budget
            max_num_batched_tokens=config.max_num_batched_tokens + (0 if config.chunked_prefill else max_model_len),
            max_model_len=max_model_len,
            end_token_ids=model.vocab.end_token_ids(),
        )
        context = Context(
            model,
            num_kv_cells=limits.num_kv_cells,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_ubatch_tokens=MAX_UBATCH_TOKENS[device],
            num_threads=config.num_threads,
            flash_attention=config.flash_attention,
            swa_full=config.swa_full,
            kv_type=config.kv_type,
        )
    except BaseException:
        model.close()
        raise
    return LlamaCppRunner(model, context, limits, device=device, kv_type=config.kv_type)


def resolve_device(wanted: str) -> str:
    """`auto` is decided once, here, by what this build sees; `cuda` without a GPU is an error, never a slow CPU run."""
    if wanted == "cpu":
        return "cpu"
    if supports_gpu():
        return "cuda"
    if wanted == "cuda":
        raise ModelLoadError(
            "model.device is cuda, but llama.cpp sees no GPU (was it built with CUDA? is the driver up?)"
        )
    return "cpu"
