"""Arguments of user code, as Triton takes them: a str or UTF-8 bytes, whatever is an int, a TypeError for all else.

What is wrong is told here, to the line that gives it, and not later, when it is sent.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

INT64 = (-(1 << 63), (1 << 63) - 1)
"""Lowest and highest value."""
UINT32 = (0, (1 << 32) - 1)
UINT64 = (0, (1 << 64) - 1)


def text(what: str, value: Any) -> str:
    """`value` as a str.

    Raises:
        TypeError: it is neither str nor bytes.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode()
    raise TypeError(f"{what} must be a str, found type {type(value)}")


def whole(what: str, value: Any, limits: tuple[int, int]) -> int:
    """`value` as an int.

    Raises:
        TypeError: it is none, as a float is, or not within the limits.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an int, found type {type(value)}") from None
    if not limits[0] <= number <= limits[1]:
        raise TypeError(f"{what} must be from {limits[0]} to {limits[1]}, got {number}")
    return number


def items(what: str, value: Any) -> list[Any]:
    """The elements of a list, or of anything like it.

    Raises:
        TypeError: it is a str, or has no elements.
    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise TypeError(f"{what} must be a list, found type {type(value)}")
    return list(value)
