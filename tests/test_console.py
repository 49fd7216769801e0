"""What the commands show, and what they say when the daemon does not answer as it should."""

from __future__ import annotations

import io
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgspec
import pytest
from rich.console import Console

from homeai import console
from homeai.console import DaemonClient, plain_console, render
from homeai.errors import HomeAIError
from homeai.status import (
    BatchProgress,
    BatchStatus,
    ClassStatus,
    GPUStatus,
    KVStatus,
    LoadStatus,
    MemoryStatus,
    ModelStatus,
    PinStatus,
    PolicyStatus,
    RequestProgress,
    ResidencyStatus,
    StartupStatus,
    Status,
    TotalsStatus,
)

GIB = 2**30
STATUS = Status(
    version="0.1.0",
    state="resident",
    load=None,
    failure=None,
    uptime_s=60.0,
    model=ModelStatus("gemma", "gemma.gguf", GIB, "cpu", 8192, "chat template", 0.5),
    memory=MemoryStatus(GIB, 2 * GIB, 3 * GIB, GIB // 8, 16 * GIB, 8 * GIB, None),
    kv=KVStatus(1234, 16384, 1000, 5 * 2**20),
    batch=BatchStatus("continuous", 7, 2, 1, 8, 2, 128, 512, 0.05, 0.001, 0.06),
    policy=PolicyStatus("auto", True, 256, "auto"),
    classes=[ClassStatus("voice", 8.0, 1, 2, 16, 20.0)],
    requests=[],
    totals=TotalsStatus(5, 4, 3, 2, 1),
    residency=ResidencyStatus("idle", "resident", "2 request(s) need it", paused=["background"]),
)
REQUEST = RequestProgress("a", "kitchen", "voice", "waiting", "kv_space", 300, 128, 0, 64, 2.0)


def shown(status: Status, monkeypatch: pytest.MonkeyPatch) -> str:
    """As `homeai status` prints it on a wide screen."""
    monkeypatch.setenv("COLUMNS", "200")
    screen = plain_console()
    with screen.capture() as capture:
        screen.print(render(status))
    return capture.get()


# ---- status --------------------------------------------------------------------------------------------


def test_status_has_the_facts_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(STATUS, monkeypatch)
    for fact in (
        "resident",
        "2 request(s) need it; background waits",
        "gemma on cpu, up to 8,192 tokens",
        "weights 1.0 GiB, KV 2.0 GiB, engine 3.0 GiB; free 8.0 GiB",
        "1,234 of 16,384 tokens, 1,000 of them kept for reuse; 5 MiB saved in ordinary memory",
        "2 of 8 running, 1 waiting; last step 2 decode + 128 prefill tokens in 50 ms (predicted 60, host 1.0)",
        "continuous (policy auto, chunks of 256, auth auto)",
        "5 finished, 4 rejected, 3 failed, 2 preemptions, 1 steps out of room",
        "nobody is asking right now",
    ):
        assert fact in text
    assert "GPU" not in text


def test_status_says_who_waits_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(msgspec.structs.replace(STATUS, requests=[REQUEST]), monkeypatch)
    row = next(line for line in text.splitlines() if "kitchen" in line)
    assert row.split() == ["kitchen", "voice", "waiting", "(kv", "space)", "128/300", "0/64", "2", "s"]


def test_status_of_a_load_and_of_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ModelStatus(None, "gemma.gguf", None, None, None, None, None)
    loading = msgspec.structs.replace(STATUS, state="loading", load=LoadStatus("weights", 0.25), model=model)
    assert "loading  weights 25%" in shown(loading, monkeypatch)
    assert "gemma.gguf on –, up to 0 tokens" in shown(loading, monkeypatch)
    failed = msgspec.structs.replace(STATUS, state="failed", failure="not a GGUF")
    assert "failed  not a GGUF" in shown(failed, monkeypatch)


def test_status_has_what_the_owner_should_know(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "trained for 2048" in shown(msgspec.structs.replace(STATUS, notes=["trained for 2048"]), monkeypatch)


def test_status_shows_what_the_load_took(monkeypatch: pytest.MonkeyPatch) -> None:
    startup = StartupStatus(1.64, {"imports": 0.6, "weights": 0.3}, 0.44)
    status = msgspec.structs.replace(STATUS, startup=startup)
    assert "1.6 s: imports 0.6, weights 0.3; beside them vocabulary 0.4" in shown(status, monkeypatch)


def test_status_shows_the_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(msgspec.structs.replace(STATUS, pins=[PinStatus("house", "kitchen", 1234, "kept")]), monkeypatch)
    assert "house: 1,234 tokens, kept" in text


def test_status_shows_how_far_batches_are(monkeypatch: pytest.MonkeyPatch) -> None:
    job = BatchProgress("batch_1", "kitchen", 2000, 1100, 3, 2, 60.0)
    text = shown(msgspec.structs.replace(STATUS, batches=[job]), monkeypatch)
    assert "kitchen: 1,103 of 2,000 done, 3 failed" in text


def test_status_shows_a_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = msgspec.structs.replace(STATUS.memory, gpu=GPUStatus("NVIDIA H200", 20 * GIB, 140 * GIB, 0.5))
    text = shown(msgspec.structs.replace(STATUS, memory=memory), monkeypatch)
    assert "NVIDIA H200: 20.0 of 140.0 GiB, 50% busy" in text


@pytest.mark.parametrize("source", ["[bold]x[/]", "[/x]", ":smile:", "[link=http://evil.example]x"])
def test_name_that_a_client_chose_is_shown_as_it_is(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request = msgspec.structs.replace(REQUEST, source=source)
    assert source in shown(msgspec.structs.replace(STATUS, requests=[request]), monkeypatch)


# ---- the daemon, as a command sees it ------------------------------------------------------------------


class FakeDaemon(HTTPServer):
    """Gives one canned answer to everything; records what it was sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.answer = 200, b""
        self.bodies: list[dict[str, object]] = []
        self.keys: list[str | None] = []

    @property
    def client(self) -> DaemonClient:
        return DaemonClient(f"http://127.0.0.1:{self.server_port}", "hai_key")


class _Handler(BaseHTTPRequestHandler):
    server: FakeDaemon

    def do_GET(self) -> None:
        self.server.keys.append(self.headers["authorization"])
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.answer)

    def do_POST(self) -> None:
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def fake_daemon() -> Iterator[FakeDaemon]:
    with FakeDaemon() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def complaint(client: DaemonClient) -> str:
    """What a person reads when neither command gets an answer."""
    with pytest.raises(HomeAIError) as from_status:
        client.status()
    with pytest.raises(HomeAIError) as from_chat:
        list(client.chat([]))
    assert str(from_status.value) == str(from_chat.value)
    return str(from_status.value)


def test_status_is_decoded_and_the_key_shown(fake_daemon: FakeDaemon) -> None:
    fake_daemon.answer = msgspec.json.encode(STATUS)
    assert fake_daemon.client.status() == STATUS
    assert fake_daemon.keys == ["Bearer hai_key"]


def test_answer_is_read_as_it_comes(fake_daemon: FakeDaemon) -> None:
    chunks = [{"choices": [{"delta": delta}]} for delta in ({"role": "assistant"}, {"content": "Hi"}, {"content": "!"})]
    lines = [b": ping", *(b"data: " + json.dumps(chunk).encode() for chunk in chunks), b"data: [DONE]"]
    fake_daemon.answer = b"\n\n".join(lines)
    messages = [{"role": "user", "content": "Hello"}]
    assert "".join(fake_daemon.client.chat(messages)) == "Hi!"
    assert fake_daemon.bodies == [{"messages": messages, "stream": True}]


def test_error_in_the_middle_of_an_answer_is_its_message(fake_daemon: FakeDaemon) -> None:
    fake_daemon.answer = b'data: {"error": {"message": "the engine died"}}\n\n'
    with pytest.raises(HomeAIError, match="the engine died"):
        list(fake_daemon.client.chat([]))


def test_refusal_is_its_message(fake_daemon: FakeDaemon) -> None:
    fake_daemon.status, fake_daemon.answer = 401, b'{"error": {"message": "an API key is needed"}}'
    assert complaint(fake_daemon.client) == "an API key is needed"


def test_refusal_by_something_else_is_its_status(fake_daemon: FakeDaemon) -> None:
    fake_daemon.status, fake_daemon.answer = 502, b"<html>"
    assert complaint(fake_daemon.client) == "HTTP 502"


def test_something_else_is_not_taken_for_a_daemon(fake_daemon: FakeDaemon) -> None:
    fake_daemon.answer = b"data: <html>\n\n"
    assert "is not homeai" in complaint(fake_daemon.client)


def test_nothing_there_is_said_with_the_address() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # bound, and nobody listens
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        assert complaint(DaemonClient(url, None)).startswith(f"no daemon answers at {url}: ")


@pytest.mark.parametrize("url", ["", "nonsense", "ftp://127.0.0.1", "http://[", "http://127.0.0.1:port"])
def test_address_that_is_none_is_said(url: str) -> None:
    assert complaint(DaemonClient(url, None)).startswith(f"no daemon answers at {url}: ")


@pytest.mark.parametrize("key", ["schlüssel", "🔑"])
def test_key_that_cannot_be_one_is_still_sent(key: str, fake_daemon: FakeDaemon) -> None:
    fake_daemon.answer = msgspec.json.encode(STATUS)
    DaemonClient(f"http://127.0.0.1:{fake_daemon.server_port}", key).status()
    assert len(fake_daemon.keys) == 1


# ---- chat ----------------------------------------------------------------------------------------------


class FakeModel:
    """Answers in the pieces that it was given; records the conversations, and how long answers might be."""

    def __init__(self, *answers: list[str | BaseException]) -> None:
        self._answers = iter(answers)
        self.conversations: list[list[tuple[str, str]]] = []
        self.limits: list[int | None] = []

    def chat(self, messages: list[dict[str, str]], max_tokens: int | None = None) -> Iterator[str]:
        self.limits.append(max_tokens)
        self.conversations.append([(message["role"], message["content"]) for message in messages])
        for piece in next(self._answers):
            if isinstance(piece, BaseException):
                raise piece
            yield piece


def talk(model: FakeModel, *questions: str, monkeypatch: pytest.MonkeyPatch, **options: object) -> str:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{question}\n" for question in questions)))
    screen = io.StringIO()
    console.chat(model, Console(file=screen, markup=False, emoji=False, highlight=False, width=20), **options)
    return screen.getvalue()


def test_whole_conversation_is_sent_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FakeModel(["Hi", "!"], ["Fine"])
    talk(model, "Hello", "", "   ", "How are you?", monkeypatch=monkeypatch)
    assert model.conversations == [
        [("user", "Hello")],
        [("user", "Hello"), ("assistant", "Hi!"), ("user", "How are you?")],
    ]


def test_answer_is_printed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = "[bold]one[/] :smile: a line that is longer than the screen is wide"
    assert answer in talk(FakeModel([answer]), "Hello", monkeypatch=monkeypatch)


def test_interrupt_ends_the_answer_and_not_the_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FakeModel(["Once upon", KeyboardInterrupt()], ["Fine"])
    assert "Once upon …" in talk(model, "A story", "And now?", monkeypatch=monkeypatch)
    assert model.conversations[1][1] == ("assistant", "Once upon")


def test_error_ends_the_answer_and_not_the_chat(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What failed is not part of the conversation: it may be asked again."""
    model = FakeModel(["Hi"], ["Once", HomeAIError("the engine died")], ["Fine"])
    talk(model, "Hello", "A story", "A story", monkeypatch=monkeypatch)
    assert capsys.readouterr().err == "homeai: the engine died\n"
    assert model.conversations[2] == [("user", "Hello"), ("assistant", "Hi"), ("user", "A story")]


def test_model_is_told_its_part_and_how_long_to_talk(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FakeModel(["Aye"])
    talk(model, "Hello", monkeypatch=monkeypatch, system="You are a pirate.", max_tokens=20)
    assert model.conversations == [[("system", "You are a pirate."), ("user", "Hello")]]
    assert model.limits == [20]


def test_limit_of_the_answer_is_sent(fake_daemon: FakeDaemon) -> None:
    fake_daemon.answer = b"data: [DONE]\n\n"
    list(fake_daemon.client.chat([], 20))
    assert fake_daemon.bodies == [{"messages": [], "stream": True, "max_tokens": 20}]
