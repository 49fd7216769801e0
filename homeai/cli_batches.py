"""`homeai batch`: files of requests for the running daemon to answer in the background."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import typer

from homeai.errors import HomeAIError

if TYPE_CHECKING:
    import httpx

app = typer.Typer(help="Requests answered in the background, when there is room.", no_args_is_help=True)

UrlOption = Annotated[str, typer.Option("--url", envvar="HOMEAI_URL", help="The running daemon.")]
KeyOption = Annotated[str | None, typer.Option("--key", envvar="HOMEAI_API_KEY", help="API key, if it wants one.")]
IdArgument = Annotated[str, typer.Argument(metavar="BATCH", help="An id that `homeai batch list` shows.")]

DEFAULT_URL = "http://127.0.0.1:8700"
PAGE = 100

T = TypeVar("T")


class _Counts(msgspec.Struct):
    total: int
    completed: int
    failed: int


class _LineError(msgspec.Struct):
    message: str
    line: int | None


class _LineErrors(msgspec.Struct):
    data: list[_LineError]


class _Batch(msgspec.Struct):
    id: str
    status: str
    endpoint: str
    created_at: int
    request_counts: _Counts
    errors: _LineErrors | None
    output_file_id: str | None
    error_file_id: str | None

    @property
    def done(self) -> str:
        counts = self.request_counts
        return f"{counts.completed + counts.failed:,}/{counts.total:,}"


class _Page(msgspec.Struct):
    data: list[_Batch]


class _File(msgspec.Struct):
    id: str


class _Error(msgspec.Struct):
    message: str


class _ErrorBody(msgspec.Struct):
    error: _Error


@app.command("list")
def list_batches(
    limit: Annotated[int, typer.Option(min=1, max=PAGE, help="The latest so many.")] = 20,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
) -> None:
    """The latest batches and how far they are."""
    from rich.table import Table

    from homeai.console import plain_console

    with _daemon(url, key) as http:
        batches = _read(http.get("/v1/batches", params={"limit": limit}), _Page).data
    table = Table("batch", "status", "done", "failed", "endpoint", "made", box=None, header_style="dim")
    for batch in batches:
        made = datetime.fromtimestamp(batch.created_at).strftime("%Y-%m-%d %H:%M")
        num_failed = f"{batch.request_counts.failed:,}"
        table.add_row(batch.id, batch.status, batch.done, num_failed, batch.endpoint, made)
    plain_console().print(table if batches else "no batches; hand one in with `homeai batch submit FILE`")


@app.command()
def show(batch: IdArgument, url: UrlOption = DEFAULT_URL, key: KeyOption = None) -> None:
    """All that is known of a batch."""
    with _daemon(url, key) as http:
        found = _read(http.get(f"/v1/batches/{batch}"), msgspec.Raw)
    typer.echo(msgspec.json.format(found).decode())


@app.command()
def submit(
    file: Annotated[Path, typer.Argument(help='Lines {"custom_id", "method": "POST", "url", "body"}.')],
    endpoint: Annotated[str | None, typer.Option(help="Such as /v1/embeddings; else as the first line says.")] = None,
    window: Annotated[str, typer.Option(help="What is not run by then is given up: 90m, 24h, 7d.")] = "24h",
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
) -> None:
    """Hand in a file of requests; prints the batch's id."""
    try:
        with _daemon(url, key) as http, file.open("rb") as content:
            endpoint = endpoint or _endpoint(content.readline())
            content.seek(0)
            form = {"purpose": "batch"}
            uploaded = _read(http.post("/v1/files", data=form, files={"file": (file.name, content)}), _File)
            order = {"input_file_id": uploaded.id, "endpoint": endpoint, "completion_window": window}
            batch = _read(http.post("/v1/batches", json=order), _Batch)
    except OSError as error:
        raise HomeAIError(f"{file} cannot be read: {error.strerror}") from None
    if batch.status == "failed":
        errors = batch.errors.data if batch.errors else []
        raise HomeAIError("\n".join([f"{file} cannot be used:", *map(_line_error, errors)]))
    typer.echo(batch.id)


@app.command()
def cancel(batch: IdArgument, url: UrlOption = DEFAULT_URL, key: KeyOption = None) -> None:
    """End a batch; what is answered already stays."""
    with _daemon(url, key) as http:
        ended = _read(http.post(f"/v1/batches/{batch}/cancel"), _Batch)
    typer.echo(f"{ended.id} is {ended.status}: {ended.request_counts.completed:,} answers")


@app.command()
def results(
    batch: IdArgument,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file, instead of the terminal.")] = None,
    errors: Annotated[bool, typer.Option("--errors", help="Those that failed, instead of those answered.")] = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
) -> None:
    """The answers of a batch that has ended, a JSON object in each line."""
    with _daemon(url, key) as http:
        found = _read(http.get(f"/v1/batches/{batch}"), _Batch)
        if found.status == "in_progress":
            raise HomeAIError(f"{batch} is still running: {found.done} done")
        file_id = found.error_file_id if errors else found.output_file_id
        if file_id is None:
            raise HomeAIError(f"{batch} has no {'errors' if errors else 'answers'}")
        with http.stream("GET", f"/v1/files/{file_id}/content") as response:
            if response.status_code != 200:
                response.read()
                _read(response, msgspec.Raw)
            _write(response, output)


def _write(response: httpx.Response, output: Path | None) -> None:
    try:
        if output is None:
            for part in response.iter_bytes():
                sys.stdout.buffer.write(part)
            sys.stdout.buffer.flush()
            return
        with output.open("wb") as file:
            for part in response.iter_bytes():
                file.write(part)
    except OSError as error:
        raise HomeAIError(f"{output or 'the terminal'} cannot be written: {error.strerror}") from None


@contextmanager
def _daemon(url: str, key: str | None) -> Iterator[httpx.Client]:
    import httpx

    headers = {b"authorization": f"Bearer {key}".encode()} if key else {}
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=httpx.Timeout(10, read=300, write=300)) as http:
            yield http
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise HomeAIError(f"no daemon answers at {url}: {error} (is `homeai serve` running?)") from None


def _read(response: httpx.Response, kind: type[T]) -> T:
    """What was asked for. Raises `HomeAIError` with the server's words."""
    try:
        if response.status_code != 200:
            raise HomeAIError(msgspec.json.decode(response.content, type=_ErrorBody).error.message)
        return msgspec.json.decode(response.content, type=kind)
    except msgspec.MsgspecError:
        raise HomeAIError(f"what answers at {response.url} is not homeai: HTTP {response.status_code}") from None


def _endpoint(first_line: bytes) -> str:
    try:
        return str(msgspec.json.decode(first_line, type=dict[str, object])["url"])
    except (msgspec.MsgspecError, KeyError):
        raise HomeAIError("the first line names no url: say --endpoint") from None


def _line_error(error: _LineError) -> str:
    where = "" if error.line is None else f"line {error.line}: "
    return f"  {where}{error.message}"
