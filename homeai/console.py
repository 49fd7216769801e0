"""What the commands show in a terminal: the status, and a chat."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import httpx
import msgspec
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from homeai.errors import HomeAIError
from homeai.server.startup import Startup
from homeai.status import RequestProgress, Status

if TYPE_CHECKING:
    from homeai.keys import Key

STATE_STYLES = {"resident": "green", "failed": "red", "draining": "yellow", "yielded": "yellow", "sleeping": "blue"}
GIB = 2**30
MIB = 2**20
QUIET_S = 15.0  # an idle daemon still speaks every five seconds


class DaemonClient:
    """The running daemon, as a command sees it. Raises `HomeAIError` with a sentence for people."""

    def __init__(self, url: str, key: str | None) -> None:
        self._url = url
        self._headers = {b"authorization": f"Bearer {key}".encode()} if key else {}

    def status(self) -> Status:
        with self._connection() as http:
            response = http.get("/api/status", timeout=10)
            _check(response)
            return msgspec.json.decode(response.content, type=Status)

    def statuses(self) -> Iterator[Status]:
        """As it changes, until the server ends it."""
        timeout = httpx.Timeout(10, read=QUIET_S)
        with self._connection() as http, http.stream("GET", "/api/status/events", timeout=timeout) as response:
            if response.status_code != 200:
                response.read()
            _check(response)
            for line in response.iter_lines():
                if line.startswith("data: "):
                    yield msgspec.json.decode(line[6:], type=Status)

    def control(self, what: str, **fields: object) -> None:
        """One of what the owner may do: /api/admin/`what`."""
        with self._connection() as http:
            _check(http.post(f"/api/admin/{what}", json=fields))

    def chat(self, messages: list[dict[str, str]], max_tokens: int | None = None) -> Iterator[str]:
        """The answer as it is generated; up to its natural end without `max_tokens`."""
        limit = {} if max_tokens is None else {"max_tokens": max_tokens}
        body = {"messages": messages, "stream": True, **limit}
        with self._connection() as http, http.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                response.read()
            _check(response)
            yield from _texts(response.iter_lines())

    @contextmanager
    def _connection(self) -> Iterator[httpx.Client]:
        try:
            with httpx.Client(base_url=self._url, headers=self._headers, timeout=httpx.Timeout(10, read=None)) as http:
                yield http
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise HomeAIError(f"no daemon answers at {self._url}: {error} (is `homeai serve` running?)") from None
        except msgspec.MsgspecError:
            raise HomeAIError(f"what answers at {self._url} is not homeai, or another version of it") from None


class _Error(msgspec.Struct):
    message: str


class _ErrorBody(msgspec.Struct):
    error: _Error


class _Delta(msgspec.Struct):
    content: str = ""


class _Choice(msgspec.Struct):
    delta: _Delta


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    error: _Error | None = None


def _check(response: httpx.Response) -> None:
    if response.status_code == 200:
        return
    try:
        message = msgspec.json.decode(response.content, type=_ErrorBody).error.message
    except msgspec.MsgspecError:
        message = f"HTTP {response.status_code}"
    raise HomeAIError(message)


def _texts(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        chunk = msgspec.json.decode(line[6:], type=_Chunk)
        if chunk.error is not None:
            raise HomeAIError(chunk.error.message)
        for choice in chunk.choices:
            yield choice.delta.content


def plain_console() -> Console:
    """Prints what models and strangers say as it is: nothing in it is markup, an emoji's name or a number."""
    return Console(markup=False, emoji=False, highlight=False)


# ---- keys ----------------------------------------------------------------------------------------------


def render_keys(keys: Sequence[Key]) -> RenderableType:
    limits = "requests/minute", "tokens/day", "max context"
    table = Table("name", "class", "trusted", "admin", *limits, "made", box=None, header_style="dim")
    for key in keys:
        numbers = (key.requests_per_minute, key.tokens_per_day, key.max_context)
        table.add_row(
            key.name,
            key.fairness_class or "default",
            "yes" if key.trusted else "no",
            "yes" if key.admin else "no",
            *("–" if number is None else f"{number:,}" for number in numbers),
            datetime.fromtimestamp(key.created_at).strftime("%Y-%m-%d %H:%M"),
        )
    return table


# ---- status --------------------------------------------------------------------------------------------


def render(status: Status) -> RenderableType:
    """The same facts as the status page."""
    return Group(_facts(status), _classes(status), _requests(status))


def _facts(status: Status) -> Table:
    model, memory, kv, batch, policy = status.model, status.memory, status.kv, status.batch, status.policy
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    state = Text(status.state, style=STATE_STYLES.get(status.state, "cyan"))
    if status.load is not None:
        state.append(f"  {status.load.stage} {status.load.fraction:.0%}")
    if status.failure:
        state.append(f"  {status.failure}", style="red")
    table.add_row("state", state)
    table.add_row("why", "; ".join([status.residency.reason, *(f"{name} waits" for name in status.residency.paused)]))
    table.add_row(
        "model", f"{model.name or model.file} on {model.device or '–'}, up to {model.max_model_len or 0:,} tokens"
    )
    table.add_row(
        "memory",
        f"weights {memory.model_bytes / GIB:.1f} GiB, KV {memory.kv_bytes / GIB:.1f} GiB, "
        f"engine {memory.engine_rss_bytes / GIB:.1f} GiB; free {memory.available_bytes / GIB:.1f} GiB",
    )
    if memory.gpu is not None:
        gpu = memory.gpu
        used = f"{gpu.used_bytes / GIB:.1f} of {gpu.total_bytes / GIB:.1f} GiB"
        table.add_row("GPU", f"{gpu.name}: {used}, {gpu.utilisation:.0%} busy")
    saved = f"; {kv.host_bytes / MIB:,.0f} MiB saved in ordinary memory" if kv.host_bytes else ""
    table.add_row("KV", f"{kv.used:,} of {kv.total:,} tokens, {kv.kept:,} of them kept for reuse{saved}")
    if status.startup is not None:
        vocabulary_s = status.startup.vocabulary_s
        beside = "" if vocabulary_s is None else f"; beside them vocabulary {vocabulary_s:.1f}"
        table.add_row("loaded in", f"{Startup(status.startup.total_s, status.startup.parts_s)}{beside}")
    for pin in status.pins:
        table.add_row("pin", Text(f"{pin.name}: {pin.num_tokens:,} tokens, {pin.state}"))
    for job in status.batches:
        failed = f", {job.num_failed} failed" if job.num_failed else ""
        num_done = job.num_completed + job.num_failed
        table.add_row("batch job", Text(f"{job.source}: {num_done:,} of {job.num_lines:,} done{failed}"))
    table.add_row(
        "batch",
        f"{batch.num_running} of {batch.max_num_seqs} running, {batch.num_waiting} waiting; "
        f"last step {batch.num_decode_tokens} decode + {batch.num_prefill_tokens} prefill tokens "
        f"in {batch.step_s * 1e3:.0f} ms (predicted {batch.predicted_s * 1e3:.0f}, host {batch.host_s * 1e3:.1f})",
    )
    chunks = f"chunks of {policy.max_chunk_tokens}" if policy.chunked_prefill else "whole prompts"
    table.add_row("mode", f"{batch.mode} (policy {policy.mode}, {chunks}, auth {policy.auth})")
    totals = status.totals
    table.add_row(
        "since start",
        f"{totals.finished} finished, {totals.rejected} rejected, {totals.failed} failed, "
        f"{totals.preemptions} preemptions, {totals.out_of_room} steps out of room",
    )
    for note in status.notes:
        table.add_row("note", Text(note, style="yellow"))
    return table


def _classes(status: Status) -> Table:
    table = Table(
        "class", "weight", "running", "waiting", "max waiting", "queue time-out", box=None, header_style="dim"
    )
    for c in status.classes:
        row = (c.name, f"{c.weight:g}", str(c.running), str(c.waiting), str(c.max_waiting), f"{c.queue_timeout_s:g} s")
        table.add_row(*row)
    return table


def _requests(status: Status) -> RenderableType:
    if not status.requests:
        return Text("nobody is asking right now", style="dim")
    table = Table("source", "class", "status", "prompt", "output", "age", box=None, header_style="dim")
    for request in status.requests:
        table.add_row(request.source, request.fairness_class, *_progress(request))
    return table


def _progress(request: RequestProgress) -> tuple[str, str, str, str]:
    why = f" ({request.wait_reason.replace('_', ' ')})" if request.wait_reason else ""
    return (
        request.status + why,
        f"{min(request.num_computed_tokens, request.num_prompt_tokens)}/{request.num_prompt_tokens}",
        f"{request.num_output_tokens}/{request.max_tokens}",
        f"{request.age_s:.0f} s",
    )


# ---- chat ----------------------------------------------------------------------------------------------


def chat(daemon: DaemonClient, console: Console, *, system: str | None = None, max_tokens: int | None = None) -> bool:
    """Talk until end of input; True unless the last answer failed.

    The whole conversation is sent each time; a question that failed is left out of it.
    """
    messages = [{"role": "system", "content": system}] if system else []
    answer: str | None = ""
    while True:
        try:
            question = console.input(Text("You: ", style="bold cyan"))
        except (EOFError, KeyboardInterrupt):
            console.print()
            return answer is not None
        if not question.strip():
            continue
        asked = [*messages, {"role": "user", "content": question}]
        answer = _answer(daemon, asked, max_tokens, console)
        if answer is not None:
            messages = [*asked, {"role": "assistant", "content": answer}]


def _answer(
    daemon: DaemonClient, messages: list[dict[str, str]], max_tokens: int | None, console: Console
) -> str | None:
    """Prints the answer as it comes; Ctrl-C ends it, and only it. None after an error, which is said on stderr."""
    parts: list[str] = []
    try:
        for text in daemon.chat(messages, max_tokens):
            parts.append(text)
            console.print(text, end="", soft_wrap=True)
    except KeyboardInterrupt:
        console.print(" …", end="")
    except HomeAIError as error:
        console.print()
        print(f"homeai: {error}", file=sys.stderr)
        return None
    console.print()
    return "".join(parts)
