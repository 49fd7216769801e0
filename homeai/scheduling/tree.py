"""What is in the KV cache, as a tree over token ids.

A node is a run of tokens that are computed once; a sequence is the path from a root to the node where it ends.
Sequences that begin alike pass through the same nodes, and every token of every node takes one cell. Two nodes
may hold the same tokens side by side: what two requests computed at the same time is there twice.

Like SGLang's radix tree (Zheng et al., 2024), with sequences instead of reference counts, since a backend
shares by sequence.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Tokens
from typing import NamedTuple


class Node:
    """`seqs`: sequences through all of it. `num_held`: how many of them may not be evicted now.

    `hits`: requests that found it computed.
    """

    __slots__ = ("children", "hits", "num_held", "parent", "seqs", "tokens")

    def __init__(self, tokens: list[int], parent: Node | None) -> None:
        self.tokens = tokens
        self.parent = parent
        self.children: dict[int, list[Node]] = {}
        self.seqs: set[Sequence] = set()
        self.num_held = 0
        self.hits = 0


class Sequence:
    """One of the backend's sequences. It may be shared or cut only at `whole_from` tokens or more."""

    __slots__ = ("is_held", "is_pinned", "last_used_at", "length", "node", "parked_by", "seq_id", "whole_from")

    def __init__(self, seq_id: int, root: Node) -> None:
        self.seq_id = seq_id
        self.node = root
        self.length = 0
        self.is_held = False
        self.is_pinned = False
        self.parked_by: str | None = None  # the request that wants it back
        self.last_used_at = 0.0
        self.whole_from = 0

    def __hash__(self) -> int:
        return self.seq_id  # not the address: sets of sequences are walked in the same order in every run


class Match(NamedTuple):
    """The first `length` tokens are there; they end `offset` tokens into `node`."""

    node: Node
    offset: int
    length: int


class PrefixTree:
    """`num_cells`: tokens of all nodes. `num_held_cells`: of those that a held sequence passes through."""

    def __init__(self) -> None:
        self.num_cells = 0
        self.num_held_cells = 0

    def match(self, root: Node, tokens: Tokens[int], limit: int) -> Match:
        """The longest way down from `root` along tokens[:limit]."""
        node, offset, length = root, 0, 0
        while length < limit:
            child, count = _longest(node.children.get(tokens[length], ()), tokens, length, limit)
            if child is None:
                break
            node, offset, length = child, count, length + count
            if count < len(child.tokens):
                break
        return Match(node, offset, length)

    def end_at(self, match: Match) -> Node:
        """A node that ends where the match does."""
        node, offset, _ = match
        return node if offset == len(node.tokens) else self._split(node, offset)

    def place(self, seq: Sequence, node: Node, length: int) -> None:
        """Let the empty sequence be the path to `node`, which is `length` tokens long."""
        assert seq.length == 0, f"sequence {seq.seq_id} holds {seq.length} tokens already"
        seq.node, seq.length = node, length
        for on_path in path(node):
            on_path.seqs.add(seq)
            if seq.is_held:
                self._hold(on_path)

    def extend(self, seq: Sequence, tokens: list[int]) -> None:
        """Append what was computed."""
        node = seq.node
        if node.parent is None or len(node.seqs) > 1 or node.hits:  # what was found is not what follows it
            child = Node(list(tokens), node)
            node.children.setdefault(tokens[0], []).append(child)
            child.seqs.add(seq)
            child.num_held = int(seq.is_held)
            seq.node = child
        else:
            node.tokens.extend(tokens)
        seq.length += len(tokens)
        self.num_cells += len(tokens)
        if seq.is_held:
            self.num_held_cells += len(tokens)

    def hold(self, seq: Sequence, is_held: bool) -> None:
        if seq.is_held == is_held:
            return
        seq.is_held = is_held
        for node in path(seq.node):
            if is_held:
                self._hold(node)
            else:
                self._let_go(node)

    def hit(self, seq: Sequence) -> None:
        """A request found all of it computed."""
        for node in path(seq.node):
            node.hits += 1

    def fade(self, seqs: Iterable[Sequence]) -> None:
        """Hits of long ago count less: halve those of everything that `seqs` hold."""
        for node in {node for seq in seqs for node in path(seq.node)}:
            node.hits //= 2

    def num_cells_of(self, seq: Sequence) -> float:
        """Of a held sequence; of the cells that other held ones pass through, its part."""
        return sum(len(node.tokens) / node.num_held for node in path(seq.node))

    def tokens(self, seq: Sequence) -> list[int]:
        return [token for node in reversed(path(seq.node)) for token in node.tokens]

    def cut(self, seq: Sequence, length: int) -> None:
        """Keep the first `length` tokens of it."""
        while seq.length > length:
            node = seq.node
            over = seq.length - length
            if over < len(node.tokens):
                self._split(node, len(node.tokens) - over)
                continue
            self._leave(node, seq)
            assert node.parent is not None, "a root holds no tokens"
            seq.node = node.parent
            seq.length -= len(node.tokens)

    def _leave(self, node: Node, seq: Sequence) -> None:
        node.seqs.remove(seq)
        if seq.is_held:
            self._let_go(node)
        if node.seqs:
            return
        assert node.parent is not None, "a root has no sequences"
        assert not node.children, "a sequence below would pass through here"
        siblings = node.parent.children[node.tokens[0]]
        siblings.remove(node)
        if not siblings:
            del node.parent.children[node.tokens[0]]
        self.num_cells -= len(node.tokens)

    def _split(self, node: Node, offset: int) -> Node:
        """The upper part becomes a node of its own; sequences that end in `node` still do."""
        assert node.parent is not None, "a root holds no tokens"
        assert 0 < offset < len(node.tokens), f"{len(node.tokens)} tokens cannot be split at {offset}"
        upper = Node(node.tokens[:offset], node.parent)
        upper.seqs, upper.num_held, upper.hits = set(node.seqs), node.num_held, node.hits
        siblings = node.parent.children[node.tokens[0]]
        siblings[siblings.index(node)] = upper
        node.tokens = node.tokens[offset:]
        node.parent = upper
        upper.children[node.tokens[0]] = [node]
        return upper

    def _hold(self, node: Node) -> None:
        node.num_held += 1
        if node.num_held == 1:
            self.num_held_cells += len(node.tokens)

    def _let_go(self, node: Node) -> None:
        node.num_held -= 1
        if node.num_held == 0:
            self.num_held_cells -= len(node.tokens)


def common_length(tokens: Tokens[int], others: Tokens[int], start: int, limit: int) -> int:
    """How many of `tokens` equal others[start:limit], from their beginnings. Slices compare in C: no loop per token."""
    equal, end = 0, min(len(tokens), limit - start)
    if tokens[:end] == others[start : start + end]:
        return end
    while end - equal > 1:
        middle = (equal + end) // 2
        if tokens[equal:middle] == others[start + equal : start + middle]:
            equal = middle
        else:
            end = middle
    return equal


def _longest(nodes: Tokens[Node], tokens: Tokens[int], start: int, limit: int) -> tuple[Node | None, int]:
    best, best_count = None, 0
    for node in nodes:
        count = common_length(node.tokens, tokens, start, limit)
        if count > best_count:
            best, best_count = node, count
    return best, best_count


def path(node: Node) -> list[Node]:
    """The nodes from `node` up, without the root."""
    nodes = []
    while node.parent is not None:
        nodes.append(node)
        node = node.parent
    return nodes
