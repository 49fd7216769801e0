"""Model files by their names: which belong together, and how their weights are stored. Nothing is opened here.

GGUF files, and folders of safetensors: what transformers loads of a repository (`model.safetensors` or all of its
parts), with the small files beside it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

# What is taken when nobody says: the best known balance first, then what is a little bigger or smaller.
PREFERRED_QUANTS: Final = (
    "Q4_K_M", "UD-Q4_K_XL", "Q4_K_L", "Q4_K_S", "IQ4_NL", "IQ4_XS", "MXFP4", "MXFP4_MOE", "Q4_0", "Q4_1",
    "Q5_K_M", "UD-Q5_K_XL", "Q5_K_S", "Q5_0", "Q5_1", "Q6_K", "Q8_0", "BF16", "F16", "FP16", "F32",
)  # fmt: skip

_PART = re.compile(r"-(\d{5})-of-(\d{5})$")
_QUANT = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d+(?:_[A-Z0-9]+)*|TQ\d_\d|MXFP4(?:_MOE)?|NVFP4|BF16|FP?16|FP?32))(?=$|[-._/])", re.I
)
_NOT_MODELS = re.compile(r"^(mmproj|imatrix)|imatrix\.gguf$", re.I)  # projectors and calibration data


SAFETENSORS: Final = "SAFETENSORS"  # what follows the colon in `owner/repo:safetensors`

_WEIGHTS: Final = re.compile(r"model(?:-(\d{5})-of-(\d{5}))?\.safetensors")
_BESIDE_WEIGHTS: Final = re.compile(r"(?!adapter_).+\.(?:json|jinja)|merges\.txt|tokenizer\.model")


@dataclass(frozen=True, slots=True)
class FileSet:
    """One model: a GGUF file, or all parts of a split one, in order; or the files of a folder (`is_folder`), its
    weights first."""

    stem: str  # without part numbers and `.gguf`, with the folders that lead there; a folder's is its name
    names: tuple[str, ...]
    is_folder: bool = False

    @property
    def quant(self) -> str | None:
        """Upper case, as in `Q4_K_M`; from the file's name, else from a folder's."""
        if self.is_folder:
            return SAFETENSORS
        folder, _, name = self.stem.rpartition("/")
        found = _QUANT.findall(name) or _QUANT.findall(folder)
        return found[-1].upper() if found else None

    @property
    def file_names(self) -> frozenset[str]:
        """What people call the file, in lower case: with or without folders and `.gguf`."""
        stem = self.stem.casefold()
        name = stem.rpartition("/")[2]
        return frozenset((stem, name, f"{stem}.gguf", f"{name}.gguf"))

    @property
    def weights(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name.endswith(".safetensors")) if self.is_folder else self.names

    def is_meant_by(self, quant: str) -> bool:
        """`quant` is what follows the colon in `owner/repo:quant`: a quant, or a file's name."""
        wanted = quant.casefold()
        return wanted in self.file_names or (self.quant is not None and wanted == self.quant.casefold())


def file_sets(names: Iterable[str]) -> list[FileSet]:
    """The complete models among relative `names`, by stem. Half of a split model is none; a name that leads out of
    its folder is left out."""
    sets: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
    for name in names:
        path = PurePosixPath(name)
        is_inside = not path.is_absolute() and not any(part in ("..", ".") or "\\" in part for part in name.split("/"))
        if not is_inside or path.suffix.lower() != ".gguf" or _NOT_MODELS.search(path.name):
            continue
        stem = name[: -len(path.suffix)]
        part = _PART.search(stem)
        number, count = (int(part[1]), int(part[2])) if part else (1, 1)
        sets[stem[: part.start()] if part else stem, count][number] = name
    complete = {key: parts for key, parts in sets.items() if sorted(parts) == list(range(1, key[1] + 1))}
    return [FileSet(stem, tuple(parts[i] for i in sorted(parts))) for (stem, _), parts in sorted(complete.items())]


def folder_set(name: str, names: Iterable[str]) -> FileSet | None:
    """The model that a folder called `name` is, by the files in it (those deeper down are none of it): None where it
    has no config.json, or not all parts of its weights."""
    files = sorted(file for file in names if "/" not in file)
    weights = {file: match for file in files if (match := _WEIGHTS.fullmatch(file))}
    whole = [file for file, match in weights.items() if match[1] is None]
    counts = sorted({match[2] for match in weights.values() if match[2]})
    parts = [[file for file, match in weights.items() if match[2] == count] for count in counts]
    complete = [whole] * bool(whole) + [
        part for part, count in zip(parts, counts, strict=True) if len(part) == int(count)
    ]
    if "config.json" not in files or not complete:
        return None
    return FileSet(name, (*complete[0], *filter(_BESIDE_WEIGHTS.fullmatch, files)), is_folder=True)


def preferred(sets: Sequence[FileSet]) -> FileSet | None:
    """The one to take when nobody says which: None when the choice isn't clear."""
    if len(sets) == 1:
        return sets[0]
    for quant in PREFERRED_QUANTS:
        same = [s for s in sets if s.quant == quant]
        if same:
            return same[0] if len(same) == 1 else None
    return None
