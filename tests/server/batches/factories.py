"""Batches and files as tests need them."""

from __future__ import annotations

import json

import msgspec

from homeai.server.batches.records import INPUT, Batch, Place, Status, StoredFile

NOW = 1_000_000.0
ENDPOINT = "/v1/completions"


def make_lines(num_lines: int) -> list[bytes]:
    return [
        json.dumps({"custom_id": f"r{i}", "method": "POST", "url": ENDPOINT, "body": {"prompt": str(i)}}).encode()
        for i in range(1, num_lines + 1)
    ]


def make_places(num_lines: int) -> list[Place]:
    """Of `make_lines`, joined by line feeds."""
    places, start = [], 0
    for i, raw in enumerate(make_lines(num_lines), 1):
        places.append(Place(f"r{i}", start, len(raw)))
        start += len(raw) + 1
    return places


def make_file(file_id: str = "file-in", **fields: object) -> StoredFile:
    file = StoredFile(file_id=file_id, owner="ann", filename="in.jsonl", purpose=INPUT, num_bytes=100, created_at=NOW)
    return msgspec.structs.replace(file, **fields)


def make_batch(batch_id: str = "batch_1", num_lines: int = 3, **fields: object) -> Batch:
    batch = Batch(
        batch_id=batch_id,
        owner="ann",
        key=None,
        source="ann",
        fairness_class="interactive",
        endpoint=ENDPOINT,
        input_file_id="file-in",
        completion_window="24h",
        metadata=None,
        status=Status.IN_PROGRESS,
        errors=[],
        created_at=NOW,
        expires_at=1e12,
        ended_at=None,
        outputs_kept_s=100.0,
        num_lines=num_lines,
        num_completed=0,
        num_failed=0,
        num_input_tokens=0,
        num_cached_tokens=0,
        num_output_tokens=0,
        num_reasoning_tokens=0,
        output_file_id=None,
        error_file_id=None,
    )
    return msgspec.structs.replace(batch, **fields)
