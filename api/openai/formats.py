"""What an answer has to be: OpenAI's `response_format`, and vLLM's members for the same (docs/openai.md#formats).

Either becomes vLLM's object for that, as a text, which is what models with the tensors of its backend are given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import FieldError
from .fields import BodyFields, wrong_type

_FORMAT = "response_format"
_TYPES = ("text", "json_object", "json_schema")
STRUCTURED = "structured_outputs"
"""The member, and what errors of models about it are about."""
_EARLIER: Mapping[str, str] = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
"""vLLM's names before `STRUCTURED`, and the members of that that they stand for."""


@dataclass(frozen=True, slots=True)
class AskedFormat:
    """What an answer has to be.

    Attributes:
        param: the member that says so.
        text: vLLM's object, as JSON.
    """

    param: str
    text: str


def read_format(fields: BodyFields) -> AskedFormat | None:
    """What a request says of it; None for any text. FieldError for what is none."""
    earlier = [_read_earlier(fields, name) for name in _EARLIER]
    found = [_read_response_format(fields), _read_structured(fields), *earlier]
    given = [each for each in found if each is not None]
    if len(given) > 1:
        raise FieldError(given[1].param, f"'{given[0].param}' and '{given[1].param}' are given, expected one of them.")
    return given[0] if given else None


def _read_response_format(fields: BodyFields) -> AskedFormat | None:
    form = fields.fields(_FORMAT)
    if form is None:
        return None
    kind = form.required("type")
    if kind not in _TYPES:
        param, expected = form.param("type"), ", ".join(f"'{each}'" for each in _TYPES)
        raise FieldError(param, f"Invalid '{param}': expected one of {expected}, but got {kind!r}.")
    if kind == "text":
        return None
    schema = None
    if kind == "json_schema":
        described = form.fields("json_schema")
        if described is None:
            form.required("json_schema")
        else:
            described.required("name")
            described.text("name")
            described.flag("strict")
            schema = described.get("schema")
            if schema is not None and not isinstance(schema, dict):
                raise wrong_type(described.param("schema"), "an object", schema)
    return _asked(_FORMAT, {"json_object": True} if schema is None else {"json": schema})


def _read_structured(fields: BodyFields) -> AskedFormat | None:
    value = fields.get(STRUCTURED)
    if value is None:
        return None
    if not isinstance(value, dict):
        raise wrong_type(STRUCTURED, "an object", value)
    return _asked(STRUCTURED, value)


def _read_earlier(fields: BodyFields, name: str) -> AskedFormat | None:
    value = fields.get(name)
    return None if value is None else _asked(name, {_EARLIER[name]: value})


def _asked(param: str, value: Mapping[str, Any]) -> AskedFormat:
    return AskedFormat(param, json.dumps(value))
