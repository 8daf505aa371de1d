"""Reading bodies that are JSON."""

from __future__ import annotations

from typing import Any

from ...engine.errors import InvalidArgumentError
from ...engine.tensor import Buffer
from . import json_reader


def parse_json(text: bytes | memoryview, limit_bytes: int) -> Any:
    """The value that `text` holds.

    Raises:
        InvalidArgumentError: it is longer than `limit_bytes` (http.md §4.10).
        InternalError: it is not JSON.
    """
    if len(text) > limit_bytes:
        raise InvalidArgumentError(
            f"request JSON size of {len(text)} bytes exceeds the maximum allowed input size of {limit_bytes} bytes. "
            "Use --http-max-input-size to increase the limit."
        )
    return json_reader.parse(text)


def parse_optional_json(body: Buffer, limit_bytes: int) -> dict[str, Any]:
    """The object that `body` holds; empty for an empty body, or for a value of another type, which has no members.

    Raises:
        InvalidArgumentError: it is longer than `limit_bytes`.
        InternalError: it is not JSON.
    """
    if not body:
        return {}
    value = parse_json(memoryview(body), limit_bytes)
    return value if type(value) is dict else {}
