"""Models from a hub that speaks Hugging Face's API ($HF_ENDPOINT, $HF_TOKEN), into the store of `models.py`.

What is asked of the hub, and how, is `huggingface_hub`'s; but its own downloads begin anew after an interruption,
so the bytes are fetched here, with Range requests. A file becomes a model when all of it is there and its SHA-256
(of small files beside safetensors: git's hash) is the hub's. `huggingface_hub` takes a while to import: only
`homeai pull` imports this file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx2  # what huggingface_hub speaks HTTP with
from huggingface_hub import HfApi, constants, get_session, get_token, hf_hub_url, hf_raise_for_status
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from homeai.errors import PullError
from homeai.gguf_files import FileSet, preferred
from homeai.models import Reference, Store, StoredModel, sets_in

BLOCK_BYTES: Final = 1024 * 1024
KEPT_FREE_BYTES: Final = 256 * 1024 * 1024  # of the disk: the ledger and the system go on writing
TIMEOUT: Final = httpx2.Timeout(30.0, connect=10.0)
MAX_FRUITLESS: Final = 5  # tries in a row that brought no byte
TRY_LATER: Final = frozenset((408, 429, 500, 502, 503, 504))

Progress = Callable[[int], None]  # bytes that are there and checked or counted, of all files together
Pause = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """`digest` is the hub's SHA-256 of a large file (LFS); of a small one only git's SHA-1 is known (`is_in_git`)."""

    name: str
    size_bytes: int
    digest: str
    is_in_git: bool = False

    @property
    def key(self) -> str:
        """What waits under this name is this file's. Small ones may be equal."""
        return f"{self.digest}-{self.name}" if self.is_in_git else self.digest

    def hash(self) -> hashlib._Hash:
        """What, fed with the file, becomes `digest`."""
        return hashlib.sha1(f"blob {self.size_bytes}\0".encode()) if self.is_in_git else hashlib.sha256()


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """One model of a repository, as it was at one commit."""

    repo_id: str
    commit: str
    files: FileSet
    parts: tuple[RemoteFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


def look_up(reference: Reference) -> RemoteModel:
    """Ask the hub which files `reference` means. Raises `PullError`."""
    with _explained(reference):
        info = HfApi().model_info(reference.repo_id, files_metadata=True, timeout=TIMEOUT.read)
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or ()}
    files = choose(reference, sets_in(reference.repo, siblings))
    parts: list[RemoteFile] = []
    for name in files.names:
        size, lfs, blob_id = siblings[name].size, siblings[name].lfs, siblings[name].blob_id
        if size is None or (lfs is None and (blob_id is None or not files.is_folder)):
            raise PullError(f"the hub tells no size and SHA-256 of {name} in {reference.repo_id}: it cannot be checked")
        if lfs is not None:
            parts.append(RemoteFile(name, size, lfs.sha256))
        elif blob_id is not None:
            parts.append(RemoteFile(name, size, blob_id, is_in_git=True))
    assert info.sha is not None, "a repository with files has a commit"
    return RemoteModel(reference.repo_id, info.sha, files, tuple(parts))


def choose(reference: Reference, available: Sequence[FileSet]) -> FileSet:
    """The model that is meant. Raises `PullError` with the choice there is."""
    if not available:
        raise PullError(
            f"{reference.repo_id} has no GGUF model (repositories that do often end in -GGUF), nor config.json with "
            "model.safetensors or all of its parts"
        )
    candidates = available
    if reference.quant is not None:
        candidates = [files for files in available if files.is_meant_by(reference.quant)]
    if len(candidates) == 1 or (reference.quant is None and preferred(candidates)):
        best = preferred(candidates)
        assert best is not None
        return best
    which = "has several" if candidates else f"has no {reference.quant}"
    names = [files.quant if _is_only(files, available) and files.quant else files.stem for files in available]
    raise PullError(f"{reference.repo_id} {which}: choose {reference.repo_id}:{' or :'.join(names)}")


def _is_only(files: FileSet, available: Sequence[FileSet]) -> bool:
    return sum(other.quant == files.quant for other in available) == 1


class Pull:
    """The way of one model into the store. Started anew after an interruption it goes on where it was."""

    def __init__(self, model: RemoteModel, store: Store, *, pause: Pause = time.sleep) -> None:
        self._model = model
        self._store = store
        self._pause = pause
        self._directory = store.directory(model.repo_id)
        self._partial = store.partial_directory(model.repo_id)
        self._num_bytes = 0
        self._progress: Progress = lambda num_bytes: None

    def run(self, progress: Progress) -> StoredModel:
        """Raises `PullError`; what came so far stays for the next try."""
        self._progress = progress
        reference = Reference.parse(self._model.repo_id)
        assert reference is not None
        with _explained(reference), self._alone():
            if not self._is_stored():
                self._check_room()
                for part in self._model.parts:
                    self._fetch(part)
                self._keep()
        return StoredModel(self._model.repo_id, self._model.files, self._directory)

    # ---- what is there already -------------------------------------------------------------------

    def _is_stored(self) -> bool:
        paths = {part: self._directory / part.name for part in self._model.parts}
        if not all(_size(path) == part.size_bytes for part, path in paths.items()):
            return False
        is_right = all(_digest(path, part, self._advance).hexdigest() == part.digest for part, path in paths.items())
        if not is_right:
            self._num_bytes = 0
        return is_right

    def _whole(self, part: RemoteFile) -> Path:
        """Where a part waits for the others: complete, and its hash was right."""
        return self._partial / f"{part.key}.whole"

    def _growing(self, part: RemoteFile) -> Path:
        return self._partial / f"{part.key}.part"

    def _check_room(self) -> None:
        have = sum(max(_size(self._whole(part)) or 0, _size(self._growing(part)) or 0) for part in self._model.parts)
        missing = self._model.size_bytes - have
        free = shutil.disk_usage(self._partial).free
        if missing + KEPT_FREE_BYTES > free:
            raise PullError(
                f"no room for {self._model.files.stem}: {_gb(missing)} and {_gb(KEPT_FREE_BYTES)} to spare are needed "
                f"in {self._store.root}, {_gb(free)} are free"
            )

    # ---- one file --------------------------------------------------------------------------------

    def _fetch(self, part: RemoteFile) -> None:
        if _size(self._whole(part)) == part.size_bytes:
            self._advance(part.size_bytes)
            return
        growing = self._growing(part)
        if (_size(growing) or 0) > part.size_bytes:
            growing.unlink()
        with growing.open("ab+") as file:
            digest = _digest(growing, part, self._advance)
            num_fruitless = 0
            while (start := file.tell()) < part.size_bytes:
                reason = self._receive(part, file.fileno(), start, digest)
                file.seek(0, os.SEEK_END)
                num_fruitless = 0 if file.tell() > start else num_fruitless + 1
                if num_fruitless > MAX_FRUITLESS:
                    raise PullError(f"the download of {part.name} broke off: {reason}; the same command goes on there")
                if num_fruitless:
                    self._pause(2.0 ** (num_fruitless - 1))
            os.fsync(file.fileno())
        if digest.hexdigest() != part.digest:
            growing.unlink()
            kind = "git hash" if part.is_in_git else "SHA-256"
            raise PullError(
                f"{part.name} came damaged and was deleted: its {kind} is {digest.hexdigest()}, "
                f"the hub says {part.digest}; pull it again"
            )
        growing.replace(self._whole(part))

    def _receive(self, part: RemoteFile, descriptor: int, start: int, digest: hashlib._Hash) -> str:
        """Append what comes, from byte `start` on; the reason when it ended early."""
        url = hf_hub_url(self._model.repo_id, part.name, revision=self._model.commit)
        headers = {"range": f"bytes={start}-", "accept-encoding": "identity"}
        if token := get_token():
            headers["authorization"] = f"Bearer {token}"
        room = part.size_bytes - start
        try:
            with get_session().stream("GET", url, headers=headers, timeout=TIMEOUT) as response:
                hf_raise_for_status(response)
                blocks = response.iter_bytes(BLOCK_BYTES)
                if response.status_code != 206:  # all of it comes again
                    blocks = _without(start, blocks)
                elif not response.headers.get("content-range", "").startswith(f"bytes {start}-"):
                    return f"the hub answered with {response.headers.get('content-range')}, not from byte {start} on"
                for block in blocks:
                    wanted = block[:room]
                    _write(descriptor, wanted)
                    digest.update(wanted)
                    self._advance(len(wanted))
                    room -= len(wanted)
                    if not room:
                        break
        except httpx2.TransportError as error:
            return str(error) or type(error).__name__
        except HfHubHTTPError as error:
            if error.response.status_code not in TRY_LATER:
                raise
            return f"HTTP {error.response.status_code}"
        return "the connection was closed"

    # ---- into the store --------------------------------------------------------------------------

    def _keep(self) -> None:
        """Parts of an older version go first: a mixture would look like a model."""
        targets = {part: self._directory / part.name for part in self._model.parts}
        for target in targets.values():
            target.unlink(missing_ok=True)
        for part, target in targets.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            self._whole(part).replace(target)
            _sync_directory(target.parent)
        shutil.rmtree(self._partial, ignore_errors=True)
        with contextlib.suppress(OSError):  # others pull too
            self._partial.parent.rmdir()

    def _advance(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self._progress(self._num_bytes)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """The kernel lets go of the lock when its holder dies."""
        self._partial.mkdir(parents=True, exist_ok=True)
        with (self._partial / "lock").open("wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PullError(f"another `homeai pull` of {self._model.repo_id} is running") from None
            yield


@contextlib.contextmanager
def _explained(reference: Reference) -> Iterator[None]:
    """What can go wrong with a hub and a disk, each in one line."""
    page = f"{constants.ENDPOINT}/{reference.repo_id}"
    try:
        yield
    except GatedRepoError:
        raise PullError(
            f"{reference.repo_id} is gated: accept its terms at {page}, and set HF_TOKEN to a token of that account"
        ) from None
    except RepositoryNotFoundError:
        raise PullError(
            f"the hub knows no model {reference.repo_id} (a private one needs HF_TOKEN); see {page}"
        ) from None
    except HFValidationError as error:
        raise PullError(f"{reference.repo_id} cannot be a repository: {_line(error)}") from None
    except OfflineModeIsEnabled:
        raise PullError(f"HF_HUB_OFFLINE is set: {constants.ENDPOINT} may not be asked") from None
    except HfHubHTTPError as error:
        code = error.response.status_code
        why = "HF_TOKEN is not accepted" if code == 401 else _line(error)
        raise PullError(f"{constants.ENDPOINT} answered {code} for {reference.repo_id}: {why}") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        reason = _line(error) or type(error).__name__
        raise PullError(f"no connection to {constants.ENDPOINT}: {reason}; the same command goes on later") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise PullError(
                f"the disk is full; the download of {reference.repo_id} goes on when there is room"
            ) from None
        raise PullError(f"cannot write {error.filename or 'the model'}: {error.strerror or error}") from None


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _digest(path: Path, part: RemoteFile, advance: Callable[[int], None]) -> hashlib._Hash:
    digest = part.hash()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            advance(len(block))
    return digest


def _without(num_bytes: int, blocks: Iterator[bytes]) -> Iterator[bytes]:
    for block in blocks:
        if num_bytes < len(block):
            yield block[num_bytes:]
        num_bytes = max(0, num_bytes - len(block))


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.2f} GB"


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
