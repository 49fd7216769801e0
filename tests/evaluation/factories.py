"""Settings of the simulator's tests."""

from __future__ import annotations

from dataclasses import replace

from homeai.evaluation.cost_fit import MeasuredStep
from homeai.evaluation.cost_model import MeasuredCost
from homeai.evaluation.workload import Arrival
from homeai.policy import ClassPolicy
from homeai.scheduling.cache import CacheConfig
from homeai.scheduling.controls import SchedulerConfig

WEIGHTS = {"voice": 8.0, "interactive": 4.0, "coding": 2.0, "background": 1.0}
COST = MeasuredCost(
    source="test",
    decode_s=[(1, 0.0187), (2, 0.026), (4, 0.031), (8, 0.047), (16, 0.083)],
    decode_cell_s=0.022 / (8 * 15_000),
    mixed_step_s=0.014,
    mixed_prefill_s=0.00183,
    mixed_decode_s=0.0035,
    mixed_cell_s=1.5e-8,
    save_token_s=0.033 / 815,
    restore_token_s=0.0016 / 815,
)

NO_TARGETS = {name: ClassPolicy(weight=weight) for name, weight in WEIGHTS.items()}
TARGETS = NO_TARGETS | {
    "voice": ClassPolicy(weight=8.0, ttft_target_s=0.8, itl_target_s=0.25, share_cap=0.7),
    "interactive": ClassPolicy(weight=4.0, ttft_target_s=2.5, itl_target_s=0.3, share_cap=0.6),
}


def create_config(*, num_cells: int = 4096, num_seqs: int = 16, **changes: object) -> SchedulerConfig:
    """`changes` are fields of the scheduler's or else of the cache's configuration."""
    cache = CacheConfig(num_cells=num_cells, num_seqs=num_seqs, kv_bytes_per_token=1000, host_bytes=100_000)
    in_cache = {name: changes.pop(name) for name in list(changes) if hasattr(cache, name)}
    defaults: dict[str, object] = {
        "mode": "continuous",
        "max_model_len": num_cells,
        "classes": NO_TARGETS,
        "cache": replace(cache, **in_cache),  # type: ignore[arg-type]
    }
    return SchedulerConfig(**defaults | changes)  # type: ignore[arg-type]


def create_arrivals(
    n: int,
    *,
    at: float = 0.0,
    num_prompt_tokens: int = 10,
    max_tokens: int = 5,
    source: str = "a",
    fairness_class: str = "interactive",
    **changes: float | bool,
) -> list[Arrival]:
    """Requests that arrive together and share nothing."""
    first = 1000 * sum(map(ord, source + fairness_class))
    return [
        Arrival(
            at=at,
            source=source,
            fairness_class=fairness_class,
            prompt_token_ids=[first + number, *range(1, num_prompt_tokens)],
            max_tokens=max_tokens,
            **changes,  # type: ignore[arg-type]
        )
        for number in range(n)
    ]


def create_measured_step(
    step_s: float,
    *,
    prefill: int = 0,
    rows: int = 0,
    context: int = 500,
    attended: int = 500,
    cells: int = 500,
    **changes: float,
) -> MeasuredStep:
    return MeasuredStep(
        num_prefill_tokens=prefill,
        num_decode_tokens=rows,
        num_context_tokens=context,
        num_attended_tokens=attended,
        kv_used=cells,
        step_s=step_s,
        **changes,  # type: ignore[arg-type]
    )
