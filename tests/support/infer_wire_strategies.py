"""Random infer requests for hypothesis, as protobuf messages and as bytes, and what protobuf reads in them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from hypothesis import strategies as st
from triton_messages import CONFIG_FILE
from triton_messages import MESSAGES as PB

from trireme.api.grpc.infer_messages import NUMBERS, UnsignedInt, WireRequest, unpack_varints
from trireme.api.grpc.wire import VARINT
from trireme.engine.tensor import iter_bytes
from trireme.proto.descriptors import message_classes

Request = PB.ModelInferRequest
CONTENTS = {
    1: ("bool_contents", "<u8"),
    2: ("int_contents", "<i4"),
    3: ("int64_contents", "<i8"),
    4: ("uint_contents", "<u4"),
    5: ("uint64_contents", "<u8"),
    6: ("fp32_contents", "<f4"),
    7: ("fp64_contents", "<f8"),
}

int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
uint32s = st.integers(0, 2**32 - 1)
uint64s = st.integers(0, 2**64 - 1)
texts = st.text(max_size=5)


def varint(number: int, octets: int = 1) -> bytes:
    """An unsigned number, in more bytes than it needs if `octets` says so."""
    out = bytearray()
    while number > 0x7F or octets > 1:
        out.append(number & 0x7F | 0x80)
        number >>= 7
        octets -= 1
    out.append(number)
    return bytes(out)


# As protobuf messages.


@st.composite
def parameters(draw: st.DrawFn) -> dict[str, Any]:
    choices = {
        "bool_param": st.booleans(),
        "int64_param": int64s,
        "string_param": texts,
        "double_param": st.floats(),
        "uint64_param": uint64s,
    }
    choice = st.sampled_from([*choices, None]).flatmap(
        lambda name: st.just({}) if name is None else st.fixed_dictionaries({name: choices[name]})
    )
    entries = draw(st.dictionaries(texts, choice, max_size=3))
    return {name: PB.InferParameter(**value) for name, value in entries.items()}


contents = st.none() | st.builds(
    PB.InferTensorContents,
    bool_contents=st.lists(st.booleans(), max_size=3),
    int_contents=st.lists(int32s, max_size=3),
    int64_contents=st.lists(int64s, max_size=3),
    uint_contents=st.lists(uint32s, max_size=3),
    uint64_contents=st.lists(uint64s, max_size=3),
    fp32_contents=st.lists(st.floats(width=32), max_size=3),
    fp64_contents=st.lists(st.floats(), max_size=3),
    bytes_contents=st.lists(st.binary(max_size=4), max_size=3),
)
inputs = st.builds(
    Request.InferInputTensor,
    name=texts,
    datatype=texts,
    shape=st.lists(int64s, max_size=4),
    parameters=parameters(),
    contents=contents,
)
outputs = st.builds(Request.InferRequestedOutputTensor, name=texts, parameters=parameters())
requests = st.builds(
    Request,
    model_name=texts,
    model_version=texts,
    id=texts,
    parameters=parameters(),
    inputs=st.lists(inputs, max_size=3),
    outputs=st.lists(outputs, max_size=2),
    raw_input_contents=st.lists(st.binary(max_size=200), max_size=3),
)


# As bytes, with whatever the wire format allows, and a little more.


def _field(number: int, wire_type: int, payload: bytes, spare: int = 1) -> bytes:
    length = varint(len(payload), spare) if wire_type == 2 else b""
    return varint(number << 3 | wire_type, spare) + length + payload


# What makes a message unreadable is rare: one with a few of such fields is nearly always refused, and nothing compared.
_spare = st.sampled_from([*[1] * 60, 2, 5, 6])
_octets = st.sampled_from([*[1] * 40, 2, 9, 10, 11])
_varints = st.builds(varint, st.one_of(st.integers(0, 200), uint64s, st.integers(0, 2**64)), _octets)
_payloads = {0: _varints, 1: st.binary(min_size=8, max_size=8), 5: st.binary(min_size=4, max_size=4)}
_strings = st.integers(0, 29).flatmap(lambda n: st.binary(max_size=4) if n == 0 else texts.map(str.encode))
_packed = {
    0: st.lists(_varints, max_size=3).map(b"".join),
    1: st.lists(_payloads[1], max_size=3).map(b"".join) | st.binary(max_size=17),
    5: st.lists(_payloads[5], max_size=3).map(b"".join) | st.binary(max_size=9),
}


def _scalar(number: int, wire_type: int, repeated: bool = False) -> st.SearchStrategy[bytes]:
    spare = _spare
    single = st.builds(_field, st.just(number), st.just(wire_type), _payloads[wire_type], spare)
    if not repeated:
        return single
    return single | st.builds(_field, st.just(number), st.just(2), _packed[wire_type], spare)


def _delimited(number: int, payload: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    spare = _spare
    return st.builds(_field, st.just(number), st.just(2), payload, spare)


def _group(number: int, inside: bytes, closing: int) -> bytes:
    return varint(number << 3 | 3) + inside + varint(closing << 3 | 4)


_small_numbers = st.integers(1, 9)
_stray = st.one_of(
    *(st.builds(_field, _small_numbers, st.just(kind), payload) for kind, payload in _payloads.items()),
    st.builds(_field, st.sampled_from([0, 9, 100, 2**29 - 1, 2**29, 2**30]), st.just(0), _varints),
    st.builds(_field, _small_numbers, st.just(2), st.binary(max_size=6)),
    st.builds(lambda number, inside: _group(number, inside, number), _small_numbers, st.just(b"")),
    st.builds(
        lambda number, inner, payload: _group(number, _group(inner, payload, inner), number),
        *(_small_numbers, _small_numbers),
        st.builds(_field, _small_numbers, st.sampled_from([0, 2]), _strings),
    ),
    st.builds(_group, _small_numbers, st.just(b""), _small_numbers),
    st.binary(min_size=1, max_size=3),
)
"""Fields that are unknown, or known under another wire type, or not well-formed."""


def _message(*known: st.SearchStrategy[bytes], size: int = 5) -> st.SearchStrategy[bytes]:
    one = st.one_of(*known)
    return st.lists(st.integers(0, 29).flatmap(lambda n: _stray if n == 0 else one), max_size=size).map(b"".join)


_choice = _message(_scalar(1, 0), _scalar(2, 0), _delimited(3, _strings), _scalar(4, 1), _scalar(5, 0), size=2)
_entry = _message(_delimited(1, st.sampled_from([b"", b"a", b"b", b"\xff"])), _delimited(2, _choice), size=3)
_contents = _message(
    *(_scalar(number, 0, repeated=True) for number in range(1, 6)),
    _scalar(6, 5, repeated=True),
    _scalar(7, 1, repeated=True),
    _delimited(8, st.binary(max_size=4)),
)
_input = _message(
    _delimited(1, _strings),
    _delimited(2, _strings),
    _scalar(3, 0, repeated=True),
    _delimited(4, _entry),
    _delimited(5, _contents),
)
_output = _message(_delimited(1, _strings), _delimited(2, _entry), size=2)
wires = _message(
    *(_delimited(number, _strings) for number in (1, 2, 3)),
    _delimited(4, _entry),
    _delimited(5, _input),
    _delimited(6, _output),
    _delimited(7, st.binary(max_size=200)),
)
"""Encodings of requests that no writer would produce: parts of messages to be merged, numbers one by one and packed,
spelt in more bytes than needed, known fields of the wrong type, groups, fields that are cut off or unknown."""


_load_choice = _message(
    _scalar(1, 0), _scalar(2, 0), _delimited(3, _strings), _delimited(4, st.binary(max_size=4)), size=2
)
_load_entry = _message(
    _delimited(1, st.sampled_from([b"", b"config", b"file:a", b"\xff"])), _delimited(2, _load_choice), size=3
)
load_wires = _message(_delimited(1, _strings), _delimited(2, _strings), _delimited(3, _load_entry))
"""The same of load requests."""


# What a request says, in a form that can be compared.


def _bits(value: float) -> bytes:
    return struct.pack("<d", value)


def _without_maps() -> Mapping[str, type[Any]]:
    """The schema's messages by full name, with maps that are what they are on the wire: repeated messages.

    Protobuf's Python reader leaves out a map entry that has an unknown field; its C++ reader, which is Triton's, does
    not.
    """
    pool = DescriptorPool()
    for described in (CONFIG_FILE, PB.DESCRIPTOR):
        file = descriptor_pb2.FileDescriptorProto()
        described.CopyToProto(file)
        messages = list(file.message_type)
        for message in messages:
            message.options.ClearField("map_entry")
            messages += message.nested_type
        pool.Add(file)
    return message_classes(pool.FindFileByName(each.name) for each in (CONFIG_FILE, PB.DESCRIPTOR))


WITHOUT_MAPS = _without_maps()
RequestWithoutMaps = WITHOUT_MAPS["inference.ModelInferRequest"]


def _said_parameters(given: Any) -> dict[str, tuple[str | None, Any]]:
    said: dict[str, tuple[str | None, Any]] = {}
    entries = given.items() if hasattr(given, "items") else ((entry.key, entry.value) for entry in given)
    for name, value in entries:
        choice = value.WhichOneof("parameter_choice")
        content: Any = None if choice is None else getattr(value, choice)
        said[name] = (choice, _bits(content) if choice == "double_param" else content)
    return said


def _read_parameters(given: dict[str, Any]) -> dict[str, tuple[str | None, Any]]:
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", UnsignedInt: "uint64_param"}
    said: dict[str, tuple[str | None, Any]] = {}
    for name, value in given.items():
        if type(value) is float:
            said[name] = ("double_param", _bits(value))
        else:
            said[name] = (kinds.get(type(value)), value)
    return said


def _said_contents(given: Any) -> dict[int, Any]:
    said: dict[int, Any] = {}
    for number, (name, dtype) in CONTENTS.items():
        if values := list(getattr(given, name)):
            said[number] = np.array(values, dtype).tobytes()
    if given.bytes_contents:
        said[8] = list(given.bytes_contents)
    return said


def _read_contents(given: Any) -> dict[int, Any]:
    said: dict[int, Any] = {}
    for number, data in given.packed.items():
        wire_type, dtype = NUMBERS[number]
        array = unpack_varints(data, dtype) if wire_type == VARINT else np.frombuffer(data, dtype)
        said[number] = ((array != 0).astype("<u8") if number == 1 else array).tobytes()
    if given.elements:
        said[8] = list(iter_bytes(bytes(given.elements)))
        assert len(said[8]) == given.element_count
    return said


def said_by_protobuf(request: Any) -> tuple[Any, ...]:
    """What protobuf reads in a request, with maps or without."""
    return (
        (request.model_name, request.model_version, request.id, _said_parameters(request.parameters)),
        [
            (
                *(given.name, given.datatype, list(given.shape), _said_parameters(given.parameters)),
                _said_contents(given.contents) if given.HasField("contents") else None,
            )
            for given in request.inputs
        ],
        [(given.name, _said_parameters(given.parameters)) for given in request.outputs],
        list(request.raw_input_contents),
    )


def said_by_us(request: WireRequest) -> tuple[Any, ...]:
    """What our reader reads in it."""
    return (
        (request.model_name, request.model_version, request.id, _read_parameters(request.parameters)),
        [
            (
                *(given.name, given.datatype, given.shape, _read_parameters(given.parameters)),
                None if given.contents is None else _read_contents(given.contents),
            )
            for given in request.inputs
        ],
        [(given.name, _read_parameters(given.parameters)) for given in request.outputs],
        [bytes(raw) for raw in request.raw],
    )
