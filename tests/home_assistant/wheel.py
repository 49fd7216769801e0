"""Imports modules of Home Assistant as they are from its wheel, without Home Assistant being installed.

Its package needs a newer Python and two hundred others. What makes requests and reads answers does not: those modules
(`REAL`) are run from the wheel, and all others that they import are stand-ins.
"""

from __future__ import annotations

import importlib
import mimetypes
import re
import sys
import zipfile
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.home_assistant.standins import STAND_INS, StandInModule

INTEGRATIONS = "ollama", "openai_conversation"
REAL = {
    "homeassistant.components.conversation.chat_log",
    "homeassistant.components.conversation.util",
    "homeassistant.helpers.json",
    "homeassistant.helpers.llm",
    "homeassistant.util.json",
    *(f"homeassistant.components.{integration}" for integration in INTEGRATIONS),
    *(
        f"homeassistant.components.{integration}.{module}"
        for integration in INTEGRATIONS
        for module in ("ai_task", "const", "conversation", "entity", "models")
    ),
}
NOT_INSTALLED = {"slugify"}  # imported next to them, and not used by what runs here
NEWER = "guess_file_type"  # Python 3.13's; for images
ALIAS = re.compile(r"^type (\w+) = ", re.MULTILINE)  # Python 3.12's; evaluated as late as there


class Wheel:
    """The wheel itself, or the folder that it is unpacked in."""

    def __init__(self, path: Path) -> None:
        self.root: Path | zipfile.Path = path if path.is_dir() else zipfile.Path(path)

    def __enter__(self) -> Wheel:
        return self

    def __exit__(self, *error: object) -> None:
        if isinstance(self.root, zipfile.Path):
            self.root.root.close()

    def text(self, name: str) -> str | None:
        """A file's, or None where there is none."""
        file = self.root / name
        return file.read_text(encoding="utf-8") if file.is_file() else None

    @property
    def version(self) -> str:
        const = self.text("homeassistant/const.py") or ""
        parts = re.findall(r'^(?:MAJOR|MINOR|PATCH)_VERSION: Final = "?([\w.]+)"?$', const, re.MULTILINE)
        return ".".join(parts) or "unknown"

    def source(self, module: str) -> str:
        """Of one in `REAL`. An ImportError where the wheel lacks it."""
        path = module.replace(".", "/")
        text = self.text(f"{path}/__init__.py") or self.text(f"{path}.py")
        if text is None:
            raise ImportError(f"{module} is not in {self.root}")
        return ALIAS.sub(r"\1 = lambda: ", text)

    def load(self) -> Finder:
        """From here on `import homeassistant…` works, until `Finder.unload`."""
        finder = Finder(self)
        sys.meta_path.append(finder)  # last: what is installed comes first
        if not hasattr(mimetypes, NEWER):
            setattr(mimetypes, NEWER, mimetypes.guess_type)
        return finder


class Finder(MetaPathFinder, Loader):
    def __init__(self, wheel: Wheel) -> None:
        self._wheel = wheel
        self._loaded: list[str] = []

    def unload(self) -> None:
        sys.meta_path.remove(self)
        self._wheel.__exit__()
        if getattr(mimetypes, NEWER) is mimetypes.guess_type:
            delattr(mimetypes, NEWER)
        for name in self._loaded:
            sys.modules.pop(name, None)

    def module(self, name: str) -> Any:
        """`homeassistant.NAME`."""
        return importlib.import_module(f"homeassistant.{name}")

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] != "homeassistant" and name not in NOT_INSTALLED:
            return None
        is_package = name not in REAL or name.removeprefix("homeassistant.components.") in INTEGRATIONS
        return ModuleSpec(name, self, is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None if spec.name in REAL else StandInModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        self._loaded.append(name)
        if name in REAL:
            exec(compile(self._wheel.source(name), f"{name} of the wheel", "exec", dont_inherit=True), module.__dict__)
        else:
            vars(module).update(STAND_INS.get(name, {}))
