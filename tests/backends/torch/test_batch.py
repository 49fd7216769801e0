"""How a step's tokens are laid out."""

from __future__ import annotations

import numpy as np

from homeai.backends.torch.batch import Piece, step_batch
from homeai.backends.torch.tables import HOLE, Group


def piece(start: int, count: int, blocks: list[list[int]], num_outputs: int = 1) -> Piece:
    return Piece(start, np.arange(100 + start, 100 + start + count, dtype=np.int32), num_outputs, blocks)


FULL = Group(100)


def test_decodes_come_first_by_length_and_outputs_keep_the_order_of_the_pieces() -> None:
    pieces = [piece(16, 3, [[7, 8]]), piece(40, 1, [[1, 2, 3]]), piece(5, 1, [[4]]), piece(0, 2, [[9]], num_outputs=2)]
    batch = step_batch(pieces, [FULL])
    assert batch.positions.tolist() == [5, 40, 16, 17, 18, 0, 1]
    assert batch.token_ids.tolist() == [105, 140, 116, 117, 118, 100, 101]
    assert batch.num_decodes == 2
    assert batch.outputs.tolist() == [4, 1, 0, 5, 6]
    assert batch.first_output == (0, 1, 2, 3)
    (group,) = batch.groups
    assert group.slots.tolist() == [4 * 16 + 5, 3 * 16 + 8, 8 * 16, 8 * 16 + 1, 8 * 16 + 2, 9 * 16, 9 * 16 + 1]


def test_rows_of_like_length_are_padded_to_one_width_and_a_long_one_goes_alone() -> None:
    pieces = [piece(50, 1, [[1, 2, 3, 4]]), piece(3, 1, [[5]]), piece(16 * 40, 1, [list(range(10, 51))])]
    (group,) = step_batch(pieces, [FULL]).groups
    assert [(span.first, span.last, span.width) for span in group.spans] == [(0, 2, 4), (2, 3, 41)]
    assert group.blocks[:8].tolist() == [5, 0, 0, 0, 1, 2, 3, 4]
    (group,) = step_batch(pieces, [FULL], is_padded=False).groups
    assert group.widths.tolist() == [1, 4, 41]
    assert group.blocks[:5].tolist() == [5, 1, 2, 3, 4]


def test_layers_with_a_window_look_at_its_blocks_only() -> None:
    pieces = [piece(70, 1, [[HOLE, HOLE, HOLE, 3, 4]]), piece(64, 8, [[HOLE, HOLE, 12, 13, 14]])]
    (group,) = step_batch(pieces, [Group(100, window=20, keeps_all=False)]).groups
    assert group.widths.tolist() == [2, 3]
    assert group.begins.tolist() == [48, 32]
    assert group.blocks.tolist() == [3, 4, 12, 13, 14]
