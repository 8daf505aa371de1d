"""The reader's memory changes nothing but the time it takes: the same is read whether a head is known or not."""

from __future__ import annotations

import weakref
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from grpc_requests import Request, an_input, describe, with_parameters
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.api.grpc import infer_reader
from trireme.api.grpc.infer_reader import InferReader
from trireme.api.grpc.infer_request import DecodedGrpcInfer, decode_infer, read_infer_request
from trireme.api.grpc.wire import UnreadableError
from trireme.engine.config.model import ModelConfig, ModelInput, ModelOutput
from trireme.engine.datatypes import FP32
from trireme.engine.description import ModelDescription
from trireme.engine.errors import InternalError, InvalidArgumentError, TriremeError
from trireme.engine.memory.regions import Regions
from trireme.engine.tensor import Buffer
from trireme.engine.validation import RequestValidator


def said(decoded: DecodedGrpcInfer) -> tuple[Any, ...]:
    request = decoded.request
    return (
        *(request.model_name, request.model_version, request.id, request.requested_outputs, request.parameters),
        *(request.priority, request.timeout_us, request.correlation_id, request.sequence_start, request.sequence_end),
        [(tensor.name, tensor.datatype, tensor.shape, bytes(tensor.buffer)) for tensor in request.inputs],
        *(decoded.version_text, decoded.class_counts, decoded.enable_empty_final_response, decoded.model.name),
    )


def outcome(decode: Any, message: Buffer) -> Any:
    try:
        return said(decode(message))
    except TriremeError as error:
        return type(error), error.message


def fully(message: Buffer) -> DecodedGrpcInfer:
    return decode_infer(read_infer_request(message), describe, Regions())


def read(reader: InferReader, message: Buffer) -> DecodedGrpcInfer:
    """A message that needs no thread."""
    decoded = reader.decode(message, describe)
    assert decoded is not None
    return decoded


def identity(data: bytes = b"x" * 64, request_id: str = "") -> Any:
    return Request(
        model_name="identity",
        id=request_id,
        inputs=[an_input("INPUT0", "FP32", [1, 16])],
        outputs=[Request.InferRequestedOutputTensor(name="OUTPUT0")],
        raw_input_contents=[data],
    )


def test_a_repeated_head_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the id is, and whatever the bytes are, also how many: that is for validation to judge."""
    reader = InferReader(Regions())
    reader.decode(identity().SerializeToString(), describe)
    monkeypatch.delattr(infer_reader, "read_infer_request")
    for data, request_id in ((b"y" * 64, "1"), (b"", "é"), (b"z" * 300, ""), (b"w" * 70_000, "x" * 200)):
        message = identity(data, request_id).SerializeToString()
        for form in (message, bytearray(message), memoryview(message)):
            assert said(read(reader, form)) == said(fully(message))
    assert repr(reader) == "<InferReader remembers 1 heads>"


def test_a_message_like_the_one_before_is_not_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its id is another one each time, as those of clients with streams are; or there is none. All have one form."""
    for request_id, other_id in (("", ""), ("17", "é18")):
        reader = InferReader(Regions())
        for _ in range(2):
            reader.decode(identity(request_id=request_id).SerializeToString(), describe)
        with monkeypatch.context() as patch:
            patch.delattr(infer_reader, "_split")
            decoded = [read(reader, identity(data, other_id).SerializeToString()) for data in (b"y" * 64, b"z" * 64)]
        for data, each in zip((b"y" * 64, b"z" * 64), decoded, strict=True):
            assert said(each) == said(fully(identity(data, other_id).SerializeToString()))
        assert decoded[0].request.form is decoded[1].request.form is not None


_ID_5 = b"\x22\x11\x0a\x0bsequence_id\x12\x02\x10\x05"
"""The parameter that says that the sequence's id is 5."""


def step(place: int, correlation_id: int | str, request_id: str = "7") -> bytes:
    """A request of a sequence of three."""
    kind = "int64_param" if isinstance(correlation_id, int) else "string_param"
    request = with_parameters(
        identity(bytes([place]) * 64, request_id),
        sequence_id=(kind, correlation_id),
        sequence_start=("bool_param", place == 0),
        sequence_end=("bool_param", place == 2),
    )
    return bytes(request.SerializeToString(deterministic=True))


@pytest.mark.parametrize("request_id", ["", "17"])
def test_requests_of_many_sequences_are_read_once(request_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the sequence's id is: first, between and last are three forms. None of them is taken apart again."""
    reader = InferReader(Regions())
    known = [read(reader, step(place, 5, request_id)) for _ in range(2) for place in range(3)][3:]
    ids = [0, 6, 300, 2**63 - 1, -1, "a", "é" * 40, ""]
    messages = [step(place, each, request_id and "é18") for each in ids for place in range(3)]
    expected = [said(fully(message)) for message in messages]
    monkeypatch.delattr(infer_reader, "read_infer_request")
    with monkeypatch.context() as patch:
        patch.delattr(infer_reader, "_split")
        decoded = [read(reader, message) for message in messages]
    assert [said(each) for each in decoded] == expected
    assert [each.request.form for each in decoded[:3]] == [each.request.form for each in known]
    assert len({id(each.request.form) for each in decoded}) == 3
    assert repr(reader) == "<InferReader remembers 3 heads>"


def test_parameters_of_sequences_have_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps of protobuf have none: the same client sends each of these."""
    reader = InferReader(Regions())
    message = step(1, 5)
    at = message.index(b"\x2a")
    name, ends = message[: message.index(b"\x22")], message[at:]
    flags = [(b"\x22\x14\x0a\x0esequence_start\x12\x02\x08" + value) for value in (b"\x00", b"\x01")]
    ending = [(b"\x22\x12\x0a\x0csequence_end\x12\x02\x08" + value) for value in (b"\x00", b"\x01")]
    other = b"\x22\x09\x0a\x03own\x12\x02\x10\x07"
    messages = [
        name + b"".join(order) + ends
        for start in flags
        for end in ending
        for order in permutations([_ID_5, start, end, other])
    ]
    expected = [said(fully(message)) for message in messages]
    for each in [*messages, *messages]:
        read(reader, each)
    monkeypatch.delattr(infer_reader, "_split")
    assert [said(read(reader, each)) for each in messages] == expected


def test_a_sequence_of_more_than_one_content_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request(model_name="identity", raw_input_contents=[b"1234", b"5678"])
    request.inputs.extend([an_input("A", "INT32", [1]), an_input("B", "INT32", [1])])
    request.parameters["sequence_id"].int64_param = 1
    reader = InferReader(Regions())
    read(reader, request.SerializeToString())
    request.parameters["sequence_id"].int64_param = 2
    message = request.SerializeToString()
    expected = said(fully(message))
    monkeypatch.delattr(infer_reader, "read_infer_request")
    assert said(read(reader, message)) == expected


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param(_ID_5 + _ID_5.replace(b"\x10\x05", b"\x10\x06"), id="twice"),
        pytest.param(b"\x22\x11\x12\x02\x10\x05\x0a\x0bsequence_id", id="value first"),
        pytest.param(_ID_5.replace(b"\x10\x05", b"\x28\x05"), id="uint64"),
        pytest.param(_ID_5.replace(b"\x10\x05", b"\x08\x01"), id="bool"),
        pytest.param(_ID_5.replace(b"\x10\x05", b"\x10\x85"), id="number cut off"),
        pytest.param(_ID_5.replace(b"\x22\x11", b"\x22\x91\x00"), id="length in two bytes"),
        pytest.param(_ID_5[:-4] + b"\x12\x00", id="no value"),
        pytest.param(_ID_5.replace(b"\x12\x02", b"\x12\x03"), id="value too long"),
        pytest.param(b"\x22\x8f\x01\x0a\x0bsequence_id\x12\x7f\x1a\x7d" + b"s" * 125, id="long text"),
        pytest.param(b"\x22\x12\x0a\x0bsequence_id\x12\x03\x1a\x01\xff", id="no UTF-8"),
        pytest.param(b"\x22\x18\x0a\x01p\x12\x13\x1a\x11\x0a\x0bsequence_id\x12\x02\x10\x06", id="inside a text"),
        pytest.param(b"\x22\x0d\x0a\x0bsequence_id", id="name alone"),
        pytest.param(_ID_5 + b"\x1a\x019", id="before the id"),
    ],
)
def test_unusual_ids_of_sequences(parameters: bytes) -> None:
    """Each comes between two usual ones, and again when it may be remembered."""
    reader = InferReader(Regions())
    name, rest = b"\x0a\x08identity", identity().SerializeToString().removeprefix(b"\x0a\x08identity")
    for request_id in (b"", b"\x1a\x018"):
        usual = name + request_id + _ID_5 + rest
        message = name + (b"" if b"\x1a\x019" in parameters else request_id) + parameters + rest
        for each in (usual, usual, message, usual, message, message):
            assert outcome(lambda data: read(reader, data), each) == outcome(fully, each)


names = st.sampled_from(["A", "B"])
given_inputs = st.lists(
    st.builds(
        an_input,
        names,
        st.sampled_from(["FP32", "INT32", "BYTES", "XX"]),
        st.lists(st.integers(-1, 300), max_size=2),
        st.sampled_from([None, None, None, {"int_contents": [1]}, {}]),
    ),
    max_size=2,
)
given_requests = st.builds(
    Request,
    model_name=names,
    model_version=st.sampled_from(["", "1", "-1"]),
    id=st.sampled_from(["", "1", "2", "é3", "i" * 130]),
    inputs=given_inputs,
    outputs=st.lists(st.builds(Request.InferRequestedOutputTensor, name=names), max_size=2),
    raw_input_contents=st.lists(st.sampled_from([b"", b"1234", b"5678" * 50]), max_size=3),
)
given_parameters = st.dictionaries(
    st.sampled_from(["sequence_id", "sequence_start", "other"]),
    st.sampled_from([("int64_param", 5), ("int64_param", 300), ("string_param", "s"), ("bool_param", True)]),
    max_size=3,
)
given_requests = st.builds(lambda request, values: with_parameters(request, **values), given_requests, given_parameters)


@settings(max_examples=100, deadline=None)
@given(st.lists(given_requests, min_size=2, max_size=8))
def test_a_reader_with_a_memory_reads_what_one_without_does(requests: list[Any]) -> None:
    """Twice each, so that whatever is remembered is also used."""
    reader = InferReader(Regions())
    for request in [*requests, *requests]:
        message = request.SerializeToString()
        assert outcome(lambda data: read(reader, data), message) == outcome(fully, message)


@settings(max_examples=100, deadline=None)
@given(given_requests, st.data())
def test_a_damaged_request_is_not_taken_for_the_one_remembered(request: Any, data: st.DataObject) -> None:
    reader = InferReader(Regions())
    message = bytearray(request.SerializeToString())
    for _ in range(2):  # its head is remembered, and then how it is put together
        outcome(lambda data: read(reader, data), bytes(message))
    at = data.draw(st.integers(0, len(message)))
    if data.draw(st.booleans()):
        del message[at:]
    else:
        message[at : at + 1] = bytes([data.draw(st.integers(0, 255))])
    assert outcome(lambda data: read(reader, data), bytes(message)) == outcome(fully, bytes(message))


CONFIG = ModelConfig(
    "identity",
    max_batch_size=2,
    input=(ModelInput("INPUT0", FP32, (-1,)),),
    output=(ModelOutput("OUTPUT0", FP32, (-1,)),),
)


def passed(decoded: DecodedGrpcInfer, validator: RequestValidator) -> Any:
    """What is said, and what the model gets of it, as at admission."""
    known = validator.recall(decoded.request)
    inputs, rows = validator.check(decoded.request) if known is None else known[:2]
    return said(decoded), {name: (tensor.shape, bytes(tensor.buffer)) for name, tensor in inputs.items()}, rows


@pytest.mark.parametrize(
    "other", [b"", b"\x00", b"\x01", b"\x0f", b"\x1a", b"\x3a", b"\x40", b"\xff", b"\x1a\x01i", b"ii"]
)
@pytest.mark.parametrize("request_id", ["", "1", "i" * 126])
def test_a_message_that_differs_is_read_and_checked_as_if_it_came_alone(other: bytes, request_id: str) -> None:
    """Wherever it differs from those before, of whatever connection they were: the reader is shared."""
    reader, validator = InferReader(Regions()), RequestValidator(CONFIG)
    message = identity(request_id=request_id).SerializeToString()

    def remembered(data: Buffer) -> Any:
        return passed(read(reader, data), validator)

    def verdict(take: Any, data: Buffer) -> Any:
        try:
            return take(data)
        except TriremeError as error:
            return type(error), error.message

    for at in range(len(message)):
        for _ in range(3):
            assert remembered(message)[2] == 1
        changed = message[:at] + other + message[at + 1 :]
        fresh = verdict(lambda data: passed(fully(data), RequestValidator(CONFIG)), changed)
        assert [verdict(remembered, changed) for _ in range(2)] == [fresh, fresh]


@pytest.mark.parametrize("request_id", ["", "1"])
def test_a_step_of_a_sequence_that_is_cut_off_is_no_request(request_id: str) -> None:
    """Wherever that is, although what stands before its data is known."""
    reader = InferReader(Regions())
    request = identity(b"x" * 600, request_id)
    request.inputs[0].datatype = "BYTES"
    message = with_parameters(request, sequence_id=("int64_param", 5)).SerializeToString()
    for _ in range(3):
        assert read(reader, message).request.correlation_id == 5
    for length in range(len(message) - 600, len(message)):
        with pytest.raises(UnreadableError):
            reader.decode(message[:length], describe)


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(b"\x1a\x01b", id="id behind the data"),
        pytest.param(b"\x3a\x05ab", id="data cut off"),
        pytest.param(b"\x3a", id="no length"),
        pytest.param(b"\x3a\x82\x80\x80\x80\x80\x00ab", id="length too long"),
        pytest.param(b"\x22\x03\x0a\x01p", id="parameter behind the data"),
        pytest.param(b"\x3a\x82\x00ab", id="length in two bytes"),
    ],
)
def test_unusual_endings(tail: bytes) -> None:
    reader = InferReader(Regions())
    message = identity().SerializeToString()
    for _ in range(2):  # as above
        reader.decode(message, describe)
    assert outcome(lambda data: read(reader, data), message + tail) == outcome(fully, message + tail)


def test_ids_are_checked_in_known_heads_too() -> None:
    reader = InferReader(Regions())
    message = identity(request_id="ab").SerializeToString()
    reader.decode(message, describe)
    with pytest.raises(InternalError):
        reader.decode(message.replace(b"\x1a\x02ab", b"\x1a\x02\xff\xfe"), describe)
    twice = message.replace(b"\x1a\x02ab", b"\x1a\x02ab\x1a\x02cd")
    assert read(reader, twice).request.id == "cd"


def test_the_model_is_looked_for_every_time() -> None:
    """A model may be gone that was there when the head was remembered."""
    reader = InferReader(Regions())
    message = identity().SerializeToString()
    for _ in range(2):  # its head is remembered, and then how it is put together
        reader.decode(message, describe)

    def gone(name: str, version: int) -> ModelDescription:
        raise InvalidArgumentError(f"{name} {version} is gone")

    with pytest.raises(InvalidArgumentError, match="identity -1 is gone"):
        reader.decode(message, gone)


def test_requests_share_nothing_that_can_change() -> None:
    reader = InferReader(Regions())
    message = with_parameters(identity(), own=("int64_param", 1)).SerializeToString()
    for _ in range(3):
        request = read(reader, message).request
        assert request.parameters == {"own": 1}
        request.parameters["own"] = 2
        request.inputs.clear()


def test_data_of_several_inputs_is_cut_where_each_message_says() -> None:
    """Of two messages that are as long, and the same up to their first data, the rest may be cut differently."""
    reader = InferReader(Regions())
    for cuts in ((4, 2, 6), (4, 2, 6), (4, 6, 2), (4, 2, 6), (4, 3, 5)):
        message = Request(
            model_name="three",
            inputs=[an_input(name, "UINT8", [size]) for name, size in zip("ABC", (4, 4, 4), strict=True)],
            raw_input_contents=[bytes([size]) * size for size in cuts],
        ).SerializeToString()
        assert [len(tensor.buffer) for tensor in read(reader, message).request.inputs] == list(cuts)


def test_a_message_is_not_kept() -> None:
    """A head in memory must not hold on to megabytes."""
    reader = InferReader(Regions())
    array = np.frombuffer(identity(b"x" * 1_000_000).SerializeToString(), np.uint8)
    gone = weakref.ref(array)
    for _ in range(2):  # as above
        reader.decode(array.data, describe)
    assert repr(reader) == "<InferReader remembers 1 heads>"
    del array
    assert gone() is None


def test_large_data_is_not_copied() -> None:
    reader = InferReader(Regions())
    message = bytearray(identity(b"x" * 100_000).SerializeToString())
    for fill in (b"1234", b"5678"):
        (tensor,) = read(reader, message).request.inputs
        message[-4:] = fill
        assert bytes(tensor.buffer[-4:]) == fill


def test_the_memory_is_bounded() -> None:
    """In heads, and in the size of one."""
    reader = InferReader(Regions())
    for number in range(infer_reader._HEADS * 2 + 10):
        reader.decode(Request(model_name=f"m{number}").SerializeToString(), describe)
        assert len(reader._heads) <= infer_reader._HEADS
    assert repr(reader) == f"<InferReader remembers {infer_reader._HEADS} heads>"
    assert all(len(key) < 100 for key in reader._heads)
    known = list(reader._heads)
    reader.decode(Request(model_name="m" * infer_reader._HEAD_BYTES).SerializeToString(), describe)
    reader.decode(Request(id="i" * infer_reader._HEAD_BYTES).SerializeToString(), describe)
    assert list(reader._heads) == known
