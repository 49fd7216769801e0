"""From bytes to a typed, checked body: the one place where JSON is read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request

from homeai.errors import InvalidRequest, Unsupported

B = TypeVar("B", bound="Body")

SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Body(BaseModel):
    """Null means absent; unknown fields are ignored; NaN and Infinity are refused."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


async def read_body(request: Request, model: type[B]) -> B:
    """Raises `InvalidRequest` naming the field, `BodyTooLarge` while reading."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise Unsupported(f"content-encoding {encoding!r} is not supported: send the body as it is")
    return parse_body(await request.body(), model)


def parse_body(raw: bytes, model: type[B]) -> B:
    try:
        data = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise InvalidRequest("the request body is not UTF-8") from None
    except RecursionError:
        raise InvalidRequest("the request body is nested too deeply") from None
    except ValueError as error:
        raise InvalidRequest(f"the request body is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise InvalidRequest(f"the request body must be a JSON object, not {_json_type(data)}")
    if SURROGATE.search(raw):
        data = _without_lone_surrogates(data)
    try:
        return model.model_validate({key: value for key, value in data.items() if value is not None})
    except ValidationError as error:
        raise _explain(error) from None
    except RecursionError:
        raise InvalidRequest("the request body is nested too deeply") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _without_lone_surrogates(value: object) -> object:
    """Half of an emoji becomes U+FFFD: a conversation that carries one must still go on."""
    text = json.dumps(value, ensure_ascii=False)
    return json.loads(text.encode("utf-8", "surrogatepass").decode("utf-8", "replace"))


def _explain(error: ValidationError) -> InvalidRequest:
    first = error.errors(include_url=False, include_context=False)[0]
    param = _path(first["loc"])
    text = first["msg"]
    return InvalidRequest(f"{param}: {text[:1].lower()}{text[1:]}" if param else text, param=param or None)


def _path(location: tuple[int | str, ...]) -> str:
    """`messages[0].content`, without the names that pydantic gives to the members of a union."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in UNION_MEMBERS:
            path += f".{part}" if path else part
    return path


UNION_MEMBERS = frozenset({"str", "int", "float", "bool", "list", "dict"})


def _json_type(value: object) -> str:
    names: Mapping[type, str] = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
