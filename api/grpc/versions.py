"""Model versions, which gRPC sends as text (grpc.md §2)."""

from __future__ import annotations

import re

from ...engine.errors import InvalidArgumentError
from ...engine.request import LATEST

_NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]+)")
_MIN, _MAX = -(2**63), 2**63 - 1


def read_version(text: str) -> int:
    """The version that `text` names, `LATEST` if it is empty. As in Triton, what follows the number is ignored.

    Raises:
        InvalidArgumentError: no number, one that does not fit into 64 bits, or a negative one.
    """
    if not text:
        return LATEST
    number = _NUMBER.match(text)
    # Compare lengths first: int() refuses texts of thousands of digits.
    if number is None or len(number[1].lstrip("+-0")) > len(str(_MAX)) or not _MIN <= int(number[1]) <= _MAX:
        raise InvalidArgumentError(
            f"failed to get model version from specified version string '{text}' (details: stol), version should be "
            "an integral value > 0"
        )
    version = int(number[1])
    if version < 0:
        raise InvalidArgumentError(
            f"invalid model version specified '{text}' , version should be an integral value > 0"
        )
    return version
