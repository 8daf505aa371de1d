"""Reading JSON in Triton's dialect (docs/reference/json.md#reading): documents, values by type, and tensors
(`json_tensor`).

orjson reads; its answer is taken when it can only be Triton's:

* What orjson refuses (NaN, byte order marks, bytes that are no UTF-8, syntax errors) is read again by `json_strict`.
* orjson keeps the last of duplicate members, Triton the first. Every member has one colon outside strings, so a
  document with as many colons as members found has no duplicates. Colons within strings can spoil that count, never
  feign it; then those that follow a quotation mark are counted; if that fails too, the document is read again.

Values are plain Python ones. A string that held bytes that are no UTF-8 has them as ``surrogateescape`` characters.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from .json_pieces import count_members
from .json_strict import parse_strictly
from .json_tensor import tensor_from_json
from .json_values import as_array, as_bool, as_double, as_object, as_signed, as_string, as_unsigned, member, members

__all__ = [
    "as_array",
    "as_bool",
    "as_double",
    "as_object",
    "as_signed",
    "as_string",
    "as_unsigned",
    "member",
    "members",
    "parse",
    "tensor_from_json",
]

_MEMBER_COLON = re.compile(rb'"[ \t\r\n]*:')


def parse(body: bytes | memoryview) -> Any:
    """The value of a JSON document.

    Raises:
        InternalError: ``failed to parse the request JSON buffer: <reason> at <byte offset>``.
        InvalidArgumentError: it is nested too deeply to be read.
    """
    if not isinstance(body, bytes):
        body = bytes(body)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return parse_strictly(body)
    members = count_members(value)
    if members == body.count(b":") or members == sum(1 for _ in _MEMBER_COLON.finditer(body)):
        return value
    return parse_strictly(body)
