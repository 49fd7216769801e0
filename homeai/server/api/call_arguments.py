"""The arguments of a call that an assistant made earlier, as clients send them back: an object, or its JSON text."""

from __future__ import annotations

import json
from typing import NoReturn

from homeai.errors import InvalidRequest
from homeai.server.api.body import LONE_SURROGATE


def read_arguments(value: object, path: str) -> dict[str, object]:
    """Nothing, or an empty text, is a call without arguments. Raises `InvalidRequest` naming `path`."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    decoded = _decode(value, path) if isinstance(value, str) else value
    if decoded is None:
        return {}
    if not isinstance(decoded, dict):
        raise InvalidRequest(f"{path}: a call's arguments are a JSON object, not {value!r:.80}", param=path)
    return decoded


def _decode(text: str, path: str) -> object:
    try:
        decoded: object = json.loads(text, parse_constant=_no_number)
        if "\\u" in text:  # half an emoji, hidden in a string in a string
            decoded = json.loads(LONE_SURROGATE.sub("\ufffd", json.dumps(decoded, ensure_ascii=False)))
    except RecursionError:
        raise InvalidRequest(f"{path}: nested too deeply", param=path) from None
    except ValueError as error:
        raise InvalidRequest(f"{path}: not valid JSON: {error}", param=path) from None
    return decoded


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number there")
