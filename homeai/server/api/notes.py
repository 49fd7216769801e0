"""What is said to a client beside its answer, in the X-HomeAI-Notes header: each thing once, and not without end."""

from __future__ import annotations

from typing import Final

MAX_NOTES: Final = 64  # more than fit into the header


def add_note(notes: list[str], note: str) -> None:
    """A body can give a reason for a note ten thousand times."""
    if len(notes) < MAX_NOTES and note not in notes:
        notes.append(note)
