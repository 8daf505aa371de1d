"""The version strings of requests (docs/reference/grpc.md#versions)."""

from __future__ import annotations

import re

from ...engine.errors import InvalidArgumentError
from ...engine.request import LATEST

_INTEGER = re.compile(r"[ \t\n\v\f\r]*([+-]?)0*([0-9]+)")
_INT64_MAX = 2**63 - 1
_DIGITS = 19


def parse_version(text: str) -> int:
    """The version that a client asks for; `LATEST` if the text is empty. What follows the number is ignored.

    Raises:
        InvalidArgumentError: it is no number of 64 bits, or a negative one.
    """
    if not text:
        return LATEST
    number = _INTEGER.match(text)
    version = _INT64_MAX + 2
    if number is not None and len(number[2]) <= _DIGITS:
        version = int(number[1] + number[2])
    if not -_INT64_MAX - 1 <= version <= _INT64_MAX:
        raise InvalidArgumentError(
            f"failed to get model version from specified version string '{text}' (details: stol), "
            "version should be an integral value > 0"
        )
    if version < 0:
        raise InvalidArgumentError(
            f"invalid model version specified '{text}' , version should be an integral value > 0"  # sic: Triton
        )
    return version
