"""Prints which libraries a wheel of Home Assistant makes its requests with, a requirement a line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.home_assistant.wheel import INTEGRATIONS, Wheel

SHARED = "voluptuous", "voluptuous-openapi"


def main() -> None:
    wheel = Wheel(Path(sys.argv[1]))
    for integration in INTEGRATIONS:
        manifest = json.loads(wheel.text(f"homeassistant/components/{integration}/manifest.json") or "{}")
        print(*manifest["requirements"], sep="\n")
    for line in (wheel.text("homeassistant/package_constraints.txt") or "").splitlines():
        if line.partition("==")[0] in SHARED:
            print(line)


if __name__ == "__main__":
    main()
