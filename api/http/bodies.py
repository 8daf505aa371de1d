"""Reading bodies that are JSON."""

from __future__ import annotations

from typing import Any

from ...engine.errors import InvalidArgumentError
from . import json_reader


def parse_json(text: bytes | memoryview, limit_bytes: int) -> Any:
    """The value that `text` holds.

    Raises:
        InvalidArgumentError: it is longer than `limit_bytes` (http.md §4.10).
        InternalError: it is not JSON.
    """
    refuse_long(len(text), limit_bytes)
    return json_reader.parse(text)


def refuse_long(nbytes: int, limit_bytes: int) -> None:
    """Check the length of a JSON text (http.md §4.10).

    Raises:
        InvalidArgumentError: it is longer than `limit_bytes`.
    """
    if nbytes > limit_bytes:
        raise InvalidArgumentError(
            f"request JSON size of {nbytes} bytes exceeds the maximum allowed input size of {limit_bytes} bytes. "
            "Use --http-max-input-size to increase the limit."
        )
