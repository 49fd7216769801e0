"""Requests that Home Assistant's integrations made, byte for byte, in `exchanges/`; `record.py` writes them."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.home_assistant.relay import Request

FOLDER = Path(__file__).parent / "exchanges"
KEPT = "accept", "content-type", "user-agent"  # headers that are the same on every machine


@dataclass(frozen=True)
class Exchange:
    home_assistant: str  # version
    method: str
    path: str
    headers: dict[str, str]
    body: str  # as it was sent

    @classmethod
    def of(cls, request: Request, version: str) -> Exchange:
        headers = {name: request.headers[name] for name in KEPT if name in request.headers}
        headers["user-agent"] = re.sub(r" \(.*", "", headers["user-agent"])  # the machine
        return cls(version, request.method, request.path, headers, request.body.decode())

    @classmethod
    def read(cls, path: Path) -> Exchange:
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def recorded(prefix: str) -> dict[str, Exchange]:
    """Those whose names begin so, by name, in order."""
    return {path.stem: Exchange.read(path) for path in sorted(FOLDER.glob(f"{prefix}*.json"))}
