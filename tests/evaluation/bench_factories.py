"""Values of the bench's tests."""

from __future__ import annotations

import msgspec

from homeai.evaluation.bench.conditions import Changed, Conditions
from homeai.evaluation.bench.records import CallRecord, Counters, Ending, Play, Reading
from homeai.evaluation.bench.rows import Aims, Findings, Kind, Load, Row
from homeai.evaluation.bench.score import Prices, Score, score
from homeai.evaluation.bench.trace import Call, Part

WEIGHTS = {"voice": 8.0, "interactive": 4.0, "coding": 2.0, "background": 1.0}
CONDITIONS = Conditions(
    server="homeai 1",
    model="m",
    model_hash="aa",
    tokenizer="bb",
    quantisation="Q4_K_M",
    context="4096",
    hardware="a machine",
    api="/v1/chat/completions",
    lengths="as the trace says",
    settings={"scheduler.mode": "auto"},
)


def create_call(at: float = 0.0, **changes: object) -> Call:
    defaults: dict[str, object] = {
        "at": at,
        "group": "chat",
        "source": "phone",
        "fairness_class": "interactive",
        "prompt": [Part("question", 10)],
        "max_tokens": 5,
    }
    return Call(**defaults | changes)  # type: ignore[arg-type]


def create_record(
    index: int = 0, *, sent_at: float = 0.0, ttft_s: float = 0.1, num_tokens: int = 10, **changes: object
) -> CallRecord:
    """One that got `num_tokens` tokens, a tenth of a second apart."""
    times = [sent_at + ttft_s + 0.1 * number for number in range(num_tokens)]
    defaults: dict[str, object] = {
        "index": index,
        "group": "chat",
        "source": "phone",
        "fairness_class": "interactive",
        "due_at": sent_at,
        "sent_at": sent_at,
        "token_times": times,
        "ended_at": times[-1] if times else sent_at,
        "ending": Ending.COMPLETED,
        "status": 200,
        "num_prompt_tokens": 100,
        "num_output_tokens": num_tokens,
    }
    return CallRecord(**defaults | changes)  # type: ignore[arg-type]


def create_play(records: list[CallRecord], *, wall_s: float = 10.0, **counters: float) -> Play:
    readings = [Reading(at=0.0, kv_used=50, kv_kept=10, kv_total=100, num_preemptions=0)]
    return Play(records=records, readings=readings, counters=msgspec.convert(counters, Counters), wall_s=wall_s)


def create_score(
    *, ttft_p95: float = 1.0, e2e_p95: float = 3.0, phases: list[float | None] | None = None, **figures: object
) -> Score:
    """A plain one, with these of its figures changed."""
    base = score(create_play([create_record()], num_preemptions=0, busy_s=2.0), offered_s=10.0, weights=WEIGHTS)
    attended = msgspec.structs.replace(base.attended, ttft_p95=ttft_p95, e2e_p95=e2e_p95)
    return msgspec.structs.replace(
        base, attended=attended, phases=phases or [], figures=msgspec.structs.replace(base.figures, **figures)
    )


def create_row(row_id: str, kind: Kind, value: float, *scores: Score, **settings: str) -> Row:
    changed = Changed(settings={f"scheduler.{name}": setting for name, setting in settings.items()})
    return Row(id=row_id, target="homeai", changed=changed, load=Load(kind, value), scores=list(scores))


def create_findings(*rows: Row, **changes: object) -> Findings:
    defaults: dict[str, object] = {
        "bench_id": "1",
        "started_at": 0.0,
        "command": "homeai bench",
        "version": "0",
        "trace_name": "t",
        "trace_version": "v",
        "num_calls": 1,
        "duration_s": 10.0,
        "seed": 11,
        "salt": "s",
        "num_rounds": 1,
        "aims": Aims(),
        "prices": Prices(),
        "weights": WEIGHTS,
        "conditions": {"base line": CONDITIONS},
        "rows": list(rows),
    }
    return Findings(**defaults | changes)  # type: ignore[arg-type]
