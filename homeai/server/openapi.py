"""The OpenAPI document, made complete: bodies' parts as components, what streams, errors in each family's shape.

FastAPI writes it from the routes; but bodies are read, and answers written, by ourselves, so it knows little of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

from fastapi import FastAPI

from homeai.server.shapes import Family, Value, family_of

METHODS: Final = frozenset(("get", "post", "put", "delete", "head", "options", "patch"))
BOUNDS: Final = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
TEXT: Final[Value] = {"type": "string"}
MAYBE_TEXT: Final[Value] = {"type": ["string", "null"]}


def _object(**properties: Value) -> Value:
    return {"type": "object", "properties": properties, "required": list(properties)}


ERRORS: Final[dict[Family, Value]] = {
    "openai": _object(error=_object(message=TEXT, type=TEXT, param=MAYBE_TEXT, code=MAYBE_TEXT)),
    "anthropic": _object(type={"const": "error"}, error=_object(type=TEXT, message=TEXT), request_id=TEXT),
    "ollama": _object(error=TEXT),
    "llamacpp": _object(error=_object(code={"type": "integer"}, message=TEXT, type=TEXT)),
}
HEALTH: Final = "/health"
EVENT: Final = _object(data=TEXT)
STREAMED: Final[dict[Family, Value]] = {
    "openai": {"text/event-stream": {"schema": EVENT}},
    "anthropic": {"text/event-stream": {"schema": EVENT}},
    "llamacpp": {"text/event-stream": {"schema": EVENT}},
    "ollama": {"application/x-ndjson": {}},
}
UNHEALTHY: Final = _object(status=TEXT, error=_object(message=TEXT, type=TEXT, code={"type": "integer"}))


class Application(FastAPI):
    """FastAPI, with a document that says all."""

    def openapi(self) -> Value:
        if self.openapi_schema is None:
            self.openapi_schema = completed(super().openapi())
        return self.openapi_schema


def completed(document: Value) -> Value:
    """The document, changed in place."""
    schemas: Value = {f"{family}.Error": schema for family, schema in ERRORS.items()}
    for path, operation in _operations(document):
        responses = cast(dict[str, Value], operation["responses"])
        responses.pop("422", None)  # FastAPI's own refusals: there are none
        if "requestBody" in operation:
            _complete_body(path, operation, schemas)
        error: Value = {"$ref": f"#/components/schemas/{family_of(path)}.Error"}
        responses["4XX"] = _response("Refused; the message says why", error)
        responses["5XX"] = _response("Not now, or not with this model", UNHEALTHY if path == HEALTH else error)
    document["components"] = {"schemas": schemas}
    return document


def _operations(document: Value) -> Iterator[tuple[str, Value]]:
    for path, item in cast(dict[str, dict[str, Value]], document["paths"]).items():
        for method, operation in item.items():
            if method in METHODS:
                yield path, operation


def _complete_body(path: str, operation: Value, schemas: Value) -> None:
    contents = cast(dict[str, dict[str, Value]], cast(Value, operation["requestBody"])["content"])
    if (content := contents.get("application/json")) is None:
        return
    body = content["schema"] = cast(Value, _with_known_bounds(content["schema"]))
    for one in cast(list[Value], body.get("anyOf", [body])):
        schemas.update(cast(Value, one.pop("$defs", {})))
    if "stream" in cast(Value, body.get("properties", {})):
        ok = cast(dict[str, Value], operation["responses"])["200"]
        cast(Value, ok["content"]).update(STREAMED[family_of(path)])


def _with_known_bounds(schema: object) -> object:
    """Pydantic has no word of JSON Schema's for the bounds of a number that is looked at first."""
    if isinstance(schema, dict):
        return {BOUNDS.get(key, key): _with_known_bounds(value) for key, value in schema.items()}
    return [_with_known_bounds(item) for item in schema] if isinstance(schema, list) else schema


def _response(description: str, schema: Value) -> Value:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
