"""Block tables under random operations: blocks are conserved, and every sequence's blocks hold its own tokens."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from homeai.backends.shared.tokens import TokenBuffer
from homeai.backends.torch.blocks import BLOCK_TOKENS
from homeai.backends.torch.sizing import Demand, GroupSize, cache_size, largest_cells
from homeai.backends.torch.tables import HOLE, BlockTables, Copy, Group

NUM_SEQS = 4
WINDOW = 40
NUM_BLOCKS = 24
SLACK = 3


class Tables(RuleBasedStateMachine):
    """`cells`: what a device would hold, token by token; `texts`: what each sequence should hold."""

    @initialize(keeps_all=st.booleans())
    def start(self, keeps_all: bool) -> None:
        groups = [Group(NUM_BLOCKS), Group(NUM_BLOCKS, WINDOW, keeps_all)]
        self.tables = BlockTables(groups, NUM_SEQS, SLACK)
        self.cells: list[dict[int, list[int]]] = [{}, {}]
        self.texts: list[list[int]] = [[] for _ in range(NUM_SEQS)]
        self.saved: tuple[list[int], list[bytes], list[list[list[int] | None]]] | None = None
        self.next_token = 0

    seqs = st.integers(0, NUM_SEQS - 1)

    @rule(seq=seqs, count=st.integers(1, 50), repeats=st.booleans())
    def extend(self, seq: int, count: int, repeats: bool) -> None:
        if not self.tables.has_room([(seq, count)]):
            return
        first = 0 if repeats else self.next_token  # others compute the same tokens side by side
        self.next_token += count
        self.copy(self.tables.extend(seq, count))
        for offset in range(count):
            self.write(seq, first + offset)
        buffer = TokenBuffer(self.texts[seq], 0)
        self.tables.settle(seq, buffer)

    def write(self, seq: int, token: int) -> None:
        position = len(self.texts[seq])
        for group, cells in enumerate(self.cells):
            block = self.tables.blocks(seq, group)[position // BLOCK_TOKENS]
            assert self.tables.pools[group].num_refs(block) == 1, "whoever writes is alone"
            content = cells.setdefault(block, [-1] * BLOCK_TOKENS)
            content[position % BLOCK_TOKENS] = token
        self.texts[seq].append(token)

    def copy(self, copies: list[Copy]) -> None:
        for group, source, target in copies:
            self.cells[group][target] = list(self.cells[group][source])

    @rule(seq=seqs)
    def drop(self, seq: int) -> None:
        self.tables.drop(seq)
        self.texts[seq] = []

    @rule(seq=seqs, part=st.floats(0, 1))
    def truncate(self, seq: int, part: float) -> None:
        length = int(part * len(self.texts[seq]))
        self.texts[seq] = self.texts[seq][:length] if self.tables.truncate(seq, length) else []

    @rule(seq=seqs, back=st.integers(1, SLACK))
    def take_guesses_back(self, seq: int, back: int) -> None:
        length = max(0, len(self.texts[seq]) - back)
        assert self.tables.truncate(seq, length)
        self.texts[seq] = self.texts[seq][:length]

    @rule(source=seqs, other=seqs, part=st.floats(0.1, 1))
    def share(self, source: int, other: int, part: float) -> None:
        length = int(part * len(self.texts[source]))
        if source == other or self.texts[other] or not length:
            return
        if self.tables.share(source, other, length):
            self.texts[other] = self.texts[source][:length]

    @rule(seq=seqs)
    def save(self, seq: int) -> None:
        if self.texts[seq]:
            blocks = [
                [None if block == HOLE else list(self.cells[group][block]) for block in self.tables.blocks(seq, group)]
                for group in range(2)
            ]
            self.saved = list(self.texts[seq]), self.tables.keys(seq)[:], blocks

    @precondition(lambda self: self.saved is not None)
    @rule(seq=seqs)
    def restore(self, seq: int) -> None:
        if self.texts[seq]:
            return
        text, keys, blocks = self.saved
        present = [[content is not None for content in group] for group in blocks]
        copies = self.tables.place(seq, len(text), keys, present)
        if copies is None:
            return
        for group, index, block in copies:
            self.cells[group][block] = list(blocks[group][index])
        self.texts[seq] = list(text)

    @invariant()
    def blocks_are_conserved(self) -> None:
        if hasattr(self, "tables"):
            self.tables.check()

    @invariant()
    def every_sequence_holds_its_own_tokens(self) -> None:
        for seq, text in enumerate(getattr(self, "texts", ())):
            assert self.tables.length(seq) == len(text)
            for group, cells in enumerate(self.cells):
                blocks = self.tables.blocks(seq, group)
                first_seen = self.tables.groups[group].first_seen(len(text))
                for index, block in enumerate(blocks):
                    assert block != HOLE or index < first_seen
                    tokens = text[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS]
                    assert block == HOLE or cells[block][: len(tokens)] == tokens


Tables.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTables = Tables.TestCase


def demand(num_cells: int, num_seqs: int) -> Demand:
    return Demand(num_cells, num_seqs, max_num_batched_tokens=64, slack=SLACK)


@settings(max_examples=200, deadline=None)
@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=8), shared=st.lists(st.integers(0, 60), min_size=8))
def test_promised_cells_are_there_however_sequences_part(lengths: list[int], shared: list[int]) -> None:
    """Each begins with a part of the one before it, and what the scheduler counts is exactly full."""
    shared = [0, *(min(part, a, b) for part, a, b in zip(shared, lengths, lengths[1:], strict=False))]
    num_cells = sum(length - part for length, part in zip(lengths, shared, strict=False))
    (group,) = cache_size([GroupSize(1, 0, keeps_all=True)], demand(num_cells, len(lengths))).groups
    tables = BlockTables([group], len(lengths))
    for seq, (length, part) in enumerate(zip(lengths, shared, strict=False)):
        if part:
            assert tables.share(seq - 1, seq, part)
        if length > part:
            assert tables.has_room([(seq, length - part)])
            tables.extend(seq, length - part)
    tables.check()


@given(num_bytes=st.integers(0, 10_000_000), num_cells=st.integers(0, 100_000), num_seqs=st.integers(1, 40))
def test_largest_cache_fits_and_one_block_more_does_not(num_bytes: int, num_cells: int, num_seqs: int) -> None:
    sizes = [GroupSize(500, 0, keeps_all=True), GroupSize(700, 32, keeps_all=False)]
    wanted = demand(num_cells, num_seqs)
    cells = largest_cells(sizes, wanted, num_bytes)
    if cells:
        assert cache_size(sizes, demand(cells, num_seqs)).num_bytes <= num_bytes
    if cells and cells != num_cells:
        assert cache_size(sizes, demand(cells + BLOCK_TOKENS, num_seqs)).num_bytes > num_bytes
