"""From bytes to a typed, checked body: the one place where JSON is read."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from collections.abc import Callable, ItemsView, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Final, NoReturn, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo
from starlette.requests import Request

from homeai.errors import InvalidRequest, Unsupported
from homeai.server.unpack import unpack_gzip, unpack_zstd

B = TypeVar("B", bound="Body")

MAX_ENTRIES: Final = 10_000  # of a list of messages, of their parts, of their calls
MAX_NESTED: Final = 100_000  # objects and arrays of a body: each is checked on the loop that serves everybody

SURROGATE_ESCAPE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")
JSON_WORDS: Final = {"model_type": "input should be an object", "dict_type": "input should be an object"}


Unpack = Callable[[bytes, int], bytes]
ENCODINGS: Final[Mapping[str, Unpack | None]] = {
    **dict.fromkeys(("identity", "")),
    **dict.fromkeys(("gzip", "x-gzip"), unpack_gzip),
    "zstd": unpack_zstd,
}


class Body(BaseModel):
    """Unknown fields are ignored. Types are exact: `"max_tokens": true` is a mistake, not 1."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


def _without_fraction(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _refuse(value: object, info: ValidationInfo) -> object:
    if value not in (False, ""):
        raise Unsupported(f"{info.field_name} is not supported", param=info.field_name)
    return value


Integer = Annotated[int, BeforeValidator(_without_fraction)]
"""JSON has one kind of number, and some clients write 20 as 20.0."""

Refused = Annotated[object, AfterValidator(_refuse), Field(json_schema_extra={"enum": [None, False, ""]})]
"""What would change the answer and cannot be done: an error, unless it is off. Never dropped silently."""


class Documents(dict[str, object]):
    """What OpenAPI says of a route's body: we read bodies ourselves, strictly. Of several models any one will do.

    Written when the document is: the schemas of all bodies take 0.1 s, which no start should wait for. What a schema
    refers to is in its own `$defs` still: `openapi.py` puts it where the references point to.
    """

    def __init__(self, *models: type[Body]) -> None:
        super().__init__()
        self._models = models

    def __bool__(self) -> bool:
        return True

    def items(self) -> ItemsView[str, object]:  # type: ignore[override]
        schemas = [_schema(model) for model in self._models]
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        return ItemsView({"requestBody": body})


def _schema(model: type[Body]) -> dict[str, object]:
    owner = f"{model.__module__.rpartition('.')[2]}.{model.__name__}"
    schema = model.model_json_schema(ref_template=f"#/components/schemas/{owner}.{{model}}")
    parts = schema.pop("$defs", {})
    return schema | {"$defs": {f"{owner}.{name}": part for name, part in parts.items()}}


async def read_body(request: Request, model: type[B]) -> B:
    """Raises `InvalidRequest` naming the field, `BodyTooLarge` while reading or unpacking."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ENCODINGS:
        raise Unsupported(f"content-encoding {encoding!r} is not supported: send gzip, zstd, or the body as it is")
    raw = await request.body()
    unpack = ENCODINGS[encoding]
    if unpack is not None:
        raw = await asyncio.to_thread(unpack, raw, request.state.max_body_bytes)
    return parse_body(raw, model)


def parse_body(raw: bytes, model: type[B]) -> B:
    """Null means absent. Raises `InvalidRequest` naming the field."""
    try:
        data = _load(raw)
        if not isinstance(data, dict):
            raise InvalidRequest(f"the request body must be a JSON object, not {_json_type(data)}")
        return model.model_validate({key: value for key, value in data.items() if value is not None})
    except RecursionError:
        raise InvalidRequest("the request body is nested too deeply") from None
    except ValidationError as error:
        raise _explain(error) from None


def _load(raw: bytes) -> object:
    try:
        with _without_collector():
            data: object = json.loads(raw.decode("utf-8-sig"), parse_constant=_refuse_constant)
            if raw.count(b"{") + raw.count(b"[") > MAX_NESTED:  # texts have brackets too
                _check_nested(data)
    except UnicodeDecodeError:
        raise InvalidRequest("the request body is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"the request body is not valid JSON: {error}") from None
    except ValueError:  # Python reads up to 4300 digits
        raise InvalidRequest("the request body has a number with too many digits") from None
    return _without_lone_surrogates(data) if SURROGATE_ESCAPE.search(raw) else data


@contextmanager
def _without_collector() -> Iterator[None]:
    """The garbage collector would look at millions of new objects again and again, and find all of them in use."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _check_nested(data: object) -> None:
    """Raises `InvalidRequest` for what would take seconds to check."""
    num_nested = 0
    waiting = [data]
    while waiting:
        value = waiting.pop()
        num_nested += 1
        if num_nested > MAX_NESTED:
            raise InvalidRequest(f"the request body has more than {MAX_NESTED} objects and arrays")
        entries = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        waiting += [entry for entry in entries if isinstance(entry, dict | list)]


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidRequest(f"the request body is not valid JSON: {name} is not a number there")


def _without_lone_surrogates(value: object) -> object:
    """Half of an emoji becomes U+FFFD: a conversation that carries one must still go on."""
    replaced: object = json.loads(LONE_SURROGATE.sub("\ufffd", json.dumps(value, ensure_ascii=False)))
    return replaced


def _explain(error: ValidationError) -> InvalidRequest:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    param = _path(first["loc"])
    text = JSON_WORDS.get(first["type"]) or f"{first['msg'][:1].lower()}{first['msg'][1:]}"
    return InvalidRequest(f"{param}: {text}" if param else text, param=param or None)


def _path(location: tuple[int | str, ...]) -> str:
    """`messages[0].content`, without pydantic's own words: the tags of unions have a blank in them, for that."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier():
            path += f".{part}" if path else part
    return path


def _json_type(value: object) -> str:
    names: Mapping[type, str] = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
