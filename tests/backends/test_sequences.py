"""What sequences hold: that our mirror and llama.cpp agree, and that nothing in the cache is lost or mixed up.

Logits vary a little with where cells lie (0.8 to 1.2 were seen); a context that lost some of its text is off by 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from homeai.backends.llamacpp.binding import Model
from homeai.backends.llamacpp.sequences import Layout
from homeai.errors import ModelLoadError
from tests.backends.factories import Cells, Logits, encode, logits_alone, long_text

SAME, OTHER = 2.0, 3.0
TEXTS = [
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return",
    "Zutaten: 200 g Mehl, 3 Eier,",
    "Once upon a time, in a small village by the sea, there lived",
]


@pytest.fixture(scope="module")
def model(model_path: Path) -> Iterator[Model]:
    model = Model(model_path)
    yield model
    model.close()


@pytest.fixture
def open_cells(model: Model) -> Iterator[Callable[..., Cells]]:
    opened: list[Cells] = []

    def open_(**changes: object) -> Cells:
        opened.append(Cells.open(model, **changes))  # type: ignore[arg-type]
        return opened[-1]

    yield open_
    for cells in opened:
        cells.close()


@pytest.fixture(params=["unified", "partitioned"])
def cells(request: pytest.FixtureRequest, open_cells: Callable[..., Cells]) -> Cells:
    """Four sequences with room for 512 tokens each."""
    return open_cells(num_kv_cells=2048, num_cached_seqs=0, kv_layout=request.param)


@pytest.fixture(scope="module")
def prompts(model: Model) -> list[list[int]]:
    return [encode(model, text) for text in TEXTS]


@pytest.fixture(scope="module")
def prefix(model: Model) -> list[int]:
    return long_text(model, 1500)


@pytest.fixture(scope="module")
def question(model: Model) -> list[int]:
    return encode(model, "And who came to the lighthouse on the last day? It was")[1:]


@pytest.fixture(scope="module")
def answers(model: Model, prefix: list[int], question: list[int]) -> dict[int, Logits]:
    """The logits behind so many tokens of the prefix and the question, computed fresh."""
    return {length: logits_alone(model, prefix[:length], question) for length in (300, 1400, 1500)}


def distance(row: Logits, other: Logits) -> float:
    return float(np.abs(row - other).max())


# ---- the mirror -------------------------------------------------------------------------------------


def test_lengths_are_those_of_llama_cpp(cells: Cells, prompts: list[list[int]]) -> None:
    assert cells.decode((0, prompts[0], False), (2, prompts[1], True)) == 0
    assert cells.decode((2, [5], True), (1, prompts[2], False)) == 0
    lengths = [len(prompts[0]), len(prompts[2]), len(prompts[1]) + 1, 0]
    assert [cells.sequences.length(seq_id) for seq_id in range(4)] == lengths
    cells.check(0, 1, 2, 3)


def test_dropped_sequence_is_empty_and_its_neighbours_are_not(cells: Cells, prompts: list[list[int]]) -> None:
    cells.decode(*((seq_id, prompt, False) for seq_id, prompt in enumerate(prompts)))
    cells.sequences.drop(1)
    lengths = [len(prompt) if seq_id != 1 else 0 for seq_id, prompt in enumerate(prompts)]
    assert [cells.sequences.length(seq_id) for seq_id in range(4)] == lengths
    cells.check(0, 1, 2, 3)


def test_truncated_sequence_goes_on_where_it_was_cut(model: Model, cells: Cells, prompts: list[list[int]]) -> None:
    a, b, c, _ = prompts
    cells.decode((0, a, False), (1, b, False))
    assert cells.sequences.truncate(0, 4)
    cells.check(0, 1)
    assert distance(cells.extend(0, c), logits_alone(model, a[:4] + c)) < SAME
    assert cells.sequences.truncate(0, 0)
    cells.check(0, 1)


def test_shared_beginning_belongs_to_both(model: Model, cells: Cells, prompts: list[list[int]]) -> None:
    a, b, c, _ = prompts
    cells.decode((0, b, False), (1, c, False))
    assert cells.sequences.share(0, 2, 7)
    cells.decode((0, a, False), (2, c, True))
    assert distance(cells.context.logits(1)[0], logits_alone(model, b[:7] + c)) < SAME
    cells.check(0, 1, 2)
    assert (cells.sequences.length(0), cells.sequences.length(2)) == (len(b) + len(a), 7 + len(c))


def test_saved_sequence_comes_back_as_it_was(model: Model, cells: Cells, prompts: list[list[int]]) -> None:
    a, b, c, _ = prompts
    cells.decode((0, b, False), (1, c, False))
    saved = cells.sequences.save(0, len(b))
    assert saved is not None
    cells.sequences.drop(0)
    cells.decode((3, a, False))
    assert cells.sequences.restore(2, saved)
    cells.check(0, 1, 2, 3)
    assert distance(cells.extend(2, c), logits_alone(model, b + c)) < SAME


def test_hundred_savings_and_restorings_change_nothing(model: Model, cells: Cells, question: list[int]) -> None:
    text = long_text(model, 300)
    cells.extend(0, text)
    for i in range(100):
        saved = cells.sequences.save(i % 2, 300)
        assert saved is not None
        cells.sequences.drop(i % 2)
        assert cells.sequences.restore((i + 1) % 2, saved)
        cells.check(0, 1)
    assert distance(cells.extend(0, question), logits_alone(model, text, question)) < SAME


def test_random_ops_leave_llama_cpp_as_the_mirror_says(model: Model, open_cells: Callable[..., Cells]) -> None:
    """More sequences than a batch may name: they rest, and change places to take part."""
    random = np.random.default_rng(5)
    cells = open_cells(max_num_seqs=2, num_cached_seqs=5)
    sequences = cells.sequences
    text = long_text(model, 400)
    for _ in range(300):
        source, target = (int(seq_id) for seq_id in random.permutation(7)[:2])
        held, room = sequences.length(source), 1024 - sum(sequences.length(seq_id) for seq_id in range(7))
        match int(random.integers(5)):
            case 0 if room > 60:
                assert cells.decode((source, text[:30], True), (target, text[:7], False)) == 0
            case 1:
                sequences.drop(source)
            case 2 if held:
                assert sequences.truncate(source, int(random.integers(held + 1)))
            case 3 if held and not sequences.length(target):
                assert sequences.share(source, target, int(random.integers(1, held + 1)))
            case 4 if held and not sequences.length(target) and room > held:
                saved = sequences.save(source, held)
                assert saved is not None
                assert sequences.restore(target, saved)
        cells.check(*range(7))
    assert any(sequences.length(seq_id) for seq_id in range(7))


# ---- a sliding-window model's text outside the window ----------------------------------------------


def cached_beside_newcomers(cells: Cells, model: Model, prefix: list[int]) -> Cells:
    """Sequence 0 holds the prefix; a neighbour before it left, and a larger one came."""
    cells.extend(3, long_text(model, 300, seed=1))
    cells.extend(0, prefix)
    cells.sequences.drop(3)
    cells.churn(model, 3, num_tokens=760, num_times=2)
    return cells


def test_llama_cpp_gives_cells_outside_the_window_away(
    model: Model, open_cells: Callable[..., Cells], prefix: list[int]
) -> None:
    """Why there are twins."""
    cells = cached_beside_newcomers(open_cells(num_kv_cells=4096, has_twins=False), model, prefix)
    assert cells.sequences.positions(0).start > 0


@pytest.mark.parametrize("length", [300, 1400, 1500])
def test_cached_prefix_is_whole_after_many_neighbours(
    model: Model,
    open_cells: Callable[..., Cells],
    prefix: list[int],
    question: list[int],
    answers: dict[int, Logits],
    length: int,
) -> None:
    cells = cached_beside_newcomers(open_cells(num_kv_cells=4096), model, prefix)
    cells.check(0)
    assert cells.sequences.share(0, 2, length)
    assert distance(cells.extend(2, question), answers[length]) < SAME
    for other in answers.keys() - {length}:
        assert distance(answers[length], answers[other]) > OTHER, "else the comparison above says nothing"


def test_receiver_keeps_what_was_shared_when_its_source_is_gone(
    model: Model, open_cells: Callable[..., Cells], prefix: list[int], question: list[int], answers: dict[int, Logits]
) -> None:
    cells = open_cells(num_kv_cells=4096)
    cells.extend(3, long_text(model, 300, seed=1))
    cells.extend(0, prefix)
    assert cells.sequences.share(0, 1, 1500)
    cells.sequences.drop(0)
    cells.sequences.drop(3)
    cells.churn(model, 2, num_tokens=760, num_times=3)
    cells.check(1)
    assert cells.sequences.truncate(1, 300)
    assert distance(cells.extend(1, question), answers[300]) < SAME


def test_restored_sequence_can_be_shared_and_cut_anywhere(
    model: Model, open_cells: Callable[..., Cells], prefix: list[int], question: list[int], answers: dict[int, Logits]
) -> None:
    """llama.cpp saves the last window only: the others are saved one by one."""
    cells = open_cells(num_kv_cells=4096)
    cells.extend(0, prefix)
    saved = cells.sequences.save(0, 1400)
    assert saved is not None
    assert saved.num_bytes == pytest.approx(1400 * model.kv_bytes_per_token("f16"), rel=0.01)
    cells.sequences.drop(0)
    cells.churn(model, 3, num_tokens=760, num_times=2)
    assert cells.sequences.restore(1, saved)
    cells.check(1)
    cells.churn(model, 3, num_tokens=760, num_times=2)
    assert cells.sequences.share(1, 2, 300)
    assert distance(cells.extend(2, question), answers[300]) < SAME
    assert distance(cells.extend(1, question), answers[1400]) < SAME


def test_partitioned_prefix_is_copied(
    model: Model, open_cells: Callable[..., Cells], prefix: list[int], question: list[int], answers: dict[int, Logits]
) -> None:
    cells = open_cells(num_kv_cells=8192, kv_layout="partitioned")
    cells.extend(0, prefix)
    assert cells.sequences.share(0, 3, 300)
    cells.sequences.drop(0)
    cells.churn(model, 1, num_tokens=760, num_times=2)
    cells.check(0, 1, 3)
    assert distance(cells.extend(3, question), answers[300]) < SAME


def test_what_lost_its_window_is_neither_shared_nor_cut(
    model: Model, open_cells: Callable[..., Cells], prefix: list[int], question: list[int], answers: dict[int, Logits]
) -> None:
    """A partition is restored with its last window only: enough to go on, and to cut what came behind."""
    cells = open_cells(num_kv_cells=4096, max_num_seqs=2, kv_layout="partitioned")
    cells.extend(0, prefix)
    saved = cells.sequences.save(0, 1500)
    assert saved is not None
    cells.sequences.drop(0)
    assert cells.sequences.restore(0, saved)
    assert cells.sequences.positions(0) == range(1500 - model.n_swa, 1500)
    assert not cells.sequences.share(0, 1, 1400)
    assert cells.sequences.length(1) == 0
    assert distance(cells.extend(0, question), answers[1500]) < SAME
    assert cells.sequences.truncate(0, 1500)
    assert not cells.sequences.truncate(0, 1400)
    assert cells.sequences.length(0) == 0
    cells.check(0, 1)


# ---- room -------------------------------------------------------------------------------------------


def test_decode_without_room_changes_nothing(open_cells: Callable[..., Cells]) -> None:
    cells = open_cells(num_kv_cells=256)
    assert cells.decode((0, [5] * 200, False)) == 0
    assert cells.decode((0, [5], True), (1, [5] * 60, True)) == 1
    assert [cells.sequences.length(seq_id) for seq_id in (0, 1)] == [200, 0]
    cells.check(0, 1)
    assert cells.decode((0, [5], True), (1, [5] * 55, True)) == 0, "exactly full"
    cells.sequences.drop(0)
    assert cells.decode((2, [5] * 201, True)) == 0, "dropped cells are free again"


def test_restoring_without_room_leaves_nothing_behind(model: Model, open_cells: Callable[..., Cells]) -> None:
    cells = open_cells(num_kv_cells=1024)
    cells.extend(0, long_text(model, 700))
    saved = cells.sequences.save(0, 700)
    assert saved is not None
    assert not cells.sequences.restore(1, saved)
    assert cells.sequences.length(1) == 0
    cells.check(0, 1)
    cells.extend(2, long_text(model, 324))
    cells.sequences.drop(0)
    assert cells.sequences.restore(1, saved)
    cells.check(0, 1, 2)


def test_shared_cells_are_taken_once(model: Model, open_cells: Callable[..., Cells]) -> None:
    cells = open_cells(num_kv_cells=512, max_num_seqs=2, num_cached_seqs=6)
    cells.extend(0, long_text(model, 400))
    for target in range(1, 8):
        assert cells.sequences.share(0, target, 400)
    assert cells.decode((3, [5] * 112, True)) == 0
    cells.check(*range(8))


# ---- what is planned wrongly is a bug --------------------------------------------------------------


@pytest.mark.parametrize("seq_id", [-1, 4])
def test_sequence_that_does_not_exist_is_a_bug(cells: Cells, seq_id: int) -> None:
    for op in (cells.sequences.drop, cells.sequences.length, lambda s: cells.sequences.truncate(s, 0)):
        with pytest.raises(AssertionError, match=f"no sequence {seq_id}"):
            op(seq_id)


def test_sharing_onto_tokens_is_a_bug(cells: Cells, prompts: list[list[int]]) -> None:
    cells.decode((0, prompts[0], False), (1, prompts[1], False))
    with pytest.raises(AssertionError, match="should be empty"):
        cells.sequences.share(0, 1, 3)


def test_more_than_a_sequence_holds_is_a_bug(cells: Cells, prompts: list[list[int]]) -> None:
    cells.decode((0, prompts[0][:5], False))
    for op in (cells.sequences.truncate, cells.sequences.save, lambda s, n: cells.sequences.share(s, 1, n)):
        with pytest.raises(AssertionError, match="holds 5 tokens, not 6"):
            op(0, 6)


# ---- layouts ----------------------------------------------------------------------------------------


def layout_of(model: Model, **changes: object) -> Layout:
    defaults: dict[str, object] = {
        "max_num_seqs": 8,
        "num_cached_seqs": 32,
        "swa_full": True,
        "kv_layout": "unified",
    }
    return Layout.of(model, **defaults | changes)  # type: ignore[arg-type]


def test_kept_sequences_need_no_ids_in_a_batch(model: Model) -> None:
    layout = layout_of(model)
    assert (layout.num_seqs, layout.num_active, layout.num_ids) == (40, 8, 17)


def test_sequences_are_as_many_as_llama_cpp_has_ids_for(model: Model) -> None:
    layout = layout_of(model, num_cached_seqs=1000)
    assert max(layout.ids(layout.num_seqs)) == 254, "the place to move through included"
    with pytest.raises(ModelLoadError, match="ids for 128 sequences"):
        layout_of(model, max_num_seqs=128)


def test_partitions_keep_nothing_beside_what_runs(model: Model) -> None:
    layout = layout_of(model, kv_layout="partitioned")
    assert (layout.num_seqs, layout.num_ids, layout.can_share) == (8, 8, True)


def test_without_the_full_window_nothing_is_shared(model: Model) -> None:
    layout = layout_of(model, swa_full=False)
    assert (layout.num_seqs, layout.num_ids, layout.can_share) == (8, 8, False)


def test_small_window_cache_saves_and_restores(
    model: Model, open_cells: Callable[..., Cells], prefix: list[int], question: list[int], answers: dict[int, Logits]
) -> None:
    cells = open_cells(num_kv_cells=4096, swa_full=False)
    cells.extend(0, prefix)
    saved = cells.sequences.save(0, 1500)
    assert saved is not None
    cells.sequences.drop(0)
    cells.churn(model, 1, num_tokens=760, num_times=2)
    assert cells.sequences.restore(2, saved)
    assert distance(cells.extend(2, question), answers[1500]) < SAME
