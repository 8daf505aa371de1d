"""Shapes are multiplied at a bounded price, however many dimensions a client names."""

from __future__ import annotations

import math
import sys

from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.tensor_limits import MAX_ELEMENTS, bounded_product

DIMS = st.integers(0, 3) | st.integers(0, 2**64 - 1)


class CountedInt(int):
    """A number that notes how many bits the products it takes part in have."""

    widest = 0

    def __mul__(self, other: int) -> CountedInt:
        product = CountedInt(int(self) * int(other))
        CountedInt.widest = max(CountedInt.widest, product.bit_length())
        return product

    __rmul__ = __mul__


@given(st.lists(DIMS, max_size=200), st.integers(0, MAX_ELEMENTS))
def test_it_is_the_product_up_to_the_bound(dims: list[int], most: int) -> None:
    """Beyond it, one more than the bound; and nothing is empty but what has a dimension of 0."""
    assert bounded_product(dims, most) == min(math.prod(dims), most + 1)


def test_no_dimensions_are_one_element() -> None:
    assert bounded_product(()) == 1


def test_numbers_stay_short_on_the_way() -> None:
    """150,000 dimensions of 2^63 - 1 have a product of a megabyte, which is not multiplied out."""
    CountedInt.widest = 0
    assert bounded_product([CountedInt(MAX_ELEMENTS)] * 150_000) == MAX_ELEMENTS + 1
    assert 0 < CountedInt.widest <= 65 * 64
    assert sys.getsizeof(bounded_product([MAX_ELEMENTS] * 150_000)) < 64
