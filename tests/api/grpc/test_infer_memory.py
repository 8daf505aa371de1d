"""What reading typed contents takes: with the message, at most four times the message, or the tensors it becomes."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest
from triton_messages import MESSAGES as PB

from trireme.api.grpc.infer_request import read_inputs, scan_infer_request, unpack_infer_request
from trireme.engine.datatypes import BOOL, BY_NAME
from trireme.engine.memory.regions import Regions
from trireme.engine.tensor_limits import TensorLimits

ELEMENTS = 1 << 17
LIMITS = TensorLimits(max_elements=ELEMENTS)
PIECE_BYTES = 4_096
WORKING_BYTES = 64 * PIECE_BYTES
"""What a piece may take while it is read, however large the message is."""


def message(datatype: str, contents: bytes) -> bytes:
    """Contents as they stand in the message."""
    tensor = PB.ModelInferRequest.InferInputTensor(name="IN", datatype=datatype, shape=[ELEMENTS]).SerializeToString()
    tensor += b"\x2a" + varint(len(contents)) + contents
    return b"\x0a\x01m\x2a" + varint(len(tensor)) + tensor


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes((number,))


def packed(field: int, element: bytes) -> bytes:
    numbers = element * ELEMENTS
    return bytes((field << 3 | 2,)) + varint(len(numbers)) + numbers


KINDS = {
    "bools": ("BOOL", packed(1, b"\1")),
    "bytes": ("INT8", packed(2, b"\1")),
    "short": ("INT16", packed(2, b"\1")),
    "ints": ("INT32", packed(2, b"\1")),
    "longs": ("INT64", packed(3, b"\1")),
    "large numbers": ("UINT64", packed(5, b"\xff" * 9 + b"\1")),
    "bytes, one by one": ("UINT8", b"\x20\1" * ELEMENTS),
    "bools, one by one": ("BOOL", b"\x08\1" * ELEMENTS),
    "floats": ("FP32", packed(6, bytes(4))),
    "floats, one by one": ("FP32", (b"\x35" + bytes(4)) * ELEMENTS),
    "empty strings": ("BYTES", b"\x42\0" * ELEMENTS),
    "short strings": ("BYTES", b"\x42\1a" * ELEMENTS),
    "strings": ("BYTES", b"\x42\x64" * 1 + bytes(100) + (b"\x42\x64" + bytes(100)) * (ELEMENTS // 50)),
    "numbers of another type": ("FP64", packed(5, b"\1")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_reading_takes_no_more_than_four_times_what_is_read(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trireme.api.grpc.infer_messages._PIECE_BYTES", PIECE_BYTES)
    datatype, contents = KINDS[kind]
    text = message(datatype, contents)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        wire = scan_infer_request(text, LIMITS)
        unpacked = wire.unpacked_bytes()
        unpack_infer_request(wire)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    tensor = wire.inputs[0].prepared
    made = 0 if isinstance(tensor, Exception) or tensor is None else len(tensor)
    assert peak + len(text) <= 4 * max(len(text), made)
    assert peak <= 3 * len(text) + unpacked + WORKING_BYTES, "what is charged, and what a piece takes"


@pytest.mark.parametrize("datatype", ["BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"])
@pytest.mark.parametrize("count", [3, 100_000])
def test_numbers_become_as_wide_as_their_datatype(datatype: str, count: int) -> None:
    """Higher bits are dropped, in one piece or in several; of a bool, any bit counts."""
    numbers = [0, 1, 2**31, 255, 256, 2**17][: count % 7 or 6] * (count // 6 + 1)
    field = {"BOOL": 1, "INT64": 3, "UINT64": 5}.get(datatype, 2 if datatype.startswith("INT") else 4)
    numbers = [min(each, 2**31 - 1) if field == 2 else each for each in numbers]
    payload = b"".join(map(varint, numbers))
    wire = scan_infer_request(message(datatype, bytes((field << 3 | 2,)) + varint(len(payload)) + payload), LIMITS)
    unpack_infer_request(wire)
    (tensor,) = read_inputs(wire, Regions())
    kind = BY_NAME[datatype]
    expected = np.array(numbers, np.uint64)
    expected = expected != 0 if kind is BOOL else expected.astype(f"<u{kind.size}")
    assert bytes(tensor.buffer) == expected.tobytes()
