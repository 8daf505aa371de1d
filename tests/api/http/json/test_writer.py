"""JSON is written byte for byte as Triton writes it (docs/reference/json.md#writing)."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.api.http.json import reader as json_reader
from trireme.api.http.json import writer as json_writer
from trireme.engine import datatypes
from trireme.engine.datatypes import BOOL, BYTES, FP32, FP64, INT64, UINT64, DataType
from trireme.engine.errors import InternalError, InvalidArgumentError
from trireme.engine.tensor import Tensor


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, b"1.0"),
        (-0.0, b"-0.0"),
        (1e16, b"10000000000000000.0"),
        (1e20, b"100000000000000000000.0"),
        (-2.5e17, b"-250000000000000000.0"),
        (1e21, b"1e21"),
        (1e300, b"1e300"),
        (0.1, b"0.1"),
        (1e-5, b"0.00001"),
        (1e-6, b"0.000001"),
        (-1.25e-6, b"-0.00000125"),
        (9.999e-7, b"9.999e-7"),
        (1e-7, b"1e-7"),
        (2.5e-10, b"2.5e-10"),
        (5e-324, b"5e-324"),
        (math.nan, b"NaN"),
        (math.inf, b"Infinity"),
        (-math.inf, b"-Infinity"),
    ],
)
def test_doubles(value: float, text: bytes) -> None:
    assert json_writer.double(value) == text
    assert json_writer.dumps([value, "x"]) == b"[" + text + b',"x"]'
    assert json_writer.tensor_data(Tensor("O", FP64, (2,), array=np.array([value, 1.5]))) == b"[" + text + b",1.5]"


def _by_the_rule(value: float) -> str:
    """The spec's rule put plainly: shortest digits, fixed notation within bounds."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return repr(value)
    if 1e-6 <= abs(value) < 1e21:
        fixed = format(Decimal(repr(value)), "f")
        return fixed if "." in fixed else f"{fixed}.0"
    mantissa, _, exponent = repr(value).partition("e")
    return f"{mantissa}e{int(exponent)}"


_DOUBLES = st.floats() | st.builds(
    lambda digits, power: float(f"{digits}e{power}"), st.integers(-(10**17), 10**17), st.integers(-30, 8)
)


@settings(deadline=None)
@given(st.lists(_DOUBLES, max_size=20))
def test_any_double_follows_the_rule_alone_and_in_a_tensor(values: list[float]) -> None:
    texts = [_by_the_rule(value) for value in values]
    assert [json_writer.double(value).decode() for value in values] == texts
    tensor = Tensor("O", FP64, (len(values),), array=np.array(values, dtype=np.float64))
    assert json_writer.tensor_data(tensor).decode() == f"[{','.join(texts)}]"
    assert json_writer.dumps({"v": values}).decode() == f'{{"v":[{",".join(texts)}]}}'


@settings(deadline=None)
@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_fp32_is_widened_to_double_first(values: list[float]) -> None:
    tensor = Tensor("O", FP32, (1, len(values)), array=np.array([values], dtype=np.float32))
    assert json_writer.tensor_data(tensor).decode() == f"[{','.join(map(_by_the_rule, values))}]"


def test_fp32_tenth() -> None:
    assert json_writer.tensor_data(Tensor("O", FP32, (), array=np.array(0.1, "f4"))) == b"[0.10000000149011612]"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ('a"b\\c/d\x7f', b'"a\\"b\\\\c/d\x7f"'),
        ("\b\f\n\r\t", b'"\\b\\f\\n\\r\\t"'),
        ("\0\x0b\x1f", b'"\\u0000\\u000B\\u001F"'),
        ("é😀", '"é😀"'.encode()),
        ("\udcff\x1a", b'"\xff\\u001A"'),
        (b"\xff\xfe\n", b'"\xff\xfe\\n"'),
    ],
)
def test_strings(text: str | bytes, written: bytes) -> None:
    assert json_writer.string(text) == written
    assert json_writer.dumps({"k": [text]}) == b'{"k":[' + written + b"]}"
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    tensor = Tensor("O", BYTES, (2,), array=np.array([raw, b"x"], dtype=object))
    assert json_writer.tensor_data(tensor) == b"[" + written + b',"x"]'


@settings(deadline=None)
@given(st.lists(st.binary(max_size=5), max_size=5))
def test_bytes_tensors_can_be_read_back(elements: list[bytes]) -> None:
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    text = json_writer.tensor_data(Tensor("O", BYTES, (len(elements),), array=array))
    assert [value.encode("utf-8", "surrogateescape") for value in json_reader.parse(text)] == elements


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(blacklist_categories=["Cs"]), max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(_JSON)
def test_plain_documents_mean_the_same_to_every_reader(value: Any) -> None:
    text = json_writer.dumps(value)
    assert json.loads(text) == value


_EXACT = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
).filter(lambda value: "\\ud" not in json.dumps(value))


@settings(deadline=None)
@given(_EXACT)
def test_the_reader_reads_what_the_writer_wrote(value: Any) -> None:
    assert json_reader.parse(json_writer.dumps(value)) == value


def test_members_stand_in_the_order_given() -> None:
    assert json_writer.dumps({"b": 1, "a": (None, True, b"\xff")}) == b'{"b":1,"a":[null,true,"\xff"]}'


def test_integers_of_any_size() -> None:
    assert json_writer.dumps([2**64 - 1, -(2**63), 2**70]) == b"[18446744073709551615,-9223372036854775808,%d]" % 2**70


def test_what_is_no_json_is_a_programming_error() -> None:
    with pytest.raises(TypeError, match="cannot write a object as JSON"):
        json_writer.dumps({"a": object()})


@pytest.mark.parametrize(
    ("datatype", "values", "text"),
    [
        (BOOL, [[True], [False]], b"[true,false]"),
        (INT64, [[-(2**63)], [2**63 - 1]], b"[-9223372036854775808,9223372036854775807]"),
        (UINT64, [[2**64 - 1], [0]], b"[18446744073709551615,0]"),
        *[
            (datatypes.BY_NAME[name], [[1], [100]], b"[1,100]")
            for name in ("UINT8", "UINT16", "UINT32", "INT8", "INT32")
        ],
        (FP32, [[1], [100]], b"[1.0,100.0]"),
    ],
)
def test_tensors_are_written_flat(datatype: DataType, values: list[Any], text: bytes) -> None:
    array = np.array(values, dtype=datatype.storage)
    assert json_writer.tensor_data(Tensor("O", datatype, (2, 1), array=array)) == text
    assert json_writer.tensor_data(Tensor("O", datatype, (2, 1), buffer=array.tobytes())) == text
    strided = np.repeat(array, 3, axis=1)[:, ::3]
    assert json_writer.tensor_data(Tensor("O", datatype, (2, 1), array=strided)) == text


@pytest.mark.parametrize("datatype", [FP32, INT64, BOOL, BYTES])
def test_an_empty_tensor_is_an_empty_array(datatype: DataType) -> None:
    assert json_writer.tensor_data(Tensor("O", datatype, (0, 2), buffer=b"")) == b"[]"


@pytest.mark.parametrize("datatype", [datatypes.FP16, datatypes.BF16])
def test_half_floats_are_refused(datatype: DataType) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        json_writer.tensor_data(Tensor("O", datatype, (0,), buffer=b""))
    assert caught.value.message == (
        f"sending {datatype.name} data via JSON is not supported. Please use the binary data format for output"
    )


@pytest.mark.parametrize("datatype", [FP32, BYTES])
def test_data_that_does_not_fit_its_shape_is_an_internal_error(datatype: DataType) -> None:
    with pytest.raises(InternalError, match=r"^output tensor shape does not match size of output for 'O'$"):
        json_writer.tensor_data(Tensor("O", datatype, (3,), buffer=b"\0\0\0\0"))
