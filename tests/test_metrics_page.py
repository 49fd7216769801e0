"""docs/metrics.md and the dashboard beside it say what a real /metrics has."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.daemon import Daemon

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "metrics.md").read_text()
DASHBOARD = json.loads((DOCS / "grafana" / "homeai.json").read_text())

ROW = re.compile(r"^\| `(homeai_\w+|process_\w+)` \| (\w+) \| ([\w, ]*) ?\| (.+) \|$", re.MULTILINE)
ABBREVIATED = {"s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "m", "h", "d", "percent"}
OF_THE_SCRAPE = {"instance", "job"}  # labels that Prometheus adds


@pytest.fixture(scope="module")
def families(daemon: Daemon) -> dict[str, Metric]:
    """By the name that # TYPE gives, after a request that was answered and one that was refused."""
    with daemon.client() as client:
        client.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 2}).raise_for_status()
        assert client.post("/v1/completions", json={"prompt": "Hello", "model": "unknown"}).status_code == 404
        text = client.get("/metrics").text
    found = {f"{f.name}_total" if f.type == "counter" else f.name: f for f in text_string_to_metric_families(text)}
    assert len(found) == text.count("# TYPE") == text.count("# HELP"), "each once, with its type and its help"
    return found


def labels_of(family: Metric) -> set[str]:
    return {label for sample in family.samples for label in sample.labels} - {"le"}


def test_page_has_every_metric_with_its_type_and_labels(families: dict[str, Metric]) -> None:
    told = {name: (kind, {label for label in labels.split(", ") if label}) for name, kind, labels, _ in rows()}
    assert told == {name: (family.type, labels_of(family)) for name, family in families.items()}


def rows() -> Iterator[tuple[str, str, str, str]]:
    for match in ROW.finditer(PAGE):
        name, kind, labels, meaning = match.groups()
        yield name, kind, labels.strip(), meaning


def test_page_has_no_metric_twice() -> None:
    assert [name for name, count in Counter(name for name, *_ in rows()).items() if count > 1] == []


def test_names_in_other_servers_words_are_ours_and_none_of_theirs_is_there_twice(families: dict[str, Metric]) -> None:
    table = PAGE[PAGE.index("| vLLM") :].splitlines()[2:]
    theirs = {"vllm": Counter[str](), "llama-server": Counter[str]()}
    for line in table:
        vllm, llama, ours, _ = (cell.strip() for cell in line.strip("|").split("|", 3))
        assert f"homeai_{ours.strip('`')}" in families, line
        theirs["vllm"][vllm] += vllm != ""
        theirs["llama-server"][llama] += llama != ""
    assert all(count <= 1 for names in theirs.values() for count in names.values())


def test_names_keep_prometheus_rules(families: dict[str, Metric]) -> None:
    for name, family in families.items():
        words = name.removesuffix("_total").split("_")
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name), name
        assert name.endswith("_total") == (family.type == "counter"), f"{name} is a {family.type}"
        assert not ABBREVIATED & set(words), f"{name} has an abbreviated unit"
        assert not {family.type} & set(words), f"{name} has its type in its name"
        assert family.documentation, f"{name} has no help"


# ---- the dashboard ---------------------------------------------------------------------------------------


def expressions() -> list[str]:
    targets = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    annotations = [each["expr"] for each in DASHBOARD["annotations"]["list"] if "expr" in each]
    return [*targets, *annotations]


def plain(expression: str) -> str:
    """With values for what Grafana fills in."""
    for variable in ("$__rate_interval", "$__interval", "$__range"):
        expression = expression.replace(variable, "5m")
    return expression.replace("$instance", ".*").replace("$class", ".*")


def parts_of(node: Any) -> list[Any]:
    """A PromQL expression and all that it is made of."""
    found: list[Any] = []
    promql_parser.walk(node, found.append)
    return found


@pytest.mark.parametrize("expression", expressions())
def test_dashboard_asks_for_metrics_and_labels_that_are_there(expression: str, families: dict[str, Metric]) -> None:
    known = {sample.name: family for family in families.values() for sample in family.samples} | families
    node = promql_parser.parse(plain(expression))
    labels: set[str] = set()
    for part in parts_of(node):
        if isinstance(part, promql_parser.VectorSelector):
            assert part.name in known, part.name
            used = {matcher.name for matcher in part.matchers.matchers}
            has = {label for sample in known[part.name].samples for label in sample.labels}
            labels |= has
            assert used <= has | OF_THE_SCRAPE, f"{part.name} has {has}, asked for {used}"
    for part in parts_of(node):
        if isinstance(part, promql_parser.AggregateExpr) and part.modifier is not None:
            assert set(part.modifier.labels) <= labels | OF_THE_SCRAPE


def test_dashboard_reads_only_the_prometheus_that_is_chosen() -> None:
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    variables = DASHBOARD["templating"]["list"]
    assert variables[0]["type"] == "datasource"
    assert all(each["datasource"] == chosen for each in variables[1:])
    for panel in DASHBOARD["panels"]:
        assert all(target["datasource"] == chosen for target in panel.get("targets", ()))
        assert panel["type"] == "row" or panel["datasource"] == chosen


def test_dashboards_panels_do_not_lie_on_each_other() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    cells = Counter(
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    )
    assert max(cells.values()) == 1
    assert max(x for x, _ in cells) < 24
