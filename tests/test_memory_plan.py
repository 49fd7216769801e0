"""What fits is loaded, what does not is refused with what would. Sizes of cards and models are public figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homeai.errors import DeviceUnavailable, ModelLoadError
from homeai.memory_plan import GIB, MIB, MIN_CELLS, Bounds, Choice, Estimate, Needs, Plan, Planner, Room, Rooms
from homeai.model_sizes import ModelSizes, StepSize, needs, rough_buffers

GB = 10**9
STEP = StepSize(num_outputs=23, num_tokens=512)


def model(weights: float, num_layers: int, num_kv_heads: int = 8, num_embd: int = 4096) -> ModelSizes:
    """A usual one: head size 128, 128k tokens of vocabulary."""
    embedding = int(weights * 0.04)
    return ModelSizes(
        embedding=embedding,
        layers=(int((weights - 2 * embedding) / num_layers),) * num_layers,
        output=embedding,
        is_tied=False,
        kv_values=num_layers * num_kv_heads * 2 * 128,
        num_vocab=128_256,
        num_embd=num_embd,
        num_ff=int(3.5 * num_embd),
        n_ctx_train=131_072,
    )


M8 = model(4.9 * GB, 32)
M32 = model(19.8 * GB, 64, num_embd=5120)
M70 = model(42.5 * GB, 80, num_embd=8192)


def card(total: float, used: float = 0.5, ram: float = 64.0, free_ram: float = 56.0) -> Rooms:
    """GB of a graphics card, and of the machine around it."""
    return Rooms(Room(int((total - used) * GB), int(total * GB)), Room(int(free_ram * GB), int(ram * GB)))


def cpu(total: float, free: float) -> Rooms:
    return Rooms(None, Room(int(free * GB), int(total * GB)))


RTX_5090 = card(32)
RTX_4090 = card(24)
RTX_3060 = card(12)


def estimate_of(sizes: ModelSizes, *, on_device: bool) -> Estimate:
    def estimate(choice: Choice) -> Needs:
        return needs(sizes, rough_buffers(sizes, choice, STEP, on_device=on_device), choice, on_device=on_device)

    return estimate


def wish(sizes: ModelSizes, *, on_device: bool = True, **changes: object) -> Choice:
    layers = sizes.num_gpu_layers if on_device else 0
    return replace(Choice(16384, 8, "f16", layers, 512 * MIB), **changes)  # type: ignore[arg-type]


def plan(
    sizes: ModelSizes,
    rooms: Rooms,
    wanted: Choice | None = None,
    *,
    fit: str = "auto",
    longest: int = 16384,
    can_quantise: bool = True,
    is_partitioned: bool = False,
) -> Plan:
    on_device = rooms.device is not None
    bounds = Bounds(longest, sizes.num_gpu_layers if on_device else 0, can_quantise, is_partitioned)
    planner = Planner(estimate_of(sizes, on_device=on_device), bounds, rooms, margin=0.05)
    return planner.plan(wanted or wish(sizes, on_device=on_device), may_change=fit == "auto", model="model.gguf")


# ---- what fits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sizes", "rooms"), [(M8, RTX_3060), (M8, RTX_5090), (M32, RTX_5090), (M70, card(80))])
def test_what_fits_is_loaded_as_it_was_wanted(sizes: ModelSizes, rooms: Rooms) -> None:
    for fit in ("auto", "strict"):
        planned = plan(sizes, rooms, fit=fit)
        assert planned.choice == wish(sizes)
        assert planned.changes == ()


def test_needs_are_weights_kv_buffers_and_the_host_cache() -> None:
    need = plan(M8, RTX_5090).needs
    assert need.device is not None
    assert need.device.weights == M8.weights - M8.embedding
    assert need.device.kv == 16384 * 131072  # 8B: 128 KiB a token
    assert need.host.weights == M8.embedding
    assert need.host.host_cache == 512 * MIB
    assert need.host.process > 0


def test_shared_embedding_is_twice_in_memory_with_a_gpu() -> None:
    tied = replace(M8, is_tied=True, output=0)
    need = plan(tied, RTX_5090).needs
    assert need.device is not None
    assert need.device.weights == sum(M8.layers) + M8.embedding
    assert need.host.weights == M8.embedding


# ---- strict: refused, with what would fit --------------------------------------------------------------


def test_70b_on_a_5090_is_refused_with_the_layers_that_fit() -> None:
    with pytest.raises(ModelLoadError) as refused:
        plan(M70, RTX_5090, fit="strict")
    message = str(refused.value)
    assert "needs 43.3 GiB of GPU memory (weights 38.0 GiB, KV 5.0 GiB" in message
    assert "of 29.8 GiB 29.3 GiB are free and 1.5 GiB stay so (model.memory_margin)" in message
    assert "what would fit: model.n_gpu_layers 51" in message
    assert "\n" not in message


def test_every_change_that_is_enough_alone_is_offered() -> None:
    with pytest.raises(ModelLoadError) as refused:
        plan(M8, card(8), wish(M8, num_cells=24576), fit="strict", longest=24576)
    offers = str(refused.value).partition("what would fit: ")[2].split("; or ")
    keys = [offer.rpartition(" ")[0] for offer in offers]
    assert keys == ["scheduler.kv_cells", "model.kv_type", "model.kv_type", "model.n_gpu_layers"]
    assert offers[1:3] == ["model.kv_type q8_0", "model.kv_type q4_0"]


@pytest.mark.parametrize("setting", ["num_cells", "kv_type", "num_gpu_layers"])
def test_what_is_offered_fits(setting: str) -> None:
    wanted = wish(M8, num_cells=24576)
    with pytest.raises(ModelLoadError) as refused:
        plan(M8, card(8), wanted, fit="strict", longest=24576)
    names = {"num_cells": "scheduler.kv_cells", "kv_type": "model.kv_type", "num_gpu_layers": "model.n_gpu_layers"}
    offer = next(
        o for o in str(refused.value).partition("would fit: ")[2].split("; or ") if o.startswith(names[setting])
    )
    value = offer.rpartition(" ")[2]
    taken = replace(wanted, **{setting: value if setting == "kv_type" else int(value)})  # type: ignore[arg-type]
    assert plan(M8, card(8), taken, fit="strict", longest=24576).choice == taken


def test_changes_that_are_enough_only_together_are_offered_together() -> None:
    with pytest.raises(ModelLoadError, match=r"what would fit: scheduler\.kv_cells \d+ with model\.kv_type q8_0$"):
        plan(M70, cpu(46.45, 46.45), wish(M70, on_device=False, num_cells=65536, host_cache_bytes=0), fit="strict")


def test_hopeless_model_is_told_to_be_too_large() -> None:
    for fit in ("auto", "strict"):
        with pytest.raises(ModelLoadError, match=r"does not fit: .*; a smaller model is needed"):
            plan(M70, card(8, ram=16, free_ram=12), fit=fit)


# ---- for now, or for good ------------------------------------------------------------------------------


def test_memory_that_others_have_now_is_waited_for() -> None:
    game = card(24, used=20)
    with pytest.raises(DeviceUnavailable, match=r"does not fit now: it needs .* but of 22\.4 GiB 3\.7 GiB are free"):
        plan(M8, game)
    assert plan(M8, RTX_4090).changes == ()


def test_layers_do_not_go_to_the_cpu_because_of_a_game() -> None:
    """It would be slow for good, and the card is large enough."""
    with pytest.raises(DeviceUnavailable):
        plan(M32, card(32, used=20))


def test_70b_on_a_card_in_use_waits_for_its_layers() -> None:
    with pytest.raises(DeviceUnavailable):
        plan(M70, card(32, used=28))


def test_ram_that_others_have_now_is_waited_for() -> None:
    with pytest.raises(DeviceUnavailable):
        plan(M8, cpu(16, 3))


# ---- auto: the mildest change --------------------------------------------------------------------------


def test_host_cache_gives_way_first() -> None:
    planned = plan(M8, cpu(16, 8.6))
    assert planned.choice == replace(wish(M8, on_device=False), host_cache_bytes=planned.choice.host_cache_bytes)
    assert 0 < planned.choice.host_cache_bytes < 512 * MIB
    assert [change.partition(" is ")[0] for change in planned.changes] == ["scheduler.host_cache_mb"]


def test_pool_shrinks_as_long_as_the_longest_request_fits() -> None:
    planned = plan(M8, card(8), wish(M8, num_cells=24576), longest=8192)
    assert 8192 <= planned.choice.num_cells < 24576
    assert planned.choice == wish(M8, num_cells=planned.choice.num_cells)
    assert [change.partition(" is ")[0] for change in planned.changes] == ["scheduler.kv_cells"]


def test_fewer_sequences_keep_the_length_of_each_where_cells_are_parted() -> None:
    planned = plan(M8, card(8), wish(M8, num_cells=24576), longest=3072, is_partitioned=True)
    assert planned.choice.max_num_seqs < 8
    assert planned.choice.num_cells == 3072 * planned.choice.max_num_seqs
    assert planned.choice.kv_type == "f16"


def test_kv_is_quantised_before_the_context_gets_shorter() -> None:
    planned = plan(M8, card(8), wish(M8, num_cells=24576), longest=24576)
    assert planned.choice == wish(M8, num_cells=24576, kv_type="q8_0")
    assert planned.changes == ("model.kv_type is q8_0 instead of f16: that does not fit into memory",)


def test_context_gets_shorter_where_quantising_is_not_enough() -> None:
    planned = plan(M8, card(8), wish(M8, num_cells=65536), longest=65536)
    assert planned.choice.kv_type == "q8_0"
    assert MIN_CELLS <= planned.choice.num_cells < 65536
    assert planned.choice.num_gpu_layers == M8.num_gpu_layers


def test_kv_is_not_quantised_without_flash_attention() -> None:
    planned = plan(M8, card(8), wish(M8, num_cells=24576), longest=24576, can_quantise=False)
    assert planned.choice.kv_type == "f16"
    assert planned.choice.num_cells < 24576


def test_70b_on_a_5090_keeps_as_many_layers_as_fit_on_the_card() -> None:
    planned = plan(M70, RTX_5090)
    assert 45 <= planned.choice.num_gpu_layers <= 60
    (kv, layers) = planned.changes
    assert kv.startswith("model.kv_type is q8_0")
    assert layers.startswith(f"only {planned.choice.num_gpu_layers} of 81 layers are on the GPU")
    one_more = replace(planned.choice, num_gpu_layers=planned.choice.num_gpu_layers + 1)
    with pytest.raises((ModelLoadError, DeviceUnavailable)):
        plan(M70, RTX_5090, one_more, fit="strict")


def test_layers_on_the_cpu_need_memory_there() -> None:
    with pytest.raises(ModelLoadError, match=r"needs 43\.3 GiB of GPU memory"):
        plan(M70, card(32, ram=16, free_ram=14))


# ---- for any machine -----------------------------------------------------------------------------------


@given(
    st.sampled_from([M8, M32, M70]),
    st.floats(2, 100),
    st.floats(0, 1),
    st.floats(4, 128),
    st.sampled_from([4096, 16384, 131072]),
    st.booleans(),
)
def test_plan_always_fits_and_never_takes_more_than_was_wanted(
    sizes: ModelSizes, total: float, used: float, ram: float, num_cells: int, has_gpu: bool
) -> None:
    rooms = card(total, used=total * used, ram=ram, free_ram=ram * 0.9) if has_gpu else cpu(ram, ram * 0.9)
    wanted = wish(sizes, on_device=has_gpu, num_cells=num_cells)
    try:
        planned = plan(sizes, rooms, wanted, longest=num_cells)
    except (ModelLoadError, DeviceUnavailable):
        return
    for need, room in ((planned.needs.device, rooms.device), (planned.needs.host, rooms.host)):
        if need is not None and room is not None:
            assert need.total <= room.free - int(room.total * 0.05)
    assert (planned.changes == ()) == (planned.choice == wanted)
    for key in ("num_cells", "max_num_seqs", "num_gpu_layers", "host_cache_bytes"):
        assert getattr(planned.choice, key) <= getattr(wanted, key)


def test_sizes_are_told_in_units_that_people_read() -> None:
    assert str(plan(M8, RTX_5090).needs.host).startswith("weights 187 MiB, ")
    assert GIB == 1024 * MIB
