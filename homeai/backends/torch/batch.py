"""One step's tokens, laid out for the device: decode rows first, then the longer pieces, all in one flat batch.

Everything the forward pass needs to know is integers; they are written into one array, so that one copy brings them
to the device. Pure but for numpy; `layout.py` cuts the device's copy up again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from homeai.backends.torch.blocks import BLOCK_TOKENS
from homeai.backends.torch.tables import Group

Ints = npt.NDArray[np.int64]

WIDTH_RATIO: Final = 2  # rows whose contexts differ by more are not padded to one length


class Piece(NamedTuple):
    """Tokens of one sequence at positions `start` … ; of the last `num_outputs` of them the logits are wanted.

    `blocks`: per group the sequence's block table, with room for these tokens.
    """

    start: int
    token_ids: npt.NDArray[np.int32]
    num_outputs: int
    blocks: Sequence[Sequence[int]]

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


class Span(NamedTuple):
    """Queries [first, last) of the batch that attend together, and the blocks they look at: `num_rows` rows of
    `width` blocks each, at `offset` of a group's block list. One row: a piece of one sequence, whose first query is
    at position `start`; `num_rows` rows: one query each."""

    first: int
    last: int
    num_rows: int
    width: int
    offset: int
    start: int

    @property
    def is_decode(self) -> bool:
        return self.last - self.first == self.num_rows


class GroupLayout(NamedTuple):
    """Where a group's tokens go and what they look at.

    slots: [tokens] where in the group's cache each is written.
    blocks: block ids of all spans, one after the other (padding: block 0).
    begins: [pieces] position of the first token in a piece's blocks.
    widths: [pieces] how many blocks of its own each looks at.
    """

    slots: Ints
    blocks: Ints
    begins: Ints
    widths: Ints
    spans: tuple[Span, ...]


class StepBatch(NamedTuple):
    """`outputs`: [rows] which of the batch's tokens have logits, in the order of the pieces as they were given;
    `first_output`: each piece's first row. `starts`, `counts`: of the pieces as they lie in the batch, position of the
    first token and number of tokens. `num_decodes`: pieces of one token; they come first, longest context last."""

    token_ids: Ints
    positions: Ints
    outputs: Ints
    first_output: tuple[int, ...]
    groups: tuple[GroupLayout, ...]
    starts: Ints
    counts: Ints
    num_decodes: int


def step_batch(pieces: Sequence[Piece], groups: Sequence[Group], *, is_padded: bool = True) -> StepBatch:
    """At least one piece. `is_padded`: rows that attend together have equally many blocks; else each piece its own."""
    singles = sorted((i for i, piece in enumerate(pieces) if len(piece.token_ids) == 1), key=lambda i: pieces[i].start)
    order = singles + [i for i, piece in enumerate(pieces) if len(piece.token_ids) > 1]
    ordered = [pieces[i] for i in order]
    num_tokens = sum(len(piece.token_ids) for piece in pieces)
    token_ids, positions = np.empty(num_tokens, np.int64), np.empty(num_tokens, np.int64)
    last_token = [0] * len(pieces)  # where each piece's tokens end
    first = 0
    for number, piece in zip(order, ordered, strict=True):
        last = first + len(piece.token_ids)
        token_ids[first:last] = piece.token_ids
        positions[first:last] = np.arange(piece.start, piece.end)
        last_token[number] = last
        first = last
    outputs: list[int] = []
    first_output: list[int] = []
    for piece, last in zip(pieces, last_token, strict=True):
        first_output.append(len(outputs))
        outputs.extend(range(last - piece.num_outputs, last))
    return StepBatch(
        token_ids,
        positions,
        np.array(outputs, np.int64),
        tuple(first_output),
        tuple(_group_layout(ordered, len(singles), number, group, is_padded) for number, group in enumerate(groups)),
        np.array([piece.start for piece in ordered], np.int64),
        np.array([len(piece.token_ids) for piece in ordered], np.int64),
        len(singles),
    )


def _group_layout(pieces: Sequence[Piece], num_decodes: int, number: int, group: Group, is_padded: bool) -> GroupLayout:
    slots: list[Ints] = []
    if num_decodes:
        ends = [(piece.blocks[number][piece.start // BLOCK_TOKENS], piece.start) for piece in pieces[:num_decodes]]
        slots.append(np.array([block * BLOCK_TOKENS + start % BLOCK_TOKENS for block, start in ends], np.int64))
    for piece in pieces[num_decodes:]:
        first = piece.start // BLOCK_TOKENS
        table = np.array(piece.blocks[number][first:], np.int64)
        places = np.arange(piece.start, piece.end)
        slots.append(table[places // BLOCK_TOKENS - first] * BLOCK_TOKENS + places % BLOCK_TOKENS)
    spans: list[Span] = []
    blocks: list[int] = []
    begins: list[int] = []
    seen = [_blocks_seen(piece, number, group) for piece in pieces]
    widths = [len(row) for row in seen]
    runs = _alike(widths[:num_decodes]) if is_padded else [(i, i + 1) for i in range(num_decodes)]
    for first, last in runs:
        width = max(widths[first:last])
        spans.append(Span(first, last, last - first, width, len(blocks), -1))
        for piece, row in zip(pieces[first:last], seen[first:last], strict=True):
            blocks += row
            blocks += [0] * (width - len(row))
            begins.append(group.first_seen(piece.start) * BLOCK_TOKENS)
    first = num_decodes
    for piece, row in zip(pieces[num_decodes:], seen[num_decodes:], strict=True):
        last = first + len(piece.token_ids)
        spans.append(Span(first, last, 1, len(row), len(blocks), piece.start))
        blocks += row
        begins.append(group.first_seen(piece.start) * BLOCK_TOKENS)
        first = last
    return GroupLayout(
        np.concatenate(slots),
        np.array(blocks, np.int64),
        np.array(begins, np.int64),
        np.array(widths, np.int64),
        tuple(spans),
    )


def _blocks_seen(piece: Piece, number: int, group: Group) -> Sequence[int]:
    """Those that its first token looks at, and all behind them. A hole among them would be a mistake of the tables."""
    row = piece.blocks[number][group.first_seen(piece.start) : (piece.end - 1) // BLOCK_TOKENS + 1]
    assert not row or row[0] >= 0, f"tokens at {piece.start} look at blocks that are gone"
    return row


def _alike(widths: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of rows, whose widths ascend, that are worth padding to one width."""
    runs: list[tuple[int, int]] = []
    first = 0
    for i in range(1, len(widths) + 1):
        if i == len(widths) or widths[i] > WIDTH_RATIO * max(4, widths[first]):
            runs.append((first, i))
            first = i
    return runs
