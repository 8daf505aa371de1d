"""When a shadow's answers agree with a target's (`engine.routing.answers`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from trireme.engine.datatypes import BF16, BOOL, BYTES, DATATYPES, FP16, FP32, FP64, INT64, UINT8, UINT64, DataType
from trireme.engine.errors import InternalError, InvalidArgumentError
from trireme.engine.job import Outcome
from trireme.engine.request import InferenceResponse
from trireme.engine.routing.answers import Agreement, AnswersCompared, compare_answers
from trireme.engine.tensor import Tensor, pack_bytes

TOLERANCE = 1e-3


def tensor(values: Sequence[Any] | np.ndarray, datatype: DataType = FP32, name: str = "OUT") -> Tensor:
    array = np.array(values, datatype.storage)
    return Tensor(name, datatype, array.shape, array=array)


def response(*outputs: Tensor, model: str = "digits") -> InferenceResponse:
    return InferenceResponse(model, 1, "", list(outputs))


def compared(usual: Tensor, other: Tensor, tolerance: float = TOLERANCE) -> AnswersCompared:
    return compare_answers([response(usual)], [response(other, model="shadow")], tolerance)


def of(result: AnswersCompared) -> tuple[Agreement, str]:
    return result.agreement, result.why


SHAPES = npst.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    datatype = draw(st.sampled_from(DATATYPES))
    if datatype is BYTES:
        elements = draw(st.lists(st.binary(max_size=5), max_size=8))
        flat = np.empty(len(elements), object)
        flat[:] = elements
        return Tensor("OUT", BYTES, flat.shape, array=flat)
    return tensor(draw(npst.arrays(datatype.storage, SHAPES)), datatype)


def from_wire(usual: Tensor) -> Tensor:
    return Tensor(usual.name, usual.datatype, usual.shape, bytes(usual.buffer))


@given(tensors(), st.booleans(), st.booleans())
def test_an_answer_agrees_with_itself_in_either_form(usual: Tensor, mine: bool, its: bool) -> None:
    other = Tensor(usual.name, usual.datatype, usual.shape, array=usual.array.copy())
    result = compared(from_wire(usual) if mine else usual, from_wire(other) if its else other, 0.0)
    assert (result.agreement, result.why, result.greatest) == (Agreement.AGREES, "", 0.0)


FLOATS = st.floats(width=32) | st.sampled_from([0.0, 1.0, 1.0009, 1.0011, float("nan"), float("inf"), -float("inf")])


@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=20))
def test_floats_agree_as_numpy_has_it(pairs: list[tuple[float, float]]) -> None:
    theirs, its = (np.array(each, np.float32) for each in zip(*pairs, strict=True))
    wide, other = theirs.astype(np.float64), its.astype(np.float64)
    wrong = ~np.isclose(other, wide, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
    result = compared(tensor(theirs), tensor(its))
    assert (result.agreement is Agreement.DIFFERS) == wrong.any()
    if wrong.any():
        first = int(np.argmax(wrong))
        assert f"{np.count_nonzero(wrong)} other values of {len(pairs)}, the first at [{first}]" in result.why
    with np.errstate(all="ignore"):
        apart = np.abs(wide - other)
    assert result.greatest == max(apart[np.isfinite(apart)], default=0.0)


@pytest.mark.parametrize(
    ("datatype", "usual", "other", "greatest"),
    [
        (INT64, 100_000, 100_001, 1.0),
        (INT64, -(2**63), 2**63 - 1, float(2**64 - 1)),
        (UINT64, 2**64 - 1, 2**64 - 2, 1.0),
        (UINT8, 255, 0, 255.0),
        (BOOL, True, False, 1.0),
        (FP16, 1.0, 1.5, 0.5),
        (FP64, 1.0, 1.1, pytest.approx(0.1)),
        (BF16, 0x3F80, 0x4000, 1.0),
    ],
)
def test_the_greatest_difference_is_told(datatype: DataType, usual: Any, other: Any, greatest: float) -> None:
    result = compared(tensor([usual, usual], datatype), tensor([usual, other], datatype), 1e-4)
    assert of(result) == (
        Agreement.DIFFERS,
        f"output 'OUT' has 1 other values of 2, the first at [1]; the greatest difference is {result.greatest:.6g}",
    )
    assert result.greatest == greatest


def test_a_number_and_none_differ() -> None:
    result = compared(tensor([[1.0, np.nan]]), tensor([[1.0, 2.0]]))
    assert (result.agreement, result.greatest) == (Agreement.DIFFERS, 0.0)
    assert "the first at [0, 1]" in result.why


def test_what_is_far_into_a_large_output_is_found_and_others_get_their_turn() -> None:
    usual, other = np.zeros((3, 70_000), np.float32), np.zeros((3, 70_000), np.float32)
    other[2, 69_999], other[1, 5] = 2.0, 4.0
    turns: list[None] = []
    outputs = [response(tensor(usual))], [response(tensor(other))]
    result = compare_answers(*outputs, TOLERANCE, lambda: turns.append(None))
    assert "2 other values of 210000, the first at [1, 5]; the greatest difference is 4" in result.why
    assert len(turns) == 4


TEXTS = [b"zero", b"", b"\xff two"]


@pytest.mark.parametrize("wire", [False, True])
def test_texts_agree_if_they_are_the_same(wire: bool) -> None:
    usual = Tensor("OUT", BYTES, (3, 1), pack_bytes(TEXTS))
    packed = pack_bytes([b"zero", b"", b"two"])
    other = Tensor("OUT", BYTES, (3, 1), packed) if wire else tensor([[b"zero"], [b""], [b"two"]], BYTES)
    assert of(compared(usual, other)) == (Agreement.DIFFERS, "output 'OUT' has another value at [2, 0]")


def test_what_cannot_be_read_differs() -> None:
    broken = Tensor("OUT", BYTES, (3, 1), pack_bytes(TEXTS)[:-1])
    assert "output 'OUT' cannot be read" in compared(Tensor("OUT", BYTES, (3, 1), pack_bytes(TEXTS)), broken).why
    short = Tensor("OUT", FP32, (2,), b"\0" * 4)
    assert "output 'OUT' cannot be read" in compared(tensor([0.0, 0.0]), short).why


INVALID, BROKEN = InvalidArgumentError("no such digit"), InternalError("out of memory")
ONE = response(tensor([1.0]))


@pytest.mark.parametrize(
    ("usual", "other", "expected"),
    [
        ([ONE], [response(tensor([1.0], name="OTHER"))], (Agreement.DIFFERS, "output 'OTHER', which is not expected")),
        ([ONE], [response()], (Agreement.DIFFERS, "no output 'OUT'")),
        (
            [ONE],
            [response(tensor([1.0], FP64))],
            (Agreement.DIFFERS, "output 'OUT' has datatype FP64, expected FP32"),
        ),
        ([ONE], [response(tensor([[1.0]]))], (Agreement.DIFFERS, "output 'OUT' has shape [1, 1], expected [1]")),
        ([ONE, None], [ONE], (Agreement.AGREES, "")),
        ([ONE, ONE], [ONE, None], (Agreement.DIFFERS, "1 responses, expected 2")),
        ([None], [], (Agreement.AGREES, "")),
        ([None], [ONE], (Agreement.DIFFERS, "1 responses, expected 0")),
        (
            [ONE, ONE],
            [ONE, response(tensor([2.0]))],
            (
                Agreement.DIFFERS,
                "output 'OUT' of response 1 has 1 other values of 1, the first at [0]; the greatest difference is 1",
            ),
        ),
        ([ONE], [BROKEN], (Agreement.FAILED, "an error, expected an answer: out of memory")),
        ([ONE, ONE], [ONE, BROKEN], (Agreement.FAILED, "an error, expected an answer: out of memory")),
        ([INVALID], [ONE], (Agreement.DIFFERS, "an answer, expected an error: no such digit")),
        ([INVALID], [InvalidArgumentError("another text")], (Agreement.AGREES, "")),
        (
            [INVALID],
            [BROKEN],
            (Agreement.DIFFERS, "an error of kind 'Internal', expected 'Invalid argument': out of memory"),
        ),
    ],
)
def test_what_differs_is_named(usual: list[Outcome], other: list[Outcome], expected: tuple[Agreement, str]) -> None:
    assert of(compare_answers(usual, other, TOLERANCE)) == expected


@pytest.mark.parametrize("order", [list, reversed])
def test_the_order_of_outputs_does_not_matter(order: Callable[[Any], Any]) -> None:
    outputs = [tensor([1.0], name="A"), tensor([2.0], name="B")]
    result = compare_answers([response(*outputs)], [response(*order(outputs))], 0.0)
    assert result.agreement is Agreement.AGREES
