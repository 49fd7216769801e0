"""Settings as text: YAML, and layers of it laid over each other. What a setting means is not known here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import yaml

from homeai.errors import ConfigError

Tree = dict[str, object]

# ---- layers ------------------------------------------------------------------------------------------


def merged(base: Tree, layer: Tree) -> Tree:
    """`layer` over `base`: mappings key by key, everything else replaced."""
    result = dict(base)
    for key, value in layer.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def nested(keys: Sequence[str], value: object) -> Tree:
    first, *rest = keys
    return {first: nested(rest, value) if rest else value}


def without_nulls(tree: Tree) -> Tree:
    """A section whose every key is commented out reads as null: it says nothing."""
    return {key: value for key, value in tree.items() if value is not None}


# ---- YAML --------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """YAML 1.2's core types and nothing else (in 1.1, `flash_attention: off` is false and `1:30` is 90)."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 (declared by the base class)
    yaml_constructors = {  # noqa: RUF012
        tag: constructor
        for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.endswith((":null", ":bool", ":int", ":float", ":str", ":seq", ":map"))
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
            seen.add(str(key.value))
        mapping: dict[object, object] = super().construct_mapping(node, deep)
        return mapping


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", list("-+.")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)

_YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, RecursionError)


def read_file(path: Path) -> Tree:
    """The mapping in the file, {} where it says nothing. Raises `ConfigError`."""
    try:
        document: object = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except _YAML_ERRORS as error:
        raise ConfigError(f"{path}: {_yaml_problem(error)}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: line 1: not a mapping of sections")
    return {str(key): value for key, value in document.items()}


def _yaml_problem(error: Exception) -> str:
    problem = " ".join(str(getattr(error, "problem", None) or error).split())
    mark = getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}: {problem}" if isinstance(mark, yaml.Mark) else f"not YAML: {problem}"


def parse_value(text: str) -> object:
    """What is not YAML is taken as written; a setting that is not text then refuses it."""
    try:
        value: object = yaml.load(text, _Loader)
    except _YAML_ERRORS:
        return text
    return value
