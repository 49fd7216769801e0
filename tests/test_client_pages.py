"""The pages in docs/clients: complete, and what the body models say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "clients"


def test_table_of_fields_is_what_the_models_say() -> None:
    script = ROOT / "scripts" / "fields-table"
    written = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert (PAGES / "fields.md").read_text() == written, "write it anew with scripts/fields-table"


def test_every_page_is_linked_and_every_link_leads_somewhere() -> None:
    linked = set()
    for page in PAGES.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
            linked.add(target)
    assert {page.name for page in PAGES.glob("*.md")} - {"README.md"} <= linked
