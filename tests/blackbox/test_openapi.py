"""2,000 requests that schemathesis makes from our own OpenAPI document: none fails on our side, none hangs.

Half of them are as the document says, half break it somewhere. What comes back is documented: status, content type,
and the error's shape.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis
from schemathesis import checks
from schemathesis.generation import GenerationMode
from schemathesis.schemas import APIOperation, BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.blackbox.asking import assert_unharmed
from tests.daemon import Daemon

FIELDS_PAGE = Path(__file__).parents[2] / "docs" / "clients" / "fields.md"
NUM_CASES = 2000
NEVER_BY_CHANCE = ("/v1/batches",)  # needs a file of good lines
NUM_LOOKS = 10  # at each path that is only read
NUM_TOKENS = 2  # of each answer, at most
ANSWER_TIMEOUT_S = 60.0
CHECKED = (
    checks.not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
LIMITS = ("max_tokens", "max_completion_tokens", "n_predict", "max_output_tokens")
UNASKED = (
    "/api/status/events",  # has no end
    "/api/admin/",  # takes the model away
)


@pytest.fixture(scope="module")
def house(fim_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon of few seats, with a model that can do all that the document names."""
    settings = "scheduler.max_model_len=512", "scheduler.max_num_seqs=4"
    with Daemon.start(fim_model_path, tmp_path_factory.mktemp("openapi"), *settings) as running:
        yield running


@pytest.fixture(scope="module")
def schema(house: Daemon) -> BaseSchema:
    return schemathesis.openapi.from_url(f"{house.url}/openapi.json")


@pytest.fixture(scope="module")
def operations(schema: BaseSchema) -> list[APIOperation]:
    every = [result.ok() for result in schema.get_all_operations()]
    return [one for one in every if not one.path.startswith(UNASKED)]


def test_document_names_every_body_and_every_error(house: Daemon) -> None:
    document = httpx.get(f"{house.url}/openapi.json").json()
    parts = document["components"]["schemas"]
    referred = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert referred <= parts.keys()
    assert "$defs" not in json.dumps(document)
    for path, item in document["paths"].items():
        for operation in item.values():
            assert {"200", "4XX", "5XX"} <= operation["responses"].keys(), path
            assert "422" not in operation["responses"], path


def test_every_body_is_in_the_table_of_fields(operations: list[APIOperation]) -> None:
    headings = set(FIELDS_PAGE.read_text().splitlines())
    paths = {one.path for one in operations if any(body.media_type == "application/json" for body in one.body)}
    assert {path for path in paths if f"### POST {path}" not in headings} == set()


def test_bounds_of_numbers_are_in_json_schemas_words(house: Daemon) -> None:
    document = httpx.get(f"{house.url}/openapi.json").json()
    content = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]
    fields = content["application/json"]["schema"]["properties"]
    assert (fields["top_k"]["minimum"], fields["top_k"]["maximum"]) == (-1, 2**31 - 1)
    assert {"type": "string"} in fields["stop"]["anyOf"]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.value)
def test_nothing_that_the_document_allows_or_forbids_breaks_the_server(
    house: Daemon, operations: list[APIOperation], mode: GenerationMode
) -> None:
    """E4, E5, E8, E10, E11 and E12 of every API at once."""
    asked = [one for one in operations if one.body]
    num_each = -(-NUM_CASES // (2 * len(asked)))
    statuses = {one.path: explore(one, mode, num_each) for one in asked}
    assert sum(map(len, statuses.values())) >= NUM_CASES // 2
    if mode is GenerationMode.POSITIVE:
        assert [path for path, given in statuses.items() if 200 not in given and path not in NEVER_BY_CHANCE] == []
    assert_unharmed(house)


def test_what_is_only_looked_at_is_there(house: Daemon, operations: list[APIOperation]) -> None:
    for operation in operations:
        if not operation.body:
            explore(operation, GenerationMode.POSITIVE, NUM_LOOKS)
    assert_unharmed(house)


def explore(operation: APIOperation, mode: GenerationMode, num_cases: int) -> list[int]:
    """The statuses of so many cases."""
    statuses: list[int] = []

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
        if isinstance(case.body, dict):
            keep_short(case.body)
            ask_the_resident(case.body)
        response = case.call_and_validate(checks=list(CHECKED), timeout=ANSWER_TIMEOUT_S)
        statuses.append(response.status_code)

    ask()
    return statuses


def keep_short(body: dict[str, Any]) -> None:
    """Ask for few tokens, unless what is asked for is a mistake."""
    if body.get("options") is None:
        body["options"] = {}
    for limited, names in ((body, LIMITS), (body["options"], ("num_predict",))):
        for name in names if isinstance(limited, dict) else ():
            wanted = limited.get(name)
            if wanted is None or (isinstance(wanted, int | float) and not 0 <= wanted <= NUM_TOKENS):
                limited[name] = NUM_TOKENS


def ask_the_resident(body: dict[str, Any]) -> None:
    """The document does not know its name."""
    if isinstance(body.get("model"), str):
        body["model"] = "default"
