"""Values of ``parameters`` and of backend options, which are all text (docs/reference/backends.md#common-rules)."""

from __future__ import annotations

import re

from ..errors import InvalidArgumentError

_INTEGER = re.compile(r"\s*[+-]?[0-9]+", re.ASCII)


def parse_bool(value: str) -> bool:
    """True for ``true``, ``on`` and ``1``, False for ``false``, ``off`` and ``0``, in any case.

    Raises:
        InvalidArgumentError: it is none of these.
    """
    lowered = value.lower()
    if lowered in ("true", "on", "1"):
        return True
    if lowered in ("false", "off", "0"):
        return False
    raise InvalidArgumentError(f"failed to convert '{value}' to boolean")


def parse_int(value: str, bits: int = 32) -> int:
    """A decimal integer that fits into `bits` bits, sign included.

    Raises:
        InvalidArgumentError: it is not one.
    """
    if _INTEGER.fullmatch(value):
        number = int(value)
        if -(1 << (bits - 1)) <= number < 1 << (bits - 1):
            return number
    raise InvalidArgumentError(f"failed to convert '{value}' to integral number")
