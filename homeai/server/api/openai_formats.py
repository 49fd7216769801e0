"""What form the answer's text must have: `response_format`, and llama-server's `grammar` and `json_schema`."""

from __future__ import annotations

from collections.abc import Mapping

from homeai.errors import InvalidRequest, Unsupported
from homeai.server.conversation import AnswerFormat

OBJECT: Mapping[str, object] = {}  # any
SCHEMA_PATH = "response_format.json_schema.schema"


def answer_format(
    response_format: Mapping[str, object] | None, grammar: str | None, json_schema: object
) -> AnswerFormat | None:
    """None: as the model likes. Raises `InvalidRequest` for two forms at once, and for one that is not whole."""
    wishes = {
        "response_format": _wished(response_format) if response_format is not None else None,
        "grammar": AnswerFormat(grammar=grammar, path="grammar") if grammar else None,
        "json_schema": AnswerFormat(_schema(json_schema, "json_schema"), path="json_schema")
        if json_schema is not None
        else None,
    }
    given = {name: wish for name, wish in wishes.items() if wish is not None}
    if len(given) > 1:
        first, second = list(given)[:2]
        raise InvalidRequest(f"{first} and {second} both say what form the answer has; send one", param=second)
    return next(iter(given.values()), None)


def _wished(response_format: Mapping[str, object]) -> AnswerFormat | None:
    kind = response_format.get("type")
    match kind:
        case "text":
            return None
        case "json_object":  # llama-server takes a schema here
            schema = response_format.get("schema")
            return AnswerFormat(OBJECT if schema is None else _schema(schema, "response_format.schema"))
        case "json_schema":
            declared = response_format.get("json_schema")
            if not isinstance(declared, dict):
                raise InvalidRequest(
                    "response_format.json_schema is needed with this type, as {'name': …, 'schema': {…}}",
                    param="response_format.json_schema",
                )
            return AnswerFormat(_schema(declared.get("schema"), SCHEMA_PATH), path=SCHEMA_PATH)
        case _:
            raise Unsupported(
                f"response_format.type is {kind!r:.80}; supported are 'text', 'json_object' and 'json_schema'",
                param="response_format.type",
            )


def _schema(value: object, path: str) -> Mapping[str, object] | bool:
    if not isinstance(value, dict | bool):
        raise InvalidRequest(f"{path}: a JSON schema is needed, not {value!r:.80}", param=path)
    return value
