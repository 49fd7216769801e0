"""Does a model fit, and if not, what is the mildest change that makes it fit? Known before anything is loaded.

Pure arithmetic: how much a choice needs is an `Estimate`'s to say, how much there is is measured by the caller. All
that a loaded model takes is one budget: weights, KV cells, compute buffers, the process itself, and in ordinary
memory also the store for what gives way in the cache. Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol

from homeai.errors import DeviceUnavailable, ModelLoadError

CELL_STEP: Final = 256  # llama.cpp rounds a context up to it
MIN_CELLS: Final = 4096  # a pool that is smaller is chosen by people only
WORTHWHILE: Final = 0.8  # of the layers that an empty GPU would hold: a desktop needs some room for good
GIB: Final = 2**30
MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Choice:
    """The settings that decide about memory. `num_gpu_layers`: the output layer counts as one."""

    num_cells: int
    max_num_seqs: int
    kv_type: str
    num_gpu_layers: int
    host_cache_bytes: int


@dataclass(frozen=True, slots=True)
class Need:
    """What a model takes of one memory."""

    weights: int = 0
    kv: int = 0
    compute: int = 0
    process: int = 0
    host_cache: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.compute + self.process + self.host_cache

    def __str__(self) -> str:
        parts = {
            "weights": self.weights,
            "KV": self.kv,
            "compute buffers": self.compute,
            "process": self.process,
            "host cache": self.host_cache,
        }
        return ", ".join(f"{name} {gib(size)}" for name, size in parts.items() if size)


@dataclass(frozen=True, slots=True)
class Needs:
    """`device` is None where everything is computed in ordinary memory."""

    device: Need | None
    host: Need


@dataclass(frozen=True, slots=True)
class Room:
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class Rooms:
    """`device`: all GPUs that the model may use, together."""

    device: Room | None
    host: Room

    @property
    def emptied(self) -> Rooms:
        """As if nobody else ran."""
        device = Room(self.device.total, self.device.total) if self.device else None
        return Rooms(device, Room(self.host.total, self.host.total))


class Estimate(Protocol):
    def __call__(self, choice: Choice) -> Needs: ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far a choice may be changed.

    longest_request: tokens of the longest request that was to be served; a pool as large loses nothing of that.
    num_gpu_layers: all of the model, with the output layer; 0 where it does not use a GPU.
    can_quantise: KV may be q8_0, which needs flash attention.
    """

    longest_request: int
    num_gpu_layers: int
    can_quantise: bool
    is_partitioned: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be loaded. `changes`: what that is other than asked for, one sentence each."""

    choice: Choice
    needs: Needs
    rooms: Rooms
    changes: tuple[str, ...] = ()


class Planner:
    """`margin`: the part of each memory that is left free for others, 0 … 1."""

    def __init__(self, estimate: Estimate, bounds: Bounds, rooms: Rooms, margin: float) -> None:
        self._estimate = estimate
        self._bounds = bounds
        self._rooms = rooms
        self._margin = margin

    def plan(self, wish: Choice, *, may_change: bool, model: str) -> Plan:
        """The wish, or with `may_change` the mildest change of it that fits now.

        Raises `DeviceUnavailable` for what would fit if others took less, `ModelLoadError` for what never does; both
        say what would.
        """
        if self.fits(wish, self._rooms):
            return self._as_planned(wish, wish)
        if may_change:
            for choice in self._milder(wish, self._rooms):
                return self._as_planned(choice, wish)
            if (slower := self._slower(wish)) is not None:
                return self._as_planned(slower, wish)
        raise self._refusal(wish, model, may_change=may_change)

    def fits(self, choice: Choice, rooms: Rooms) -> bool:
        needs = self._estimate(choice)
        on_device = needs.device is None or rooms.device is None or self._is_enough(rooms.device, needs.device)
        return on_device and self._is_enough(rooms.host, needs.host)

    def _is_enough(self, room: Room, need: Need) -> bool:
        return need.total <= self.usable(room)

    def usable(self, room: Room) -> int:
        return room.free - int(room.total * self._margin)

    def _as_planned(self, choice: Choice, wish: Choice) -> Plan:
        return Plan(choice, self._estimate(choice), self._rooms, tuple(changes(wish, choice, self._bounds)))

    # ---- what to change --------------------------------------------------------------------------

    def _milder(self, wish: Choice, rooms: Rooms) -> Iterator[Choice]:
        """Choices that fit, the mildest first; all of the model stays where it computes fast.

        1. Less ordinary memory for what gives way in the cache.
        2. Fewer sequences, or a smaller pool, in which the longest request still fits.
        3. KV as q8_0.
        4. Both.
        5. KV as q8_0 and a shorter context.
        """
        quantised = self._quantised(wish)
        starts = [wish] if quantised == wish else [wish, quantised]
        for start in starts:
            if (choice := self._relieved(start, rooms)) is not None:
                yield choice
            if (choice := self._smaller(start, rooms, self._bounds.longest_request)) is not None:
                yield choice
        if (choice := self._smaller(quantised, rooms, MIN_CELLS)) is not None:
            yield choice

    def _slower(self, wish: Choice) -> Choice | None:
        """KV as q8_0 and layers on the CPU. It stays so until the next load: where others have much of the GPU just
        now, it is better to wait."""
        now = self._on_fewer_layers(self._quantised(wish), self._rooms)
        empty = self._on_fewer_layers(self._quantised(wish), self._rooms.emptied)
        if now is None or empty is None or now.num_gpu_layers < WORTHWHILE * empty.num_gpu_layers:
            return None
        return now

    def _on_fewer_layers(self, choice: Choice, rooms: Rooms) -> Choice | None:
        """As many layers on the GPU as fit there, the others on the CPU."""

        def with_layers(count: int) -> Choice:
            return replace(choice, num_gpu_layers=count)

        def fits_device(count: int) -> bool:
            need = self._estimate(with_layers(count)).device
            return need is not None and rooms.device is not None and self._is_enough(rooms.device, need)

        count = _largest(1, min(choice.num_gpu_layers, self._bounds.num_gpu_layers) - 1, 1, fits_device)
        return None if count is None else self._relieved(with_layers(count), rooms)

    def _quantised(self, choice: Choice) -> Choice:
        may = self._bounds.can_quantise and choice.kv_type == "f16"
        return replace(choice, kv_type="q8_0") if may else choice

    def _relieved(self, choice: Choice, rooms: Rooms) -> Choice | None:
        """The choice with as large a host cache as fits; None when it does not fit without one either."""
        excess = max(0, self._estimate(choice).host.total - self.usable(rooms.host))
        host_cache_mb = max(0, choice.host_cache_bytes - excess) // MIB if excess else choice.host_cache_bytes // MIB
        relieved = replace(choice, host_cache_bytes=host_cache_mb * MIB) if excess else choice
        return relieved if self.fits(relieved, rooms) else None

    def _smaller(self, choice: Choice, rooms: Rooms, min_cells: int, *, alone: bool = False) -> Choice | None:
        """As many sequences (each with its own cells), or cells (in one pool), as fit; `alone`, beside the host cache
        as it is."""
        if self._bounds.is_partitioned and min_cells == self._bounds.longest_request:
            share = choice.num_cells // choice.max_num_seqs

            def sized(count: int) -> Choice:
                return replace(choice, max_num_seqs=count, num_cells=count * share)

            lowest, highest, step = 1, choice.max_num_seqs - 1, 1
        else:

            def sized(count: int) -> Choice:
                return replace(choice, num_cells=count)

            lowest, highest, step = _cells(min_cells), choice.num_cells - 1, CELL_STEP

        def fitting(count: int) -> Choice | None:
            size = sized(count)
            return (size if self.fits(size, rooms) else None) if alone else self._relieved(size, rooms)

        count = _largest(lowest, highest, step, lambda count: fitting(count) is not None)
        return None if count is None else fitting(count)

    # ---- what to say -----------------------------------------------------------------------------

    def _refusal(self, wish: Choice, model: str, *, may_change: bool) -> DeviceUnavailable | ModelLoadError:
        is_for_now = self._can(wish, self._rooms.emptied, may_change=may_change)
        ways = self._ways_out(wish)
        if ways:
            advice = f"what would fit: {'; or '.join(ways)}"
        else:
            advice = "nothing smaller fits either until others take less" if is_for_now else "a smaller model is needed"
        message = f"{model} does not fit{' now' if is_for_now else ''}: {self._shortage(wish)}; {advice}"
        return DeviceUnavailable(message) if is_for_now else ModelLoadError(message)

    def _can(self, wish: Choice, rooms: Rooms, *, may_change: bool) -> bool:
        if self.fits(wish, rooms) or not may_change:
            return self.fits(wish, rooms)
        milder = next(self._milder(wish, rooms), None)
        return milder is not None or self._on_fewer_layers(self._quantised(wish), rooms) is not None

    def _shortage(self, wish: Choice) -> str:
        needs, rooms = self._estimate(wish), self._rooms
        memories = [("GPU memory", needs.device, rooms.device), ("memory", needs.host, rooms.host)]
        return " and ".join(
            f"it needs {gib(need.total)} of {name} ({need}), but of {gib(room.total)} {gib(room.free)} are free and "
            f"{gib(int(room.total * self._margin))} stay so (model.memory_margin)"
            for name, need, room in memories
            if need is not None and room is not None and not self._is_enough(room, need)
        )

    def _ways_out(self, wish: Choice) -> list[str]:
        """Each change that is enough alone; where none is, the mildest combination."""
        rooms, quantised, longest = self._rooms, self._quantised(wish), self._bounds.longest_request
        alone = [
            self._relieved(wish, rooms),
            self._smaller(wish, rooms, longest, alone=True) if self._bounds.is_partitioned else None,
            self._smaller(wish, rooms, MIN_CELLS, alone=True),
            quantised if quantised != wish else None,
            replace(quantised, kv_type="q4_0") if quantised != wish else None,
            self._on_fewer_layers(wish, rooms),
        ]
        fitting = [choice for choice in alone if choice is not None and self.fits(choice, rooms)]
        if not fitting:
            fitting = [*self._milder(wish, rooms)][:1] or [
                choice for choice in [self._on_fewer_layers(quantised, rooms)] if choice is not None
            ]
        return [" with ".join(_settings(wish, choice)) for choice in fitting]


def changes(wish: Choice, choice: Choice, bounds: Bounds) -> Iterator[str]:
    """What differs, in words for the owner."""
    if choice.host_cache_bytes != wish.host_cache_bytes:
        yield _instead("scheduler.host_cache_mb", choice.host_cache_bytes // MIB, wish.host_cache_bytes // MIB)
    if choice.max_num_seqs != wish.max_num_seqs:
        yield _instead("scheduler.max_num_seqs", choice.max_num_seqs, wish.max_num_seqs)
    if choice.num_cells != wish.num_cells:
        yield _instead("scheduler.kv_cells", choice.num_cells, wish.num_cells)
    if choice.kv_type != wish.kv_type:
        yield _instead("model.kv_type", choice.kv_type, wish.kv_type)
    if choice.num_gpu_layers != wish.num_gpu_layers:
        yield (
            f"only {choice.num_gpu_layers} of {bounds.num_gpu_layers} layers are on the GPU: all of the model does not "
            "fit there; the rest is computed on the CPU, which is much slower"
        )


def _instead(key: str, value: object, wish: object) -> str:
    return f"{key} is {value} instead of {wish}: that does not fit into memory"


def _settings(wish: Choice, choice: Choice) -> Iterator[str]:
    if choice.host_cache_bytes != wish.host_cache_bytes:
        yield f"scheduler.host_cache_mb {choice.host_cache_bytes // MIB}"
    if choice.max_num_seqs != wish.max_num_seqs:
        yield f"scheduler.max_num_seqs {choice.max_num_seqs}"
    if choice.num_cells != wish.num_cells:
        yield f"scheduler.kv_cells {choice.num_cells}"
    if choice.kv_type != wish.kv_type:
        yield f"model.kv_type {choice.kv_type}"
    if choice.num_gpu_layers != wish.num_gpu_layers:
        yield f"model.n_gpu_layers {choice.num_gpu_layers}"


def _cells(count: int) -> int:
    return -(-count // CELL_STEP) * CELL_STEP


def _largest(low: int, high: int, step: int, fits: Callable[[int], bool]) -> int | None:
    """The largest of low, low + step … up to high that fits; what is smaller than one that fits does too."""
    if high < low or not fits(low):
        return None
    first, last = 0, (high - low) // step  # `first` fits
    while first < last:
        middle = (first + last + 1) // 2
        first, last = (middle, last) if fits(low + middle * step) else (first, middle - 1)
    return low + first * step


def gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.0f} MiB"
