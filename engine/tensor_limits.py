"""What a client's tensors may be like, whichever protocol they come by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .errors import InvalidArgumentError

MAX_RANK = 64
"""Most dimensions that a NumPy array can have."""


class LimitError(InvalidArgumentError):
    """An input is more than may be read; nothing else about its request is worth finding out."""


@dataclass(frozen=True, slots=True)
class TensorLimits:
    """Bounds of one input.

    Attributes:
        max_rank: ``--max-tensor-rank``: most dimensions, the batch dimension included; at most `MAX_RANK`.
        max_elements: ``--max-tensor-elements``: most elements of a BYTES tensor, each of which becomes an object of
            its own. Numbers are bounded by their bytes.
    """

    max_rank: int = MAX_RANK
    max_elements: int = 1 << 20

    def check_rank(self, name: str, rank: int) -> None:
        """Refuse a shape of too many dimensions, before anything is done with it.

        Raises:
            LimitError: input `name` has more than there may be.
        """
        if rank > self.max_rank:
            raise LimitError(
                f"invalid shape for input '{name}': it has {rank} dimensions, expected at most {self.max_rank}, which "
                "--max-tensor-rank sets"
            )

    def check_elements(self, name: str, count: int) -> None:
        """Refuse a BYTES tensor of too many elements.

        Raises:
            LimitError: input `name` has more than there may be.
        """
        if count > self.max_elements:
            raise LimitError(
                f"input '{name}' has more than {self.max_elements} elements of type BYTES, which is the most that a "
                "tensor may have; --max-tensor-elements sets it"
            )


DEFAULT_LIMITS = TensorLimits()


# How many elements a shape has, at a bounded price.
#
# A shape comes from a client, or from a configuration that came with a request. Multiplied out, 150,000 dimensions of
# 2^63 - 1 are a number of a megabyte, which takes minutes; so products stop growing where no array can be any larger.


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
