"""The tree of what is in the cache, against a plain list of what every sequence holds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homeai.scheduling.tree import Node, PrefixTree, Sequence, common_length

TOKENS = st.lists(st.integers(0, 2), max_size=12)


@given(TOKENS, TOKENS.filter(lambda tokens: len(tokens) > 6), st.integers(0, 6))
def test_common_length_is_that_of_a_loop(tokens: list[int], others: list[int], start: int) -> None:
    expected = 0
    while expected < min(len(tokens), len(others) - start) and tokens[expected] == others[start + expected]:
        expected += 1
    assert common_length(tokens, others, start, len(others)) == expected


def place(tree: PrefixTree, root: Node, seq: Sequence, tokens: list[int]) -> None:
    """As the cache does: begin with what is there, compute the rest."""
    match = tree.match(root, tokens, len(tokens))
    if match.length:
        tree.place(seq, tree.end_at(match), match.length)
    if match.length < len(tokens):
        tree.extend(seq, tokens[match.length :])


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["place", "extend", "cut", "hold"]), st.integers(0, 4), TOKENS, st.integers(0, 12)),
    max_size=40,
)


@given(OPERATIONS)
@settings(max_examples=500, deadline=None, derandomize=True)
def test_tree_agrees_with_plain_lists(operations: list[tuple[str, int, list[int], int]]) -> None:
    tree, root = PrefixTree(), Node([], None)
    seqs = [Sequence(number, root) for number in range(5)]
    held: list[list[int]] = [[] for _ in seqs]
    for kind, number, tokens, count in operations:
        seq = seqs[number]
        if kind == "place" and not held[number]:
            place(tree, root, seq, tokens)
            held[number] = list(tokens)
        elif kind == "extend" and tokens:
            tree.extend(seq, tokens)
            held[number] += tokens
        elif kind == "cut":
            tree.cut(seq, min(count, len(held[number])))
            del held[number][count:]
        elif kind == "hold":
            tree.hold(seq, count % 2 == 0)
        assert [tree.tokens(seq) for seq in seqs] == held
        assert [seq.length for seq in seqs] == [len(tokens) for tokens in held]
        nodes = list(walk(root))
        assert tree.num_cells == sum(len(node.tokens) for node in nodes)
        assert tree.num_held_cells == sum(len(n.tokens) for n in nodes if any(s.is_held for s in n.seqs))
        parts = sum(tree.num_cells_of(seq) for seq in seqs if seq.is_held)
        assert parts == pytest.approx(tree.num_held_cells)
        assert all(node.seqs and node.num_held == sum(s.is_held for s in node.seqs) for node in nodes)
    assert all(tree.match(root, tokens, len(tokens)).length <= len(tokens) for tokens in held)


def walk(node: Node):  # type: ignore[no-untyped-def]
    for children in node.children.values():
        for child in children:
            yield child
            yield from walk(child)


@pytest.fixture
def root() -> Node:
    return Node([], None)


def test_what_begins_alike_is_there_once(root: Node) -> None:
    tree, one, other = PrefixTree(), Sequence(0, root), Sequence(1, root)
    place(tree, root, one, [1, 2, 3, 4])
    place(tree, root, other, [1, 2, 9])
    assert tree.num_cells == 5


def test_match_ends_inside_a_node(root: Node) -> None:
    tree, seq = PrefixTree(), Sequence(0, root)
    place(tree, root, seq, [1, 2, 3, 4])
    assert tree.match(root, [1, 2, 3, 9, 9], 5)[1:] == (3, 3)


def test_match_is_no_longer_than_its_limit(root: Node) -> None:
    tree, seq = PrefixTree(), Sequence(0, root)
    place(tree, root, seq, [1, 2, 3, 4])
    assert tree.match(root, [1, 2, 3, 4], 3).length == 3


def test_cells_stay_for_who_shares_them(root: Node) -> None:
    tree, one, other = PrefixTree(), Sequence(0, root), Sequence(1, root)
    place(tree, root, one, [1, 2, 3, 4])
    place(tree, root, other, [1, 2, 9])
    tree.cut(one, 0)
    assert (tree.num_cells, tree.tokens(other)) == (3, [1, 2, 9])
