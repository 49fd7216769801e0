"""What a request is, before anybody runs it."""

from __future__ import annotations

import pytest

from homeai.request import longest_request


@pytest.mark.parametrize(
    ("max_model_len", "n_ctx_train", "num_kv_cells", "expected"),
    [
        (None, 32768, 16384, 16384),
        (None, 8192, 16384, 8192),
        (4096, 8192, 16384, 4096),
        (0, 8192, 16384, 8192),  # as the engine's message says "not configured"
        (None, 0, 16384, 16384),  # a file that does not say what it was trained for
        (0, 0, 16384, 16384),
    ],
)
def test_longest_request_is_what_was_configured_or_trained_and_fits_the_cache(
    max_model_len: int | None, n_ctx_train: int, num_kv_cells: int, expected: int
) -> None:
    assert longest_request(max_model_len, n_ctx_train, num_kv_cells) == expected
