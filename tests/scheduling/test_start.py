"""First tokens of a burst are drawn together, where that costs nobody its target."""

from __future__ import annotations

import itertools

from homeai.policy import ClassPolicy
from homeai.request import Request, SamplingParams
from homeai.scheduling.scheduler import Scheduler
from tests.scheduling.factories import Step, add_all, create_requests, create_scheduler, run_step, run_to_end

TARGET_S = 2.0
NUMBERS = itertools.count()


def patient_scheduler(ttft_target_s: float | None = TARGET_S, **config: object) -> Scheduler:
    """Steps of at most 128 prompt tokens; before anything is learned a prompt token takes 1.5 ms."""
    targets = {"voice": 0.5, "interactive": ttft_target_s, "background": None}
    classes = {
        name: ClassPolicy(weight=weight, queue_timeout_s=60, ttft_target_s=targets[name], itl_target_s=0.5)
        for name, weight in (("voice", 8.0), ("interactive", 4.0), ("background", 1.0))
    }
    defaults: dict[str, object] = {"mode": "continuous", "max_num_batched_tokens": 128, "adaptive_budget": True}
    return create_scheduler(classes=classes, **defaults | config)


def burst(n: int, *, num_prompt_tokens: int = 100, **changes: object) -> list[Request]:
    requests = [
        create_requests(1, source=f"s{next(NUMBERS)}", num_prompt_tokens=num_prompt_tokens)[0] for _ in range(n)
    ]
    for request in requests:
        for name, value in changes.items():
            setattr(request, name, value)
    return requests


def first_draws(steps: list[Step]) -> list[set[str]]:
    """Who gets its first token, step by step; steps without are left out."""
    return [names for step in steps if (names := {name for name, index in step.drawn if index == 0})]


def test_burst_begins_together_when_its_last_prompt_is_read() -> None:
    scheduler = patient_scheduler()
    add_all(scheduler, requests := burst(4))
    steps = run_to_end(scheduler)
    assert first_draws(steps) == [{r.request_id for r in requests}]
    assert [step.plan.num_prefill_tokens for step in steps][:4] == [128, 128, 128, 12]
    assert steps[4].plan.num_tokens == 4


def test_one_alone_does_not_wait() -> None:
    scheduler = patient_scheduler()
    add_all(scheduler, burst(1))
    assert first_draws([run_step(scheduler)])


def test_nobody_waits_when_the_prompts_take_longer_than_the_target() -> None:
    scheduler = patient_scheduler(ttft_target_s=0.4)
    add_all(scheduler, burst(4))
    assert len(first_draws(run_to_end(scheduler))) == 4


def test_chat_does_not_wait_for_a_document() -> None:
    scheduler = patient_scheduler()
    add_all(scheduler, burst(1, num_prompt_tokens=600))
    run_step(scheduler)
    add_all(scheduler, chat := burst(1, num_prompt_tokens=40))
    assert first_draws(run_to_end(scheduler))[0] == {chat[0].request_id}


def test_who_came_first_sets_the_time() -> None:
    scheduler = patient_scheduler()
    add_all(scheduler, requests := burst(4, arrival_at=1.6))
    requests[0].arrival_at = 0.0
    assert first_draws([run_step(scheduler, 1.6)])


def test_without_a_target_there_is_time() -> None:
    scheduler = patient_scheduler(num_kv_cells=16384)
    add_all(scheduler, burst(4, num_prompt_tokens=2000, fairness_class="background"))
    assert len(first_draws(run_to_end(scheduler))) == 1


def test_heavier_class_does_not_wait_for_a_lighter_one() -> None:
    scheduler = patient_scheduler()
    add_all(scheduler, burst(2), voice := burst(1, num_prompt_tokens=50, fairness_class="voice"))
    assert first_draws(run_to_end(scheduler))[0] == {voice[0].request_id}


def test_lighter_class_waits_for_a_heavier_one() -> None:
    scheduler = patient_scheduler()
    add_all(scheduler, chats := burst(2))
    run_step(scheduler)
    add_all(scheduler, voices := burst(2, num_prompt_tokens=120, fairness_class="voice"))
    assert first_draws(run_to_end(scheduler)) == [{r.request_id for r in [*chats, *voices]}]


def test_nobody_waits_beside_a_stream() -> None:
    scheduler = patient_scheduler()
    add_all(scheduler, burst(1, fairness_class="voice"))
    run_step(scheduler)
    add_all(scheduler, burst(4))
    assert [len(names) for names in first_draws(run_to_end(scheduler))] == [1, 1, 1, 1]


def test_who_cannot_run_is_not_waited_for() -> None:
    scheduler = patient_scheduler(max_num_seqs=2)
    add_all(scheduler, requests := burst(6, num_prompt_tokens=60))
    steps = [run_step(scheduler), run_step(scheduler)]
    assert first_draws(steps) == [{requests[0].request_id, requests[1].request_id}]


def test_prompt_known_to_its_last_token_waits_too() -> None:
    scheduler = patient_scheduler(max_kept_cells=None)
    add_all(scheduler, known := burst(1))
    run_to_end(scheduler)
    again = Request("again", list(known[0].prompt_token_ids), SamplingParams(max_tokens=4), source="a")
    add_all(scheduler, [again], others := burst(2))
    assert first_draws(run_to_end(scheduler)) == [{"again", *(r.request_id for r in others)}]


def test_beginning_that_all_share_counts_once() -> None:
    scheduler = patient_scheduler(num_kv_cells=16384)
    head = list(range(2000, 2900))
    requests = [Request(f"r{i}", [*head, i, 1], SamplingParams(max_tokens=4), source=f"s{i}") for i in range(8)]
    add_all(scheduler, requests)
    steps = run_to_end(scheduler)
    assert first_draws(steps) == [{r.request_id for r in requests}]
    assert sum(step.plan.num_prefill_tokens for step in steps) <= 900 + 8 * 16


def test_one_token_answers_and_fixed_budgets_do_not_wait() -> None:
    scheduler = patient_scheduler()
    short = [Request(f"r{i}", [9 + i] * 100, SamplingParams(max_tokens=1), source=f"s{i}") for i in range(4)]
    add_all(scheduler, short)
    assert len(first_draws(run_to_end(scheduler))) == 4
    scheduler = patient_scheduler(adaptive_budget=False)
    add_all(scheduler, burst(4))
    assert len(first_draws(run_to_end(scheduler))) == 4


def test_lone_newcomer_is_read_a_little_before_we_look_who_comes_with_it() -> None:
    scheduler = patient_scheduler(mode="auto", max_num_batched_tokens=512)
    add_all(scheduler, first := burst(1))
    assert list(run_step(scheduler).tokens.values()) == [32]
    add_all(scheduler, others := burst(3))
    assert first_draws(run_to_end(scheduler)) == [{r.request_id for r in [*first, *others]}]


def test_short_prompt_is_read_in_one_go() -> None:
    scheduler = patient_scheduler(mode="auto")
    add_all(scheduler, burst(1, num_prompt_tokens=60))
    assert first_draws([run_step(scheduler)])
