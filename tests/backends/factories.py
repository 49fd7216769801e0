"""What the tests of the llama.cpp backend share: sequences and steps on the real model, texts, logits to compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from homeai.backends.llamacpp.binding import Model
from homeai.backends.llamacpp.context import Batch, Context, ContextConfig
from homeai.backends.llamacpp.runner import LlamaCppRunner
from homeai.backends.llamacpp.sequences import Layout, Sequences
from homeai.request import Request, SamplingParams
from homeai.scheduling.plan import Chunk, KVOp, KVOpResult, StepPlan, StepResult

Logits = npt.NDArray[np.float32]

CHUNK = 256
SENTENCES = (
    "The lighthouse keeper wrote down the weather of day {}: wind, clouds, waves and the birds that came by. ",
    "In room {} of the archive lay letters, maps and a broken clock that nobody had dared to throw away. ",
    "The cook counted {} plates, then the spoons, and put the good knives back where the children could not see. ",
)


def encode(model: Model, text: str) -> list[int]:
    return model.vocab.tokenize(text.encode(), add_special=True, parse_special=False)


def long_text(model: Model, num_tokens: int, *, seed: int = 0) -> list[int]:
    """A text that no other seed's begins with."""
    sentences = (SENTENCES[i % 3].format(97 * seed + i) for i in range(num_tokens // 10))
    return encode(model, f"Book {seed}. " + "".join(sentences))[:num_tokens]


@dataclass
class Cells:
    """A context and its sequences; one batch at a time."""

    context: Context
    sequences: Sequences

    @classmethod
    def open(
        cls,
        model: Model,
        *,
        num_kv_cells: int = 1024,
        max_num_seqs: int = 4,
        num_cached_seqs: int = 4,
        kv_layout: str = "unified",
        swa_full: bool = True,
        max_num_batched_tokens: int = CHUNK,
        has_twins: bool = True,
    ) -> Cells:
        layout = Layout.of(
            model,
            max_num_seqs=max_num_seqs,
            num_cached_seqs=num_cached_seqs,
            swa_full=swa_full,
            kv_layout=kv_layout,
        )
        if not has_twins:
            layout = replace(layout, n_swa=0)
        config = ContextConfig(
            num_kv_cells=num_kv_cells,
            num_ids=layout.num_ids,
            num_outputs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_ubatch_tokens=CHUNK,
            num_threads=1,
            swa_full=swa_full,
            is_partitioned=layout.is_partitioned,
        )
        context = Context(model, config)
        return cls(context, Sequences(context, layout))

    def decode(self, *pieces: tuple[int, list[int], bool]) -> int:
        """(sequence, its next tokens, whether logits of the last are wanted) of each piece. llama_decode's code."""
        batch = Batch(self.context.max_num_batched_tokens)
        ids = self.sequences.activate([seq_id for seq_id, _, _ in pieces])
        for (seq_id, tokens, wants_logits), piece_ids in zip(pieces, ids, strict=True):
            batch.add(piece_ids, self.sequences.length(seq_id), tokens, num_outputs=int(wants_logits))
        return self.sequences.decode(batch, [(seq_id, len(tokens)) for seq_id, tokens, _ in pieces])

    def extend(self, seq_id: int, tokens: list[int], *, chunk: int = CHUNK) -> Logits:
        """Chunk by chunk; the logits of the last token."""
        for start in range(0, len(tokens), chunk):
            piece = tokens[start : start + chunk]
            assert self.decode((seq_id, piece, start + len(piece) == len(tokens))) == 0
        return self.context.logits(1)[0].copy()

    def churn(self, model: Model, seq_id: int, *, num_tokens: int, num_times: int) -> None:
        """Neighbours that come and go."""
        for i in range(num_times):
            self.extend(seq_id, long_text(model, num_tokens, seed=100 + i))
            self.sequences.drop(seq_id)

    def check(self, *seq_ids: int) -> None:
        """llama.cpp holds exactly what the mirror says."""
        for seq_id in seq_ids:
            assert self.sequences.positions(seq_id) == range(self.sequences.length(seq_id)), f"sequence {seq_id}"

    def close(self) -> None:
        self.context.close()


def logits_alone(model: Model, *pieces: list[int]) -> Logits:
    """Of the last token, in a context of its own, computed piece by piece."""
    cells = Cells.open(model, num_kv_cells=2048, max_num_seqs=1, num_cached_seqs=0)
    for piece in pieces:
        row = cells.extend(0, piece)
    cells.close()
    return row


class Driver:
    """Hands a runner the plans that a scheduler would make, one request or a few, and keeps count of each."""

    def __init__(self, runner: LlamaCppRunner) -> None:
        self.runner = runner
        self.tokens: dict[str, list[int]] = {}
        self.num_computed: dict[str, int] = {}
        self.seq_ids: dict[str, int] = {}
        self.num_steps = self.num_drafts = 0

    def add(self, name: str, seq_id: int, prompt: list[int], *, start: int = 0, **sampling: object) -> None:
        """`start`: tokens that the sequence will hold by then."""
        defaults: dict[str, object] = {"temperature": 0.0, "max_tokens": 1000, "ignore_eos": True}
        params = SamplingParams(**defaults | sampling)  # type: ignore[arg-type]
        self.runner.add(Request(name, prompt, params))
        self.tokens[name] = list(prompt)
        self.num_computed[name] = start
        self.seq_ids[name] = seq_id

    def step(self, *names: str, ops: Sequence[KVOp] = (), num_drafts: int = 0) -> StepResult:
        """All that is missing of these requests, at most a chunk of each; counts and tokens as the result says."""
        chunks = []
        for name in names:
            start = self.num_computed[name]
            count = min(CHUNK // len(names), len(self.tokens[name]) - start)
            is_last = start + count == len(self.tokens[name])
            chunks.append(Chunk(name, self.seq_ids[name], start, count, int(is_last), num_drafts if is_last else 0))
        result = self.runner.execute(StepPlan(kv_ops=list(ops), chunks=chunks))
        sampled = [list(tokens) for tokens in result.sampled]
        for chunk, num_computed, drawn in zip(chunks, result.num_computed, sampled, strict=True):
            self.num_computed[chunk.request_id] += num_computed + max(0, len(drawn) - 1)
            self.tokens[chunk.request_id] += [token.token_id for token in drawn]
        self.num_steps += 1
        self.num_drafts += result.num_draft_tokens
        result.sampled = sampled
        return result

    def generate(self, name: str, num_tokens: int, *, num_drafts: int = 0) -> list[int]:
        """Steps until it has so many tokens more, or a few above that; what is in the cache is checked each time."""
        length = len(self.tokens[name])
        while len(self.tokens[name]) < length + num_tokens:
            self.step(name, num_drafts=num_drafts)
            self.check(name)
        return self.tokens[name][length : length + num_tokens]

    def check(self, *names: str) -> None:
        for name in names:
            assert self.runner._sequences.positions(self.seq_ids[name]) == range(self.num_computed[name])

    def ops(self, *ops: KVOp) -> list[KVOpResult]:
        return self.step(ops=ops).kv_op_results
