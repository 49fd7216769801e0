"""The busy loop with recorded messages: no sockets, no threads, no real time."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from homeai.backends.simulated.runner import LinearCost, SimulatedRunner
from homeai.clock import VirtualClock
from homeai.engine.engine import Engine
from homeai.engine.loop import SNAPSHOT_INTERVAL_S, SNAPSHOT_MAX_REQUESTS, UNFIT_GRAMMAR, EngineLoop
from homeai.engine.runner import RunnerLimits
from homeai.engine.wire import Prepared
from homeai.errors import GrammarFailed
from homeai.evaluation.cost_fit import load_steps
from homeai.messages import (
    AbortRequests,
    AddRequest,
    Down,
    EngineConfig,
    Finished,
    Heartbeat,
    LoadModel,
    Ping,
    Progress,
    RequestFailed,
    Shutdown,
    StepOutputs,
    Up,
)
from homeai.request import FinishReason, Grammar, Request, SampledToken, SamplingParams, WaitReason
from homeai.scheduling.plan import StepPlan, StepResult
from tests.engine.factories import limits_of
from tests.scheduling.factories import create_scheduler

Message = TypeVar("Message", bound=Up)


class ScriptedInbox:
    """Hands out a script: messages, and None where nothing more has come yet. Ends with Shutdown, when idle."""

    def __init__(self, script: Iterable[Down | Prepared | None]) -> None:
        self._script = deque(script)
        self.timeouts: list[float] = []

    def put(self, message: Prepared) -> None:
        self._script.append(message)

    def get(self, timeout_s: float) -> Down | Prepared | None:
        self.timeouts.append(timeout_s)
        return self._script.popleft() if self._script else Shutdown()

    def get_nowait(self) -> Down | Prepared | None:
        return self._script.popleft() if self._script else None


class RecordingOutbox:
    def __init__(self) -> None:
        self.messages: list[Up] = []
        self.sent: list[list[Up]] = []  # what left together
        self._held: list[Up] = []

    def hold(self, message: Up) -> None:
        self.messages.append(message)
        self._held.append(message)

    def put(self, message: Up) -> None:
        self.hold(message)
        self.flush()

    def flush(self) -> None:
        if self._held:
            self.sent.append(self._held)
            self._held = []

    def of(self, kind: type[Message]) -> list[Message]:
        return [m for m in self.messages if isinstance(m, kind)]

    @property
    def finished(self) -> list[Finished]:
        return [f for m in self.of(StepOutputs) for f in m.finished]

    @property
    def drawn(self) -> list[tuple[str, int]]:
        return [(o.request_id, o.output_index) for m in self.of(StepOutputs) for o in m.outputs]

    @property
    def ended(self) -> dict[str, FinishReason]:
        reasons = {f.request_id: f.finish_reason for f in self.finished}
        assert len(reasons) == len(self.finished), "an end is said once"
        return reasons


def add(name: str, *, num_prompt_tokens: int = 10, max_tokens: int = 3, source: str = "default") -> AddRequest:
    return AddRequest(
        request_id=name,
        prompt_token_ids=[5] * num_prompt_tokens,
        sampling=SamplingParams(max_tokens=max_tokens),
        source=source,
        fairness_class="interactive",
        arrival_at=0.0,
    )


def run(
    *script: Down | Prepared | None,
    runner_type: type[SimulatedRunner] = SimulatedRunner,
    step_log: io.BytesIO | None = None,
    **config: object,
) -> tuple[RecordingOutbox, ScriptedInbox]:
    scheduler = create_scheduler(**config)
    limits = limits_of(scheduler.config)
    clock = VirtualClock()
    engine = Engine(scheduler, runner_type(limits, clock), clock)
    inbox, outbox = ScriptedInbox(script), RecordingOutbox()
    EngineLoop(engine, inbox, outbox, heartbeat_interval_s=0.25, step_log=step_log).run()  # type: ignore[arg-type]
    return outbox, inbox


# ---- steps ------------------------------------------------------------------------------------------


def test_each_step_is_told_once_with_its_tokens() -> None:
    outbox, _ = run(add("a"), add("b"))
    steps = outbox.of(StepOutputs)
    assert [m.stats.step for m in steps] == [1, 2, 3, 4]
    assert [[o.request_id for o in m.outputs] for m in steps] == [["a", "b"], ["a", "b"], ["a", "b"], []]


def test_tokens_come_in_order_each_once() -> None:
    outbox, _ = run(add("a", max_tokens=5))
    assert outbox.drawn == [("a", i) for i in range(5)]


def test_end_comes_with_the_last_token() -> None:
    outbox, _ = run(add("a", max_tokens=2))
    last = [m for m in outbox.of(StepOutputs) if m.outputs][-1]
    assert [o.output_index for o in last.outputs] == [1]
    assert [(f.request_id, f.finish_reason, f.num_output_tokens) for f in last.finished] == [
        ("a", FinishReason.LENGTH, 2)
    ]


def test_admission_is_said_once_before_the_first_token() -> None:
    outbox, _ = run(add("a", num_prompt_tokens=700), add("b"))
    steps = outbox.of(StepOutputs)
    assert [name for m in steps for name in m.admitted] == ["a", "b"]
    assert steps[0].admitted == ["a", "b"]


def test_messages_are_taken_in_between_steps() -> None:
    outbox, _ = run(add("a", max_tokens=4), None, None, add("b", max_tokens=4))
    told = outbox.of(StepOutputs)
    (joined,) = [i for i, m in enumerate(told) if "b" in m.admitted]
    assert 0 < joined < 3, "steps before it"
    assert outbox.ended.keys() == {"a", "b"}


def test_stats_tell_the_step_as_it_ran() -> None:
    outbox, _ = run(add("a", max_tokens=1), add("b", max_tokens=1))
    first = outbox.of(StepOutputs)[0].stats
    assert first.mode == "continuous", "although nobody is left after it"
    assert (first.num_decode_tokens, first.num_prefill_tokens) == (0, 20)
    assert first.step_s > 0
    assert first.host_s == pytest.approx(0.0)


def test_log_of_steps_tells_what_their_times_come_from(tmp_path: Path) -> None:
    log = io.BytesIO()
    run(add("a", max_tokens=2), None, add("b", num_prompt_tokens=20, max_tokens=1), step_log=log)
    (path := tmp_path / "steps").write_bytes(log.getvalue())
    seen = [
        (s.num_prefill_tokens, s.num_decode_tokens, s.num_attended_tokens, s.num_outputs, s.num_arrived)
        for s in load_steps(path)
    ]
    assert seen == [(10, 0, 55, 1, 1), (20, 1, 210 + 11, 2, 0)]


def test_shutdown_that_comes_while_a_step_is_logged_ends_what_is_live() -> None:
    outbox, _ = run(add("a", max_tokens=50), None, Shutdown(), step_log=io.BytesIO())
    assert outbox.ended == {"a": FinishReason.ABORT}


def test_finished_request_tells_its_times_and_counts() -> None:
    outbox, _ = run(add("a", num_prompt_tokens=10, max_tokens=60), add("b", max_tokens=60), num_kv_cells=64)
    parked = next(f for f in outbox.finished if f.request_id == "b")
    assert parked.num_preemptions == 1
    assert parked.parked_s > 0
    assert parked.admitted_at == 0.0
    assert parked.first_token_at is not None


class QuickRunner(SimulatedRunner):
    """As a small model on a GPU: 4 ms a step of few tokens."""

    step_s = 0.004

    def __init__(self, limits: RunnerLimits, clock: VirtualClock) -> None:
        super().__init__(limits, clock, LinearCost(self.step_s, decode_token_s=0.0, prefill_token_s=0.001))


class SteadyRunner(QuickRunner):
    """As a larger one: two steps take longer than what is said may wait."""

    step_s = 0.025


def tokens_sent(outbox: RecordingOutbox) -> list[list[int]]:
    """The output indices that left together."""
    sent = [[o.output_index for m in part if isinstance(m, StepOutputs) for o in m.outputs] for part in outbox.sent]
    return [indices for indices in sent if indices]


def test_tokens_of_quick_steps_leave_together_but_the_first_at_once() -> None:
    outbox, _ = run(add("a", max_tokens=16), runner_type=QuickRunner)
    assert tokens_sent(outbox) == [[0], [*range(1, 10)], [*range(10, 16)]]
    assert [m.stats.step for m in outbox.of(StepOutputs)] == list(range(1, 18)), "each step is told"


def test_tokens_of_slow_steps_leave_one_by_one() -> None:
    outbox, _ = run(add("a", max_tokens=5), runner_type=SteadyRunner)
    assert tokens_sent(outbox) == [[0], [1], [2], [3], [4]]


def test_all_tokens_of_a_slow_step_leave_in_it() -> None:
    outbox, _ = run(*[add(name, max_tokens=5) for name in "abc"], runner_type=SteadyRunner)
    drawn = [[o.request_id for m in part for o in m.outputs] for part in outbox.sent]  # type: ignore[union-attr]
    assert [names for names in drawn if names] == [["a", "b", "c"]] * 5


def test_tokens_of_quick_steps_do_not_wait_for_a_slow_one() -> None:
    waiting = [None] * 3
    outbox, _ = run(add("a", max_tokens=9), *waiting, add("b", num_prompt_tokens=200), runner_type=QuickRunner)
    assert tokens_sent(outbox)[:2] == [[0], [1, 2]], "and then b's prompt is read, in 0.2 s"


# ---- idle -------------------------------------------------------------------------------------------


def test_idle_loop_beats() -> None:
    outbox, inbox = run(None, None, None)
    assert outbox.messages == [Heartbeat(0), Heartbeat(0)]
    assert inbox.timeouts == [0.25] * 3


def test_loop_does_not_wait_while_there_is_work() -> None:
    outbox, inbox = run(add("a", max_tokens=50))
    assert len(inbox.timeouts) == 1, "when all is done"
    assert outbox.of(Heartbeat) == []


def test_ping_is_answered_with_the_step_number() -> None:
    outbox, _ = run(Ping(), add("a", max_tokens=4), None, None, Ping())
    before, during = outbox.of(Heartbeat)
    assert before.step == 0
    assert 1 <= during.step < 4


def test_freed_cells_are_given_back_before_the_loop_rests() -> None:
    outbox, _ = run(add("a", max_tokens=1))
    assert [m.stats.kv_used for m in outbox.of(StepOutputs)] == [0, 0]


# ---- abort ------------------------------------------------------------------------------------------


def test_abort_is_said_within_one_step() -> None:
    outbox, _ = run(add("a", max_tokens=100), None, None, AbortRequests(["a"]))
    last_token = max(m.stats.step for m in outbox.of(StepOutputs) if m.outputs)
    (ended,) = [m.stats.step for m in outbox.of(StepOutputs) if m.finished]
    assert ended == last_token + 1
    assert outbox.ended == {"a": FinishReason.ABORT}


def test_abort_carries_its_reason() -> None:
    outbox, _ = run(add("a", max_tokens=100), None, AbortRequests(["a"], FinishReason.STOP))
    assert outbox.ended == {"a": FinishReason.STOP}


def test_request_that_was_aborted_before_any_step_is_never_computed() -> None:
    outbox, _ = run(add("a"), AbortRequests(["a"]))
    (message,) = outbox.of(StepOutputs)
    assert (message.outputs, message.stats.num_prefill_tokens) == ([], 0)
    assert outbox.ended == {"a": FinishReason.ABORT}


def test_abort_of_unknown_and_finished_requests_says_nothing() -> None:
    outbox, _ = run(AbortRequests(["nobody"]), add("a", max_tokens=1), None, None, None, AbortRequests(["a", "a"]))
    assert outbox.ended == {"a": FinishReason.LENGTH}


def test_abort_of_one_leaves_the_others_tokens_complete() -> None:
    outbox, _ = run(add("a", max_tokens=9), add("b", max_tokens=9), None, None, AbortRequests(["a"]))
    assert [i for name, i in outbox.drawn if name == "b"] == list(range(9))


# ---- refusals, ends, failures -----------------------------------------------------------------------


def test_impossible_request_fails_alone() -> None:
    outbox, _ = run(
        add("a"),
        None,
        add("long", num_prompt_tokens=101),
        add("empty", num_prompt_tokens=0),
        add("b"),
        max_model_len=100,
    )
    assert [m.request_id for m in outbox.of(RequestFailed)] == ["long", "empty"]
    assert outbox.ended == {"a": FinishReason.LENGTH, "b": FinishReason.LENGTH}


def test_shutdown_ends_what_is_live_as_aborted() -> None:
    outbox, _ = run(add("a", max_tokens=100), add("b", max_tokens=100), None, None, Shutdown(), max_num_seqs=1)
    assert outbox.ended == {"a": FinishReason.ABORT, "b": FinishReason.ABORT}


def test_nothing_is_taken_in_after_shutdown() -> None:
    outbox, _ = run(Shutdown(), add("late"))
    assert outbox.messages == []


def test_unexpected_message_is_a_bug() -> None:
    config = EngineConfig(**dict.fromkeys(EngineConfig.__struct_fields__))
    with pytest.raises(AssertionError, match="LoadModel"):
        run(LoadModel(config))


class BrokenRunner(SimulatedRunner):
    def execute(self, plan: StepPlan) -> StepResult:
        raise RuntimeError("llama_decode failed with code -3")


def test_failure_of_the_runner_ends_the_loop() -> None:
    with pytest.raises(RuntimeError, match="code -3"):
        run(add("a"), runner_type=BrokenRunner)


# ---- what some must wait for before they begin ------------------------------------------------------


class PreparingRunner(SimulatedRunner):
    """Those whose name says so have work beside the loop to wait for; the grammar "bad" fails."""

    def prepare(self, request: Request, on_prepared: Callable[[], None]) -> bool:
        return not request.request_id.startswith("slow")

    def add(self, request: Request) -> None:
        if request.sampling.grammar == Grammar("bad"):
            raise GrammarFailed("line 1: unexpected end")
        super().add(request)


def test_request_that_is_prepared_waits_and_nobody_else_does() -> None:
    outbox, _ = run(add("slow"), add("b"), None, None, None, None, Prepared("slow"), runner_type=PreparingRunner)
    assert outbox.ended == {"slow": FinishReason.LENGTH, "b": FinishReason.LENGTH}
    ends = [f.request_id for f in outbox.finished]
    assert ends == ["b", "slow"]
    assert [name for m in outbox.of(StepOutputs) for name in m.admitted] == ["b", "slow"]


def test_request_that_is_prepared_is_prepared_beside_the_loop() -> None:
    """The runner's own thread tells the loop, through its inbox."""

    class TellingRunner(SimulatedRunner):
        def prepare(self, request: Request, on_prepared: Callable[[], None]) -> bool:
            on_prepared()
            return False

    outbox, _ = run(add("a"), runner_type=TellingRunner)
    assert outbox.ended == {"a": FinishReason.LENGTH}


def test_abort_ends_a_request_that_is_being_prepared() -> None:
    script = add("slow"), None, AbortRequests(["slow"], FinishReason.STOP), Prepared("slow"), add("b")
    outbox, _ = run(*script, runner_type=PreparingRunner)
    assert outbox.ended == {"slow": FinishReason.STOP, "b": FinishReason.LENGTH}
    assert {name for name, _ in outbox.drawn} == {"b"}


def test_shutdown_ends_a_request_that_is_being_prepared() -> None:
    outbox, _ = run(add("slow"), None, Shutdown(), runner_type=PreparingRunner)
    assert outbox.ended == {"slow": FinishReason.ABORT}


def test_grammar_that_cannot_be_compiled_fails_its_request_alone() -> None:
    bad = msgspec.structs.replace(add("bad"), sampling=SamplingParams(max_tokens=3, grammar=Grammar("bad")))
    slow = msgspec.structs.replace(bad, request_id="slow")
    outbox, _ = run(bad, slow, add("b"), Prepared("slow"), runner_type=PreparingRunner)
    assert outbox.of(RequestFailed) == [
        RequestFailed("bad", UNFIT_GRAMMAR.format("line 1: unexpected end"), is_invalid=True),
        RequestFailed("slow", UNFIT_GRAMMAR.format("line 1: unexpected end"), is_invalid=True),
    ]
    assert outbox.ended == {"b": FinishReason.LENGTH}


def test_backend_that_follows_no_grammar_refuses_one() -> None:
    """G16"""
    held = msgspec.structs.replace(add("held"), sampling=SamplingParams(grammar=Grammar("start: /a/")))
    outbox, _ = run(held, add("b"))
    assert [m.request_id for m in outbox.of(RequestFailed)] == ["held"]
    assert outbox.ended == {"b": FinishReason.LENGTH}


class StuckRunner(SimulatedRunner):
    """Cannot draw the second token of "stuck", nor the first of "hopeless"."""

    def execute(self, plan: StepPlan) -> StepResult:
        result = super().execute(plan)
        sampled: list[tuple[SampledToken, ...]] = [tuple(tokens) for tokens in result.sampled]
        for i, chunk in enumerate(plan.chunks):
            if chunk.request_id == "hopeless" or (chunk.request_id == "stuck" and chunk.start >= 10):
                sampled[i] = ()
                result.failed[chunk.request_id] = "too complex"
        result.sampled = sampled
        return result


def test_request_whose_next_token_cannot_be_drawn_fails_alone() -> None:
    outbox, _ = run(add("stuck"), add("b"), runner_type=StuckRunner)
    assert outbox.of(RequestFailed) == [RequestFailed("stuck", UNFIT_GRAMMAR.format("too complex"), is_invalid=True)]
    assert outbox.ended == {"b": FinishReason.LENGTH}
    assert [i for name, i in outbox.drawn if name == "stuck"] == [0]
    assert outbox.of(StepOutputs)[-1].stats.num_running == 0


def test_failure_is_told_after_what_else_its_step_says_of_the_request() -> None:
    """The front end has forgotten it by then, and would not know who was admitted."""
    outbox, _ = run(add("hopeless"), add("b"), runner_type=StuckRunner)
    (failed,) = outbox.of(RequestFailed)
    (told,) = [m for m in outbox.of(StepOutputs) if "hopeless" in m.admitted]
    assert outbox.messages.index(told) < outbox.messages.index(failed)
    assert outbox.ended == {"b": FinishReason.LENGTH}


# ---- snapshots --------------------------------------------------------------------------------------


def snapshots(outbox: RecordingOutbox) -> list[list[Progress]]:
    return [m.progress for m in outbox.of(StepOutputs) if m.progress is not None]


def test_first_step_of_the_day_has_a_snapshot() -> None:
    outbox, _ = run(None, add("a", max_tokens=100), add("b"), max_num_seqs=1)
    steps = outbox.of(StepOutputs)
    assert steps[0].progress is None or steps[0].progress[0].request_id == "a"
    running, waiting = snapshots(outbox)[0][:2]
    assert (running.request_id, running.status, running.wait_reason) == ("a", "running", None)
    assert running.num_computed_tokens >= running.num_prompt_tokens == 10
    assert (waiting.request_id, waiting.status, waiting.wait_reason) == ("b", "waiting", WaitReason.SEQUENCE_SLOT)


def test_snapshot_tells_each_one_s_part_of_step_and_cache() -> None:
    outbox, _ = run(None, add("a", max_tokens=100), add("b"), max_num_seqs=1)
    running, waiting = snapshots(outbox)[0][:2]
    assert (running.num_step_tokens, running.num_kv_cells) == (1, running.num_computed_tokens)
    assert (waiting.num_step_tokens, waiting.num_kv_cells) == (0, 0)


def test_snapshot_comes_with_what_each_source_was_served() -> None:
    outbox, _ = run(add("a", max_tokens=3, source="kitchen"))
    for message in outbox.of(StepOutputs):
        assert (message.served is None) == (message.progress is None)
    last = outbox.of(StepOutputs)[-1].served
    assert last is not None
    assert [(served.source, served.num_tokens) for served in last] == [("kitchen", pytest.approx(10 + 2 * 3, rel=0.1))]


def test_snapshots_are_rare() -> None:
    outbox, _ = run(add("a", max_tokens=200))
    steps = outbox.of(StepOutputs)
    num_expected = sum(m.stats.step_s for m in steps) / SNAPSHOT_INTERVAL_S
    assert len(snapshots(outbox)) == pytest.approx(num_expected, abs=2)


def test_last_snapshot_is_empty() -> None:
    outbox, _ = run(add("a"), add("b"))
    assert snapshots(outbox)[-1] == []


def test_snapshot_of_a_crowd_is_bounded_and_shows_who_runs() -> None:
    outbox, _ = run(*(add(f"r{i}", max_tokens=100, source=f"s{i % 7}") for i in range(500)), max_num_seqs=4)
    for progress in snapshots(outbox):
        assert len(progress) <= SNAPSHOT_MAX_REQUESTS
    crowd = snapshots(outbox)[0]
    assert len(crowd) == SNAPSHOT_MAX_REQUESTS
    assert [p.status for p in crowd[:5]] == ["running"] * 4 + ["waiting"]


def test_tokens_and_ends_of_a_step_are_told_together() -> None:
    outbox, _ = run(*[add(name, max_tokens=1) for name in "abc"])
    step = outbox.of(StepOutputs)[0]
    assert [o.request_id for o in step.outputs] == ["a", "b", "c"]
    assert len(step.finished) == 3


def test_who_was_admitted_is_said_once() -> None:
    outbox, _ = run(*[add(name, max_tokens=2) for name in "abcde"])
    admitted = [m.admitted for m in outbox.of(StepOutputs)]
    assert sorted(admitted[0]) == list("abcde")
    assert not any(admitted[1:])


# ---- pins -------------------------------------------------------------------------------------------


def pin(name: str, num_tokens: int) -> AddRequest:
    return msgspec.structs.replace(add(name, num_prompt_tokens=num_tokens, max_tokens=0), is_pin=True)


def test_end_of_a_pin_says_whether_it_stays() -> None:
    outbox, _ = run(pin("long", 100), None, pin("short", 10), None, add("nobody's", num_prompt_tokens=50))
    assert {f.request_id: f.is_pinned for f in outbox.finished} == {"long": True, "short": False, "nobody's": False}
    assert outbox.of(StepOutputs)[-1].stats.num_pinned_seqs == 1
