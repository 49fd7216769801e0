"""The model files in the data folder: what is there, under which names, and deleting it.

    models/<owner>/<repo>/…gguf     pulled from a hub, as they are called there
    models/<owner>/<repo>/          the same with config.json and *.safetensors: the folder is the model
    models/…gguf                    the default model, and what people put there themselves
    models/<name>/                  a folder of safetensors that people put there
    models/.partial/<owner>/<repo>/ downloads that are not complete: never a model

Fetching is `hub.py`.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from homeai.errors import ConfigError, HomeAIError
from homeai.gguf_files import SAFETENSORS, FileSet, file_sets, folder_set, preferred

if TYPE_CHECKING:
    from homeai.config import Config

_REFERENCE = re.compile(
    r"(?:(?:https?://)?(?:hf\.co|huggingface\.co)/)?"
    r"(?P<owner>[A-Za-z0-9][\w.-]*)/(?P<repo>[A-Za-z0-9][\w.-]*)(?::(?P<quant>[\w./-]+))?"
)
PARTIAL = ".partial"


@dataclass(frozen=True, slots=True)
class Reference:
    """A model on a hub: `owner/repo`, or `owner/repo:quant`."""

    owner: str
    repo: str
    quant: str | None = None

    @classmethod
    def parse(cls, text: str) -> Reference | None:
        """None for what cannot be one, such as a path."""
        match = _REFERENCE.fullmatch(text.strip())
        if match is None or ".." in text or match["repo"].lower().endswith(".gguf"):
            return None
        return cls(match["owner"], match["repo"], match["quant"])

    @property
    def repo_id(self) -> str:
        return f"{self.owner}/{self.repo}"

    def __str__(self) -> str:
        return self.repo_id + (f":{self.quant}" if self.quant else "")


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A complete model. `repo_id` is None for files that were not pulled."""

    repo_id: str | None
    files: FileSet
    directory: Path

    @property
    def path(self) -> Path:
        """The file to load, which names the other parts; or the folder."""
        return self.directory if self.files.is_folder else self.paths[0]

    @property
    def paths(self) -> list[Path]:
        return [self.directory / name for name in self.files.names]

    @property
    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.paths)

    @property
    def name(self) -> str:
        """What `model.path`, `homeai serve --model` and `homeai models rm` take."""
        if self.repo_id is None:
            return self.files.stem
        if self.files.is_folder:
            return f"{self.repo_id}:{SAFETENSORS.lower()}"
        return f"{self.repo_id}:{self.files.quant or self.files.stem}"

    def is_called(self, wanted: str) -> bool:
        """By its name, its file's, or its repository's with or without the owner and `-GGUF`; `:quant` may follow."""
        base, _, quant = wanted.casefold().partition(":")
        if quant and not self.files.is_meant_by(quant):
            return False
        names = set(self.files.file_names)
        if self.repo_id is not None:
            short = self.repo_id.casefold().rpartition("/")[2]
            names |= {self.repo_id.casefold(), short, re.sub(r"[-._]gguf$", "", short)}
        return base in names


class Store:
    """Reads the folder anew at each question."""

    def __init__(self, data_dir: Path) -> None:
        self.root = data_dir / "models"

    def directory(self, repo_id: str) -> Path:
        return self.root / repo_id

    def partial_directory(self, repo_id: str) -> Path:
        return self.root / PARTIAL / repo_id

    def list(self) -> Sequence[StoredModel]:
        """Complete models, those that were pulled first."""
        pulled = [
            StoredModel(f"{repo.parent.name}/{repo.name}", files, repo)
            for owner in _folders(self.root)
            for repo in _folders(owner)
            for files in sets_in(repo.name, _names(repo, "**/*"))
        ]
        put = [
            StoredModel(None, files, folder)
            for folder in _folders(self.root)
            if (files := folder_set(folder.name, _names(folder, "*"))) is not None
        ]
        return [*pulled, *put, *(StoredModel(None, files, self.root) for files in file_sets(_names(self.root, "*")))]

    def unfinished(self) -> Sequence[tuple[str, int]]:
        """Repositories with an incomplete download, and its bytes so far."""
        return [
            (f"{owner.name}/{repo.name}", sum(file.stat().st_size for file in repo.rglob("*") if file.is_file()))
            for owner in _folders(self.root / PARTIAL)
            for repo in _folders(owner)
        ]

    def find(self, wanted: str) -> StoredModel | None:
        """The model of that name; of several in one repository the one that `homeai pull` would take.

        Raises `HomeAIError` when the name fits models that are not alternatives of each other.
        """
        models = [model for model in self.list() if model.is_called(wanted)]
        best = preferred([model.files for model in models]) if len({m.directory for m in models}) == 1 else None
        if models and best is None:
            raise HomeAIError(f"{wanted!r} is not clear: it may be {' or '.join(model.name for model in models)}")
        return next((model for model in models if model.files == best), None)

    def remove(self, model: StoredModel) -> None:
        """The last part goes first: what is left when this is interrupted is no model."""
        for path in reversed(model.paths):
            path.unlink(missing_ok=True)
            for record in (".verified", ".lock"):
                path.with_suffix(record).unlink(missing_ok=True)
            _remove_empty(path.parent, self.root)

    def remove_unfinished(self, repo_id: str) -> bool:
        """Forget a download that was not completed; False when there is none."""
        directory = self.partial_directory(repo_id)
        if not any(repo_id == name for name, _ in self.unfinished()):
            return False
        shutil.rmtree(directory)
        _remove_empty(directory.parent, self.root)
        return True


def sets_in(repo: str, names: Iterable[str]) -> Sequence[FileSet]:
    """The complete models of a repository: GGUF files, and the repository itself where it is one."""
    names = [*names]
    folder = folder_set(repo, names)
    return [*file_sets(names), *([folder] if folder is not None else [])]


def chosen(config: Config) -> Path | None:
    """The file that `model.path` means; None where it is not set. Raises `ConfigError`."""
    return None if config.model.path is None else found(config, config.model.path)


def found(config: Config, wanted: Path) -> Path:
    """A path, or the name of a model that was pulled, as a path. Raises `ConfigError`."""
    if wanted.exists():
        return wanted
    try:
        model = Store(config.data_dir).find(str(wanted))
    except HomeAIError as error:
        raise ConfigError(f"model.path: {error}") from None
    if model is not None:
        return model.path
    hint = f"; fetch it with `homeai pull {wanted}`" if Reference.parse(str(wanted)) else ""
    raise ConfigError(
        f"model.path: {str(wanted)!r} does not exist: an existing file or folder, or a model of `homeai models list`, "
        f"is needed{hint}"
    )


def _folders(directory: Path) -> Iterator[Path]:
    if directory.is_dir():
        yield from sorted(path for path in directory.iterdir() if path.is_dir() and path.name[0] != ".")


def _names(directory: Path, pattern: str) -> list[str]:
    return [str(path.relative_to(directory)) for path in directory.glob(pattern) if path.is_file()]


def _remove_empty(directory: Path, root: Path) -> None:
    while directory != root and directory.is_relative_to(root):
        with contextlib.suppress(FileNotFoundError):
            if any(directory.iterdir()):
                return
            directory.rmdir()
        directory = directory.parent
