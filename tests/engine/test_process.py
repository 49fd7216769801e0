"""The engine child as a real process on the real model, spoken to over its socket."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import msgspec
import psutil
import pytest

from homeai.messages import (
    HEADER,
    AbortRequests,
    AddRequest,
    Down,
    EngineFailed,
    EngineReady,
    Heartbeat,
    LoadModel,
    LoadProgress,
    Ping,
    RequestFailed,
    Shutdown,
    StepOutputs,
    Up,
    encode_frame,
    up_decoder,
)
from homeai.request import FinishReason, Grammar, SamplingParams
from tests.engine.factories import create_engine_config

TIMEOUT_S = 60.0


class Child:
    def __init__(self) -> None:
        self.sock, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "homeai.engine.process", "--fd", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stderr=subprocess.DEVNULL,
            )
        self.sock.settimeout(TIMEOUT_S)
        self._stream = self.sock.makefile("rb")

    def send(self, *messages: Down) -> None:
        self.sock.sendall(b"".join(map(encode_frame, messages)))

    def receive(self) -> Up | None:
        """The next message; None when the child has closed."""
        header = self._stream.read(HEADER.size)
        return up_decoder.decode(self._stream.read(HEADER.unpack(header)[0])) if header else None

    def receive_until(self, done: Callable[[Up], bool]) -> list[Up]:
        messages: list[Up] = []
        while not messages or not done(messages[-1]):
            message = self.receive()
            assert message is not None, f"the child closed after {messages[-3:]}"
            messages.append(message)
        return messages

    def wait(self) -> int:
        return self.process.wait(TIMEOUT_S)

    def close(self) -> None:
        self._stream.close()
        self.sock.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def start_child() -> Iterator[Callable[[], Child]]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Child())


@pytest.fixture(scope="module")
def resident(model_path: Path) -> Iterator[Child]:
    """A child with the model loaded, for tests that leave it idle."""
    with Child() as child:
        child.send(LoadModel(create_engine_config(model_path)))
        child.receive_until(lambda m: isinstance(m, EngineReady))
        yield child


def add(name: str, prompt: list[int], max_tokens: int) -> AddRequest:
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return AddRequest(
        request_id=name,
        prompt_token_ids=prompt,
        sampling=sampling,
        source="default",
        fairness_class="interactive",
        arrival_at=0.0,
    )


def ends(name: str) -> Callable[[Up], bool]:
    return lambda m: isinstance(m, StepOutputs) and any(f.request_id == name for f in m.finished)


PROMPT = [2, 818, 5279, 529, 7001, 563]  # "<bos>The capital of France is"


def test_load_is_reported_to_its_end(start_child: Callable[[], Child], model_path: Path) -> None:
    child = start_child()
    child.send(LoadModel(create_engine_config(model_path)))
    *progress, ready = child.receive_until(lambda m: isinstance(m, EngineReady))
    fractions = [m.fraction for m in progress if isinstance(m, LoadProgress)]
    assert len(fractions) == len(progress) > 3
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert isinstance(ready, EngineReady)
    assert (ready.device, ready.num_kv_cells, ready.max_model_len) == ("cpu", 2048, 2048)
    assert min(ready.model_bytes, ready.kv_bytes, ready.load_s) > 0
    assert list(ready.parts_s) == ["imports", "weights", "context", "warm-up"]
    assert min(ready.parts_s.values()) > 0
    assert sum(ready.parts_s.values()) - ready.parts_s["imports"] <= ready.load_s


def test_tokens_come_step_by_step_and_then_the_end(resident: Child) -> None:
    resident.send(add("a", PROMPT, 5))
    steps = [m for m in resident.receive_until(ends("a")) if isinstance(m, StepOutputs)]
    assert [o.output_index for m in steps for o in m.outputs] == [0, 1, 2, 3, 4]
    (finished,) = [f for m in steps for f in m.finished]
    assert (finished.finish_reason, finished.num_output_tokens) == (FinishReason.LENGTH, 5)
    assert all(m.stats.step_s >= m.stats.host_s >= 0 for m in steps)


def test_requests_run_in_one_batch(resident: Child) -> None:
    resident.send(*(add(f"r{i}", PROMPT, 8) for i in range(8)))
    ended: set[str] = set()
    widest = 0
    while len(ended) < 8:
        message = resident.receive()
        if isinstance(message, StepOutputs):
            ended |= {f.request_id for f in message.finished}
            widest = max(widest, message.stats.num_decode_tokens)
    assert widest == 8


def test_abort_stops_one_and_leaves_the_other(resident: Child) -> None:
    resident.send(add("long", PROMPT, 1500), add("other", PROMPT, 12))
    resident.receive_until(lambda m: isinstance(m, StepOutputs) and bool(m.outputs))
    resident.send(AbortRequests(["long", "nobody"]))
    steps = [m for m in resident.receive_until(ends("other")) if isinstance(m, StepOutputs)]
    reasons = {f.request_id: f.finish_reason for m in steps for f in m.finished}
    assert reasons == {"long": FinishReason.ABORT, "other": FinishReason.LENGTH}


def test_impossible_request_fails_alone(resident: Child) -> None:
    resident.send(add("good", PROMPT, 4), add("endless", PROMPT * 500, 4))
    messages = resident.receive_until(ends("good"))
    assert [m.request_id for m in messages if isinstance(m, RequestFailed)] == ["endless"]


def test_grammars_are_made_ready_while_others_write(resident: Child) -> None:
    """The first one reads the vocabulary, beside the loop."""
    held = SamplingParams(grammar=Grammar('start: "yes" | "no"\n'), max_tokens=9)
    bad = SamplingParams(grammar=Grammar("start: (\n"), max_tokens=9)
    resident.send(add("chat", PROMPT, 200))
    resident.receive_until(lambda m: isinstance(m, StepOutputs) and bool(m.outputs))
    resident.send(
        msgspec.structs.replace(add("held", PROMPT, 9), sampling=held),
        msgspec.structs.replace(add("bad", PROMPT, 9), sampling=bad),
    )
    messages = resident.receive_until(ends("chat"))
    told = [m for m in messages if isinstance(m, StepOutputs)]
    begun_at = next(i for i, m in enumerate(told) if "held" in m.admitted)
    assert any(o.request_id == "chat" for m in told[:begun_at] for o in m.outputs), "nobody waited for it"
    reasons = {f.request_id: f.finish_reason for m in told if isinstance(m, StepOutputs) for f in m.finished}
    assert reasons == {"chat": FinishReason.LENGTH, "held": FinishReason.STOP}
    (failed,) = [m for m in messages if isinstance(m, RequestFailed)]
    assert (failed.request_id, failed.is_invalid) == ("bad", True)


def test_idle_child_beats_and_answers(resident: Child) -> None:
    resident.receive_until(lambda m: isinstance(m, Heartbeat))
    resident.send(Ping())
    resident.receive_until(lambda m: isinstance(m, Heartbeat))


def test_child_ends_when_its_socket_closes(start_child: Callable[[], Child], model_path: Path) -> None:
    child = start_child()
    child.send(LoadModel(create_engine_config(model_path)))
    child.receive_until(lambda m: isinstance(m, EngineReady))
    child.send(add("a", PROMPT, 1000))
    child.receive_until(lambda m: isinstance(m, StepOutputs))
    child.close()
    assert child.wait() == 0


def test_child_that_was_told_nothing_ends_when_its_socket_closes(start_child: Callable[[], Child]) -> None:
    child = start_child()
    child.close()
    assert child.wait() == 0


def test_shutdown_ends_the_live_requests_and_the_child(start_child: Callable[[], Child], model_path: Path) -> None:
    child = start_child()
    child.send(LoadModel(create_engine_config(model_path)), add("a", PROMPT, 1000))
    child.receive_until(lambda m: isinstance(m, StepOutputs))
    child.send(Shutdown())
    (finished,) = child.receive_until(ends("a"))[-1].finished  # type: ignore[union-attr]
    assert finished.finish_reason is FinishReason.ABORT
    assert child.wait() == 0
    while (last := child.receive()) is not None:
        assert not isinstance(last, EngineFailed)


@pytest.mark.parametrize("content", [b"GGUF", b"", b"not a model"])
def test_file_that_cannot_be_loaded_is_fatal(start_child: Callable[[], Child], tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    child = start_child()
    child.send(LoadModel(create_engine_config(path)))
    failed = child.receive_until(lambda m: isinstance(m, EngineFailed))[-1]
    assert isinstance(failed, EngineFailed)
    assert failed.fatal
    assert "broken.gguf" in failed.message
    assert child.wait() == 0


def test_context_that_finds_no_memory_is_not_fatal(start_child: Callable[[], Child], model_path: Path) -> None:
    """Somebody else may have taken it since it was counted, and give it back."""
    child = start_child()
    psutil.Process(child.process.pid).rlimit(psutil.RLIMIT_AS, (3 * 2**30, 3 * 2**30))
    child.send(LoadModel(create_engine_config(model_path, num_kv_cells=2**18)))
    last = child.receive_until(lambda m: isinstance(m, EngineFailed))[-1]
    assert isinstance(last, EngineFailed)
    assert (last.fatal, last.unavailable) == (False, True)
    assert "alloc" in last.message
    assert child.receive() is None


def test_context_that_never_fits_is_refused_before_it_is_made(
    start_child: Callable[[], Child], model_path: Path
) -> None:
    child = start_child()
    child.send(LoadModel(create_engine_config(model_path, num_kv_cells=2**30, fit="strict")))
    last = child.receive_until(lambda m: isinstance(m, EngineFailed))[-1]
    assert isinstance(last, EngineFailed)
    assert (last.fatal, last.unavailable) == (True, False)
    assert "does not fit" in last.message
    assert child.receive() is None


def test_unexpected_first_message_is_a_failure_that_may_pass(start_child: Callable[[], Child]) -> None:
    child = start_child()
    child.send(Ping())
    failed = child.receive_until(lambda m: isinstance(m, EngineFailed))[-1]
    assert isinstance(failed, EngineFailed)
    assert not failed.fatal
