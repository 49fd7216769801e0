"""The KV cache as the scheduler counts it: which sequences there are, what they hold, whom to evict.

A sequence is *held* while its request runs (and for good when pinned); any other is kept for reuse until its
cells or its id are needed. So one mechanism serves prefix reuse, conversations and parking: a parked request is
a kept sequence, found again by its tokens, or saved to host memory, or computed anew.

Every token takes one cell of the one pool that all sequences share; with partitions each sequence has as many
cells as the longest request, and the pool cannot run out. The runner holds exactly what is counted here after
the ops that the next step begins with.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from homeai.scheduling.host import HostStore
from homeai.scheduling.plan import KVOp, KVOpKind
from homeai.scheduling.tree import Match, Node, PrefixTree, Sequence, path

MIN_SHARED_TOKENS = 16  # a shorter common beginning is computed again: sharing scans the whole cache
MIN_KEPT_TOKENS = 32
FADING_EVICTIONS = 64  # after so many, hits count half
HOT_HITS = 2  # found so often, a beginning is learned: it goes last
LEARNED_PART = 0.5  # of the room for what is kept: what is learned beyond it has no precedence over what is new


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """num_cells, num_seqs, is_partitioned, can_share, can_save: as in `RunnerLimits`.

    max_kept_cells: cells that may be kept for reuse while nobody runs in them.
    host_bytes: host memory for saved sequences; 0 saves none.
    """

    num_cells: int
    num_seqs: int
    is_partitioned: bool = False
    can_share: bool = True
    can_save: bool = True
    kv_bytes_per_token: int = 0
    max_kept_cells: int | None = None
    host_bytes: int = 0


class KVCache:
    """`num_running_ids`: sequences that must always be there for running requests.

    `is_worth_moving(num_tokens, num_computed)`: bringing so many tokens to host memory or back costs less than
    computing `num_computed` again.
    """

    def __init__(
        self,
        config: CacheConfig,
        num_running_ids: int,
        is_worth_moving: Callable[[int, int], bool] = lambda num_tokens, num_computed: False,
    ) -> None:
        self.config = config
        self._num_running_ids = num_running_ids
        self.num_cells = config.num_cells
        self.num_evictions = 0
        self.tree = PrefixTree()
        self.host = HostStore(
            config.host_bytes if config.can_save else 0,
            config.kv_bytes_per_token,
            may_cut=config.can_share and not config.is_partitioned,  # as for any sequence
        )
        self._is_worth_moving = is_worth_moving
        self._roots: dict[str, Node] = {}
        self._seqs: dict[int, Sequence] = {}
        self._kept: set[Sequence] = set()
        self._free_ids = list(range(config.num_seqs))  # a heap: low ids first
        self._num_reserved = 0
        self._ops: list[KVOp] = []

    # ---- room ------------------------------------------------------------------------------------

    @property
    def num_used(self) -> int:
        if self.config.is_partitioned:
            return sum(seq.length for seq in self._seqs.values()) + self._num_reserved
        return self.tree.num_cells + self._num_reserved

    @property
    def num_kept(self) -> int:
        """Cells that nobody runs in."""
        return self.tree.num_cells - self.tree.num_held_cells

    @property
    def num_available(self) -> int:
        """Cells that are free, or can be had by evicting."""
        if self.config.is_partitioned:
            return self.num_cells
        return self.num_cells - self.tree.num_held_cells - self._num_reserved

    @property
    def num_pinned_seqs(self) -> int:
        return sum(seq.is_pinned for seq in self._seqs.values())

    @property
    def pending_ops(self) -> tuple[KVOp, ...]:
        """What the next step begins with."""
        return tuple(self._ops)

    def take_pending_ops(self) -> list[KVOp]:
        ops, self._ops = self._ops, []
        return ops

    # ---- a running request's sequence ------------------------------------------------------------

    def num_cells_of(self, seq: Sequence) -> float:
        """A held sequence's part of the cells that somebody runs in: the parts of all are all of them."""
        return float(seq.length) if self.config.is_partitioned else self.tree.num_cells_of(seq)

    def find(self, domain: str, tokens: list[int]) -> Match:
        """What is computed of `tokens` but the last, which has to run for its logits."""
        return self.tree.match(self._roots.get(domain, NOTHING), tokens, len(tokens) - 1)

    def num_held_of(self, domain: str, tokens: list[int]) -> int:
        """Of what is computed of `tokens`, the cells that somebody runs in anyway."""
        node, offset, _ = self.find(domain, tokens)
        count = offset if node.num_held else 0
        while node.parent is not None:
            node = node.parent
            count += len(node.tokens) if node.num_held else 0
        return count

    def open(
        self, domain: str, tokens: list[int], now: float, *, max_cells: int | None = None, is_new: bool = True
    ) -> Sequence | None:
        """A held sequence that begins with what is there of `tokens`; None when no id is to be had.

        `max_cells`: what it may take of the available ones now; the others are promised.
        `is_new`: a request that was not here before, whose hits tell what is worth keeping.
        """
        match = self.find(domain, tokens)
        seq = self._restore(domain, tokens, match.length, self.num_available if max_cells is None else max_cells, now)
        seq = seq or self._adopt(match) or self._share(match) or self._empty(domain)
        if seq is None:
            return None
        self.tree.hold(seq, True)
        seq.last_used_at = now
        seq.parked_by = None
        if is_new:
            self.tree.hit(seq)
        return seq

    def reserve(self, count: int) -> None:
        """Cells for `count` tokens of the next step, evicting what is in the way."""
        assert count <= self.num_available, f"{count} cells wanted, {self.num_available} to be had"
        self._num_reserved += count
        self._make_room()

    def commit(self, seq: Sequence, reserved: int, tokens: list[int]) -> None:
        """Of the reserved cells, `tokens` are computed."""
        self._num_reserved -= reserved
        if tokens:
            self.tree.extend(seq, tokens)

    def close(self, seq: Sequence, now: float, *, keep: bool = True, parked_by: str | None = None) -> None:
        """Nobody runs in it any more; it is kept for reuse if it may be, longest for a request that was parked."""
        self.tree.hold(seq, seq.is_pinned)
        if not keep or seq.length < (1 if parked_by else MIN_KEPT_TOKENS):
            self._drop(seq)
            return
        seq.parked_by = parked_by
        seq.last_used_at = now
        if not seq.is_pinned:
            self._kept.add(seq)
        limit = self.config.max_kept_cells
        while limit is not None and self.num_kept > limit and any(other.parked_by is None for other in self._kept):
            self.evict()

    def truncate(self, seq: Sequence, length: int) -> None:
        """The runner computed more of it than counts."""
        self.tree.cut(seq, length)
        self._ops.append(KVOp(KVOpKind.TRUNCATE, seq.seq_id, length=length))

    def lose(self, seq_id: int) -> Sequence | None:
        """An op failed: the backend left the sequence empty."""
        seq = self._seqs.get(seq_id)
        if seq is None:
            return None
        self.tree.cut(seq, 0)
        seq.whole_from = 0
        if seq in self._kept:
            self._kept.remove(seq)
            self._drop(seq)
        return seq

    def pin(self, seq: Sequence) -> bool:
        """Keep it for good. False when nobody could begin with it, or too few ids would be left for those who run."""
        if not self.config.can_share or seq.length < MIN_KEPT_TOKENS:
            return False
        if self.num_pinned_seqs >= self.config.num_seqs - self._num_running_ids:
            return False
        seq.is_pinned = True
        return True

    def unpin(self) -> bool:
        """Give up the pins, for a request that could not run at all beside them. False when there are none.

        All of them: who had them computed sees that some are missing, and has all computed again.
        """
        pinned = [seq for seq in self._seqs.values() if seq.is_pinned]
        for seq in pinned:
            seq.is_pinned = False
            self.tree.hold(seq, False)
            self._kept.add(seq)
        return bool(pinned)

    def forget_parked(self, request_id: str, *, keep: bool = True) -> None:
        """A parked request is back, or will not come: what it left is as any other's, or (not `keep`) dropped."""
        for seq in [seq for seq in self._kept if seq.parked_by == request_id]:
            seq.parked_by = None
            if not keep:
                self._kept.remove(seq)
                self._drop(seq)
        self._ops += [KVOp(KVOpKind.FORGET, -1, other=number) for number in self.host.forget_parked(request_id)]

    # ---- how a sequence begins -------------------------------------------------------------------

    def _root(self, domain: str) -> Node:
        root = self._roots.get(domain)
        if root is None:
            root = self._roots[domain] = Node([], None)
        return root

    def _adopt(self, match: Match) -> Sequence | None:
        """Go on in a kept sequence that ends where the match does: nothing moves."""
        if match.offset < len(match.node.tokens) or not match.length:
            return None
        for seq in match.node.seqs:
            if seq.length == match.length and seq in self._kept:
                self._kept.remove(seq)
                return seq
        return None

    def _share(self, match: Match) -> Sequence | None:
        if not self.config.can_share or match.length < MIN_SHARED_TOKENS:
            return None
        origin = next((seq for seq in match.node.seqs if seq.whole_from <= match.length), None)
        if origin is None:
            return None
        if self.config.is_partitioned and not self._free_ids and origin in self._kept and not origin.parked_by:
            self._kept.remove(origin)  # a copy would cost another sequence its place
            self.truncate(origin, match.length)
            return origin
        seq_id = self._take_id(spare=origin)
        if seq_id is None:
            return None
        seq = self._seqs[seq_id] = Sequence(seq_id, match.node)
        self.tree.place(seq, self.tree.end_at(match), match.length)
        self._ops.append(KVOp(KVOpKind.SHARE, seq_id, other=origin.seq_id, length=match.length))
        return seq

    def _empty(self, domain: str) -> Sequence | None:
        seq_id = self._take_id()
        if seq_id is None:
            return None
        seq = self._seqs[seq_id] = Sequence(seq_id, self._root(domain))
        return seq

    def _restore(self, domain: str, tokens: list[int], length: int, max_cells: int, now: float) -> Sequence | None:
        """Bring a saved sequence back that holds more than `length`. What is in the cache of it is there twice then.

        One that is wanted in part only stays saved, for whoever wants all of it.
        """
        saved, num_common = self.host.find(domain, tokens)
        if saved is None or num_common <= length or saved.length > min(max_cells, self.num_available):
            return None
        if not self._is_worth_moving(saved.length, num_common - length):
            return None
        seq = self._empty(domain)
        if seq is None:
            return None
        self.host.discard(saved.number)  # first: making room may save others
        self.tree.hold(seq, True)
        self.reserve(saved.length)
        self.commit(seq, saved.length, saved.tokens)
        seq.whole_from = seq.length if self.config.is_partitioned else 0
        self._ops.append(KVOp(KVOpKind.RESTORE, seq.seq_id, other=saved.number, length=seq.length))
        is_whole = num_common == saved.length
        if is_whole or not self.host.put_back(saved, now):
            self._ops.append(KVOp(KVOpKind.FORGET, -1, other=saved.number))
        if not is_whole:
            self.truncate(seq, num_common)
        return seq

    # ---- how a sequence ends ---------------------------------------------------------------------

    def _make_room(self) -> None:
        while not self.config.is_partitioned and self.num_used > self.num_cells:
            evicted = self.evict()
            assert evicted, f"{self.num_used} cells used of {self.num_cells}, and nothing to evict"

    def _take_id(self, spare: Sequence | None = None) -> int | None:
        while not self._free_ids:
            if not self.evict(spare, whole=True):
                return None
        return heapq.heappop(self._free_ids)

    def evict(self, spare: Sequence | None = None, *, whole: bool = False) -> bool:
        """Give up the kept sequence that is missed least; its cold tail first, unless its id is wanted (`whole`)."""
        candidates = self._kept - {spare} if spare is not None else self._kept
        learned_last = not self._is_full_of_learned()
        seq = min(candidates, key=lambda seq: _worth(seq, learned_last), default=None)
        if seq is None:
            return False
        self.num_evictions += 1
        if self.num_evictions % FADING_EVICTIONS == 0:
            self.tree.fade(self._kept)
        node, head = _learned(seq)
        may_cut = not whole and self.config.can_share and not seq.parked_by and node.seqs == {seq}  # no other keeps it
        if may_cut and seq.whole_from <= head < seq.length and head >= MIN_KEPT_TOKENS:
            self.truncate(seq, head)
            return True
        self._save(seq)
        self._kept.remove(seq)
        self._drop(seq)
        return True

    def _is_full_of_learned(self) -> bool:
        """What was kept last could not stay until it is asked for again."""
        num_cells = self.num_cells if self.config.max_kept_cells is None else self.config.max_kept_cells
        learned = {node for seq in self._kept for node in path(seq.node) if node.hits >= HOT_HITS}
        return sum(len(node.tokens) for node in learned) > LEARNED_PART * num_cells

    def _save(self, seq: Sequence) -> None:
        if not (seq.parked_by or seq.node.hits) or not self._is_worth_moving(seq.length, seq.length):
            return
        root = self._root_of(seq)
        domain = next(name for name, other in self._roots.items() if other is root)
        tokens = self.tree.tokens(seq)
        number, forgotten = self.host.put(domain, tokens, parked_by=seq.parked_by, now=seq.last_used_at)
        self._ops += [KVOp(KVOpKind.FORGET, -1, other=old) for old in forgotten]
        if number is not None:
            self._ops.append(KVOp(KVOpKind.SAVE, seq.seq_id, other=number, length=seq.length))

    def _drop(self, seq: Sequence) -> None:
        root = self._root_of(seq)
        self.tree.cut(seq, 0)
        del self._seqs[seq.seq_id]
        heapq.heappush(self._free_ids, seq.seq_id)
        self._ops.append(KVOp(KVOpKind.DROP, seq.seq_id))
        if not root.children:
            self._forget_root(root)

    def _root_of(self, seq: Sequence) -> Node:
        node = seq.node
        while node.parent is not None:
            node = node.parent
        return node

    def _forget_root(self, root: Node) -> None:
        """Domains come and go with sources: keep none that holds nothing and that no sequence stands at."""
        if any(seq.node is root for seq in self._seqs.values()):
            return
        for domain, other in list(self._roots.items()):
            if other is root:
                del self._roots[domain]


NOTHING = Node([], None)  # the root of a domain that has nothing


def _worth(seq: Sequence, learned_last: bool) -> tuple[bool, bool, float]:
    return seq.parked_by is not None, learned_last and seq.node.hits >= HOT_HITS, seq.last_used_at


def _learned(seq: Sequence) -> tuple[Node, int]:
    """How much of it was found again and again, and where that ends."""
    node, length = seq.node, seq.length
    while node.parent is not None and node.hits < HOT_HITS:
        length -= len(node.tokens)
        node = node.parent
    return node, length
