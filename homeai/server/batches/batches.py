"""Files and batches, as the API asks for them: who may see which, what may be made, and the runner behind it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from starlette.types import ASGIApp

from homeai.config import BatchesConfig
from homeai.errors import BodyTooLarge, InvalidRequest, NotFound, NotReady, TooManyRequests
from homeai.server.arrival import Arrival, Caller
from homeai.server.batches.archive import Archive
from homeai.server.batches.asking import asker
from homeai.server.batches.lines import ENDPOINTS, Checked, check
from homeai.server.batches.records import INPUT, Batch, Status, StoredFile
from homeai.server.batches.runner import DAY_S, Runner
from homeai.server.batches.store import InUse, Store, new_id
from homeai.server.sources import Identity, OnBehalf, is_loopback
from homeai.status import BatchProgress

if TYPE_CHECKING:
    from homeai.server.service import Service

BACKGROUND: Final = "background"
MAX_NAME_LENGTH: Final = 256
MAX_OPEN_LINES: Final = 500_000  # of all batches in progress
BUSY_RETRY_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose files and batches these are. `name` None sees all of them."""

    name: str | None

    @property
    def own(self) -> str:
        return self.name or "this machine"


def owner_of(key_name: str | None, address: str | None) -> Owner:
    """Holders of a key have their own. Without one: this machine sees all, every other address its own."""
    if key_name is not None:
        return Owner(f"key {key_name}")
    if is_loopback(address):
        return Owner(None)
    try:
        parsed = ip_address((address or "").split("%")[0])
    except ValueError:
        return Owner("nowhere")
    return Owner(f"address {getattr(parsed, 'ipv4_mapped', None) or parsed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is asked for with a new batch. Durations are seconds; None: for ever."""

    input_file_id: str
    endpoint: str
    completion_window: str
    window_s: float
    metadata: dict[str, str] | None = None
    outputs_kept_s: float | None = None


class Batches:
    """One per daemon."""

    def __init__(self, config: BatchesConfig, folder: Path) -> None:
        self.config = config
        self._archive = Archive(folder)
        self._retention_s = config.retention_days * DAY_S or None
        self._service: Service | None = None
        self._runner = Runner(
            self._archive,
            max_running=config.max_running,
            retention_s=self._retention_s,
            on_behalf=self._on_behalf,
            may_run=self._may_run,
        )

    async def run(self, service: Service, app: ASGIApp) -> None:
        """Run lines until it is cancelled."""
        self._service = service
        await self._runner.run(asker(app))

    async def close(self) -> None:
        await self._archive.close()

    @property
    def failure(self) -> str | None:
        """Why they cannot be used, if so."""
        return self._archive.failure

    def progress(self) -> list[BatchProgress]:
        """Of the batches that have lines to run."""
        return [
            BatchProgress(
                id=batch.batch_id,
                source=batch.source,
                num_lines=batch.num_lines,
                num_completed=batch.num_completed,
                num_failed=batch.num_failed,
                num_running=self._runner.num_in_flight(batch.batch_id),
                age_s=time.time() - batch.created_at,
            )
            for batch in self._runner.batches
        ]

    # ---- files -----------------------------------------------------------------------------------

    async def upload(
        self, owner: Owner, filename: str, source: BinaryIO, num_bytes: int, kept_s: float | None
    ) -> StoredFile:
        """Raises `BodyTooLarge`, `InvalidRequest`, `NotReady`."""
        if num_bytes > self.config.max_file_bytes:
            limit = self.config.max_file_bytes
            raise BodyTooLarge(
                f"the file is too large: {num_bytes} bytes > {limit} maximum (batches.max_file_bytes)", param="file"
            )
        stored = await self._archive.do(Store.num_uploaded_bytes)
        if stored + num_bytes > self.config.max_stored_bytes:
            raise BodyTooLarge(
                f"no room for the file: {stored} bytes are stored and it has {num_bytes}, "
                f"{self.config.max_stored_bytes} maximum (batches.max_stored_bytes); delete files that are done with",
                param="file",
            )
        now = time.time()
        kept_s = self._retention_s if kept_s is None else kept_s
        file = StoredFile(
            file_id=new_id("file-"),
            owner=owner.own,
            filename="".join(c if c.isprintable() else "\ufffd" for c in filename[:MAX_NAME_LENGTH]),
            purpose=INPUT,
            num_bytes=num_bytes,
            created_at=now,
            expires_at=None if kept_s is None else now + kept_s,
        )
        try:
            await asyncio.to_thread(self._archive.contents.write, file.file_id, source)
        except OSError as error:
            raise NotReady(f"the file cannot be stored: {error.strerror}", retry_after_s=30.0) from None
        await self._archive.do(Store.add_file, file)
        return file

    async def file(self, owner: Owner, file_id: str, param: str | None = None) -> StoredFile:
        """Raises `NotFound`, also for those of others."""
        file = await self._archive.do(Store.file, file_id)
        if file is None or owner.name not in (None, file.owner):
            raise NotFound(f"there is no file {file_id!r}", param=param)
        return file

    async def files(
        self, owner: Owner, purpose: str | None, after: str | None, limit: int, *, oldest_first: bool
    ) -> tuple[list[StoredFile], bool]:
        """A page, and whether there are more."""
        if after is not None:
            await self.file(owner, after, "after")
        found = await self._archive.do(Store.files, owner.name, purpose, after, limit + 1, oldest_first=oldest_first)
        return found[:limit], len(found) > limit

    def path(self, file: StoredFile) -> Path:
        """Of an uploaded file."""
        return self._archive.contents.path(file.file_id)

    async def answers(self, file: StoredFile) -> AsyncIterator[bytes]:
        """Of an output file, a part at a time."""
        after = 0
        while (part := await self._archive.do(Store.answers, file, after)) is not None:
            content, after = part
            yield content

    async def remove_file(self, owner: Owner, file_id: str) -> None:
        """Raises `NotFound`, `InvalidRequest`."""
        file = await self.file(owner, file_id)
        try:
            await self._archive.do(Store.remove_file, file)
        except InUse:
            message = f"file {file_id!r} is the input of a batch that is in progress: cancel that first"
            raise InvalidRequest(message, param="file_id") from None
        if file.batch_id is None:
            await asyncio.to_thread(self._archive.contents.remove, file_id)

    # ---- batches ---------------------------------------------------------------------------------

    async def create(self, arrival: Arrival, order: Order) -> Batch:
        """In progress, or failed with what is wrong with its lines. Raises `NotFound`, `InvalidRequest`."""
        key = arrival.key.name if arrival.key else None
        owner = owner_of(key, arrival.caller.address)
        file = await self.file(owner, order.input_file_id, "input_file_id")
        if file.purpose != INPUT:
            message = f"file {file.file_id!r} has purpose {file.purpose!r}; {INPUT!r} is needed"
            raise InvalidRequest(message, param="input_file_id")
        checked = await asyncio.to_thread(self._check, file, order.endpoint)
        now = time.time()
        is_usable = not checked.errors
        if is_usable:
            self._check_room(len(checked.places))
        kept_s = self._retention_s if order.outputs_kept_s is None else order.outputs_kept_s
        batch = Batch(
            batch_id=new_id("batch_"),
            owner=owner.own,
            key=key,
            source=arrival.identity.source,
            fairness_class=arrival.identity.fairness_class,
            endpoint=order.endpoint,
            input_file_id=file.file_id,
            completion_window=order.completion_window,
            metadata=order.metadata,
            status=Status.IN_PROGRESS if is_usable else Status.FAILED,
            errors=checked.errors,
            created_at=now,
            expires_at=now + order.window_s,
            ended_at=None if is_usable else now,
            outputs_kept_s=kept_s,
            num_lines=len(checked.places) if is_usable else 0,
            num_completed=0,
            num_failed=0,
            num_input_tokens=0,
            num_cached_tokens=0,
            num_output_tokens=0,
            num_reasoning_tokens=0,
            output_file_id=None,
            error_file_id=None,
        )
        await self._archive.do(Store.add_batch, batch, checked.places if is_usable else ())
        if is_usable:
            self._runner.add(batch)
        return batch

    async def batch(self, owner: Owner, batch_id: str, param: str | None = None) -> Batch:
        """Raises `NotFound`, also for those of others."""
        batch = await self._archive.do(Store.batch, batch_id)
        if batch is None or owner.name not in (None, batch.owner):
            raise NotFound(f"there is no batch {batch_id!r}", param=param)
        return batch

    async def batches(self, owner: Owner, after: str | None, limit: int) -> tuple[list[Batch], bool]:
        """A page, latest first, and whether there are more."""
        if after is not None:
            await self.batch(owner, after, "after")
        found = await self._archive.do(Store.batches, owner.name, after, limit + 1)
        return found[:limit], len(found) > limit

    async def cancel(self, owner: Owner, batch_id: str) -> Batch:
        """It has ended then. One that had ended before stays as it is."""
        batch = await self.batch(owner, batch_id)
        message = "the batch was cancelled before this request was run"
        ended = await self._archive.do(Store.end, batch_id, Status.CANCELLED, "batch_cancelled", message, time.time())
        await self._runner.drop(batch_id)
        return ended or batch

    def _check_room(self, num_lines: int) -> None:
        num_open = sum(batch.num_lines for batch in self._runner.batches)
        if num_open + num_lines > MAX_OPEN_LINES:
            raise TooManyRequests(
                f"too many requests are in batches: {num_open} in progress and {num_lines} more > "
                f"{MAX_OPEN_LINES} maximum",
                retry_after_s=BUSY_RETRY_S,
            )

    def _check(self, file: StoredFile, endpoint: str) -> Checked:
        assert endpoint in ENDPOINTS, "bodies are checked first"
        try:
            with self.path(file).open("rb") as lines:
                return check(lines, endpoint)
        except OSError as error:
            raise NotReady(f"file {file.file_id!r} cannot be read: {error.strerror}", retry_after_s=30.0) from None

    # ---- its lines -------------------------------------------------------------------------------

    def _on_behalf(self, batch: Batch) -> OnBehalf:
        """The source that created it, in the background. A class that was taken out of the settings counts as none."""
        assert self._service is not None, "lines run in `run`"
        service = self._service
        classes, default = service.config.classes, service.config.scheduler.default_class
        own = batch.fairness_class if batch.fairness_class in classes else default
        lowered = service.sources.lowered(Identity(batch.source, own), BACKGROUND if BACKGROUND in classes else None)
        return OnBehalf(lowered, batch.key)

    def _may_run(self, on_behalf: OnBehalf) -> bool:
        """Not while nobody could answer, nor against the owner's word."""
        assert self._service is not None, "lines run in `run`"
        service = self._service
        is_paused = on_behalf.identity.fairness_class in service.client.paused
        return service.supervisor.takes_requests and not service.keeper.is_held_away and not is_paused


def owner_of_caller(service: Service, caller: Caller) -> Owner:
    """Raises `NotAuthenticated`, `NotReady`."""
    key = service.authenticate(caller)
    return owner_of(key.name if key else None, caller.address)
