"""2,000 requests that schemathesis makes from our own OpenAPI document: none fails on our side, none hangs.

Half of them are as the document says, half break it somewhere. What comes back is documented: status, content type,
and the error's shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis import checks
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.schemas import APIOperation, BaseSchema

from tests.blackbox.asking import assert_unharmed
from tests.daemon import Daemon
from tests.fim import fim_model

NUM_CASES = 2000
NUM_TOKENS = 2  # of each answer, at most
ANSWER_TIMEOUT_S = 60.0
CHECKED = (
    checks.not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
LIMITS = ("max_tokens", "max_completion_tokens", "n_predict", "max_output_tokens")
UNASKED = {  # what is left out, and why
    "/api/status/events": "never ends",
    **dict.fromkeys(("load", "unload", "pin", "yield", "reload", "pause", "resume"), "takes the model away"),
}


@pytest.fixture(scope="module")
def house(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon of few seats, with a model that can do all that the document names."""
    directory = tmp_path_factory.mktemp("openapi")
    settings = "scheduler.max_model_len=512", "scheduler.max_num_seqs=4"
    with Daemon.start(fim_model(model_path, directory), directory, *settings) as running:
        yield running


@pytest.fixture(scope="module")
def schema(house: Daemon) -> BaseSchema:
    return schemathesis.openapi.from_url(f"{house.url}/openapi.json")


@pytest.fixture(scope="module")
def operations(schema: BaseSchema) -> list[APIOperation]:
    every = [result.ok() for result in schema.get_all_operations()]
    return [one for one in every if one.path not in UNASKED and not one.path.startswith("/api/admin/")]


def explore(operation: APIOperation, mode: GenerationMode, num_cases: int) -> int:
    """How many cases were made."""
    num_made = 0

    @hypothesis.seed(1)
    @hypothesis.settings(
        max_examples=num_cases,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        nonlocal num_made
        num_made += 1
        keep_short(case.body)
        case.call_and_validate(checks=list(CHECKED), timeout=ANSWER_TIMEOUT_S)

    ask()
    return num_made


def keep_short(body: Any) -> None:
    """Ask for few tokens, unless what is asked for is a mistake."""
    if not isinstance(body, dict):
        return
    for limited, names in ((body, LIMITS), (body.get("options"), ("num_predict",))):
        for name in names if isinstance(limited, dict) else ():
            if limited.get(name) is None or (isinstance(limited[name], int) and abs(limited[name]) > NUM_TOKENS):
                limited[name] = NUM_TOKENS


def test_nothing_that_the_document_allows_or_forbids_breaks_the_server(operations: list[APIOperation]) -> None:
    import time
    total=0
    for op in operations:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            t=time.time()
            try: n = explore(op, mode, 30)
            except BaseException as e: print("!!", op.label, mode, type(e), str(e)[:1500]); n=-1
            print(op.label, mode, n, round(time.time()-t,1), flush=True)
