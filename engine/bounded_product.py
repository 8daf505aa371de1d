"""How many elements a shape has, at a bounded price.

A shape comes from a client, or from a configuration that came with a request. Multiplied out, 150,000 dimensions of
2^63 - 1 are a number of a megabyte, which takes minutes; so products stop growing where no array can be any larger.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

MAX_ELEMENTS = 2**63 - 1
"""Most elements that a tensor can have: shapes are counted in signed 64-bit numbers, as Triton does."""

_AT_ONCE = 64
"""Dimensions that are multiplied at once: a few thousand bits at most."""


def bounded_product(dims: Sequence[int], most: int = MAX_ELEMENTS) -> int:
    """The product of the dimensions; `most` + 1 where it is greater.

    Args:
        dims: none of them negative, each of at most 64 bits; any number of them.

    Returns:
        From 0 to `most` + 1; 1 for no dimensions.
    """
    if len(dims) <= _AT_ONCE:
        count = math.prod(dims)
        return count if count <= most else most + 1
    count = 1
    for start in range(0, len(dims), _AT_ONCE):
        count = min(count * math.prod(dims[start : start + _AT_ONCE]), most + 1)
    return count
