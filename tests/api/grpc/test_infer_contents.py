"""Where the data of inputs is, and how typed contents become tensors (docs/reference/grpc.md#input-tensors)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from grpc_requests import Request, an_input, decode, refusal

from trireme.engine.datatypes import BY_NAME, INVALID
from trireme.engine.errors import InvalidArgumentError
from trireme.engine.tensor import pack_bytes

FIELDS = {
    "bool_contents": ("BOOL", [True]),
    "int_contents": ("INT32", [300]),
    "int64_contents": ("INT64", [3]),
    "uint_contents": ("UINT32", [300]),
    "uint64_contents": ("UINT64", [3]),
    "fp32_contents": ("FP32", [1.5]),
    "fp64_contents": ("FP64", [1.5]),
    "bytes_contents": ("BYTES", [b"ab"]),
}
"""In the order in which Triton looks at them, with the name that it has for their type."""

FIELD_OF = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
UNEXPECTED = "unexpected explicit tensor data for input tensor 'IN' for model 'm'"


def request(*inputs: Any, raw: list[bytes] | None = None) -> Any:
    return Request(model_name="m", inputs=inputs, raw_input_contents=raw)


def one(datatype: str, **fields: Any) -> Any:
    count = max(map(len, fields.values()))
    return request(an_input(datatype=datatype, shape=[count], **fields))


@pytest.mark.parametrize(
    ("datatype", "values", "expected"),
    [
        ("BOOL", [True, False, True], b"\x01\x00\x01"),
        ("INT8", [300, -1, -129, 2**31 - 1], b"\x2c\xff\x7f\xff"),
        ("INT16", [300, -1, 65536 + 7, -(2**31)], b"\x2c\x01\xff\xff\x07\x00\x00\x00"),
        ("INT32", [300, -1, -(2**31)], np.array([300, -1, -(2**31)], "<i4").tobytes()),
        ("INT64", [300, -1, -(2**63), 2**63 - 1], np.array([300, -1, -(2**63), 2**63 - 1], "<i8").tobytes()),
        ("UINT8", [300, 255, 2**32 - 1], b"\x2c\xff\xff"),
        ("UINT16", [65535, 65536, 2**32 - 1], b"\xff\xff\x00\x00\xff\xff"),
        ("UINT32", [300, 2**32 - 1], np.array([300, 2**32 - 1], "<u4").tobytes()),
        ("UINT64", [300, 2**64 - 1], np.array([300, 2**64 - 1], "<u8").tobytes()),
        ("FP32", [1.5, float("inf"), -0.0], np.array([1.5, np.inf, -0.0], "<f4").tobytes()),
        ("FP64", [1.5, 1e300, -0.0], np.array([1.5, 1e300, -0.0], "<f8").tobytes()),
        ("BYTES", [b"a", b"", b"\xff" * 200], pack_bytes([b"a", b"", b"\xff" * 200])),
    ],
)
def test_contents_become_what_would_be_sent_raw(datatype: str, values: list[Any], expected: bytes) -> None:
    (tensor,) = decode(one(datatype, **{FIELD_OF[datatype]: values})).request.inputs
    assert bytes(tensor.buffer) == expected
    assert (tensor.name, tensor.datatype, tensor.shape) == ("IN", BY_NAME[datatype], (len(values),))
    assert tensor.array.shape == (len(values),)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("datatype", [*BY_NAME, "nonsense", ""])
def test_one_field_fits_a_datatype(datatype: str, field: str) -> None:
    given = one(datatype, **{field: FIELDS[field][1]})
    if FIELD_OF.get(datatype) == field:
        assert decode(given).request.inputs[0].nbytes
        return
    error = refusal(given)
    assert isinstance(error, InvalidArgumentError)
    shown = BY_NAME.get(datatype, INVALID).name
    assert error.message == f"{UNEXPECTED} of type '{FIELDS[field][0]}', expected datatype '{shown}'"


@pytest.mark.parametrize("second", FIELDS)
@pytest.mark.parametrize("first", FIELDS)
def test_two_fields_are_one_too_many(first: str, second: str) -> None:
    """The first in Triton's order that is wrong is named, or the one behind the right one."""
    if first == second:
        return
    error = refusal(one("INT32", **{first: FIELDS[first][1], second: FIELDS[second][1]}))
    earlier = min(first, second, key=list(FIELDS).index)
    if earlier == "int_contents":
        assert error.message == f"{UNEXPECTED}, binary data was already supplied."
    else:
        assert error.message == f"{UNEXPECTED} of type '{FIELDS[earlier][0]}', expected datatype 'INT32'"


def test_contents_without_elements_are_no_bytes() -> None:
    given = an_input(shape=[0])
    given.contents.SetInParent()
    assert bytes(decode(request(given)).request.inputs[0].buffer) == b""


def test_raw_contents_are_given_out_in_order() -> None:
    """Surplus ones are ignored, also by a request without inputs."""
    tensors = decode(request(an_input("A"), an_input("B"), raw=[b"1111", b"2222", b"3333"])).request.inputs
    assert [(tensor.name, bytes(tensor.buffer)) for tensor in tensors] == [("A", b"1111"), ("B", b"2222")]
    assert decode(request(raw=[b"1"])).request.inputs == []


def test_datatypes_without_a_field_come_raw() -> None:
    tensors = decode(request(an_input("A", "FP16"), an_input("B", "BF16"), raw=[b"11", b"22"])).request.inputs
    assert [tensor.datatype.name for tensor in tensors] == ["FP16", "BF16"]


def test_no_data() -> None:
    error = refusal(request(an_input("A"), an_input("B"), raw=[b"1111"]))
    assert isinstance(error, InvalidArgumentError)
    assert error.message == "unable to find data for input tensor 'B' for model 'm' in request."


def test_contents_and_raw_contents() -> None:
    """Any raw contents rule out typed ones, whichever input has them, even without elements."""
    given = an_input("B")
    given.contents.SetInParent()
    for other in (given, an_input("B", int_contents=[1])):
        assert refusal(request(an_input("A"), other, raw=[b"1111", b"2222"])).message == (
            "contents field must not be specified when using raw_input_contents for 'B' for model 'm'"
        )


def test_unknown_datatypes_are_left_to_validation() -> None:
    (tensor,) = decode(request(an_input(datatype="FP31", shape=[-1, 2]), raw=[b""])).request.inputs
    assert (tensor.datatype, tensor.shape) == (INVALID, (-1, 2))
