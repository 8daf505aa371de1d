"""Our writer of infer responses against protobuf's own: what it writes is what protobuf would have written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from grpc_requests import Request, Response, StreamResponse, decode, with_parameters
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.api.grpc.infer_request import DecodedGrpcInfer
from trireme.api.grpc.infer_writer import (
    write_infer_response,
    write_stream_error,
    write_stream_refusal,
    write_stream_response,
)
from trireme.engine.config.model import ModelConfig
from trireme.engine.datatypes import BYTES, DATATYPES, FP16, FP32, UINT8
from trireme.engine.description import ModelDescription
from trireme.engine.errors import InternalError, InvalidArgumentError, UnsupportedError
from trireme.engine.request import InferenceResponse
from trireme.engine.tensor import Buffer, Tensor

CHOICES = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
ASKED = decode(Request(model_name="m", model_version="01", id="q"))
UNNAMED = decode(Request(model_name="m"))


def written(pieces: Sequence[Buffer]) -> bytes:
    return b"".join(pieces)


def protobufs(response: InferenceResponse) -> Any:
    """The message that protobuf would be told to write."""
    message = Response(model_name=response.model_name, model_version=str(response.model_version), id=response.id)
    for name, value in response.parameters.items():
        setattr(message.parameters[name], CHOICES[type(value)], value)
    for tensor in response.outputs:
        message.outputs.add(name=tensor.name, datatype=tensor.datatype.name, shape=tensor.shape)
        message.raw_output_contents.append(bytes(tensor.buffer))
    return message


values = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=200), st.floats())
tensors = st.builds(
    Tensor,
    st.text(max_size=200),
    st.sampled_from(DATATYPES),
    st.lists(st.integers(0, 2**63 - 1), max_size=4).map(tuple),
    st.binary(max_size=300),
)
responses = st.builds(
    InferenceResponse,
    st.text(max_size=20),
    st.integers(0, 2**63 - 1),
    st.text(max_size=200),
    st.lists(tensors, max_size=3),
    st.dictionaries(st.text(max_size=5), values, max_size=3),
)


@settings(max_examples=100, deadline=None)
@given(responses, st.booleans())
def test_what_is_written_is_what_protobuf_writes(response: InferenceResponse, final: bool) -> None:
    message = protobufs(response)
    ours = written(write_infer_response(response, ASKED))
    assert Response.FromString(ours).SerializeToString(deterministic=True) == message.SerializeToString(
        deterministic=True
    )
    if len(response.parameters) < 2:  # the order of a map is protobuf's own affair
        assert ours == message.SerializeToString()
    message.parameters["triton_final_response"].bool_param = final
    ours = written(write_stream_response(response, ASKED, final))
    expected = StreamResponse(infer_response=message)
    assert StreamResponse.FromString(ours).SerializeToString(deterministic=True) == expected.SerializeToString(
        deterministic=True
    )
    if not response.parameters:
        assert ours == expected.SerializeToString()


def test_outputs_go_out_from_where_they_lie() -> None:
    array = np.arange(1000, dtype="<f4")
    tensor = Tensor("OUT", FP32, (1000,), array=array)
    pieces = write_infer_response(InferenceResponse("m", 1, "", [tensor, tensor]), ASKED)
    views = [piece for piece in pieces if isinstance(piece, memoryview)]
    assert len(pieces) == 4
    assert len(views) == 2
    assert all(np.shares_memory(np.frombuffer(view, np.uint8), array) for view in views)


def test_bytes_are_packed() -> None:
    tensor = Tensor("OUT", BYTES, (2,), array=np.array([b"ab", b""], dtype=object))
    message = Response.FromString(written(write_infer_response(InferenceResponse("m", 1, "", [tensor]), ASKED)))
    assert list(message.raw_output_contents) == [b"\x02\x00\x00\x00ab\x00\x00\x00\x00"]


def labelled(decoded: DecodedGrpcInfer, max_batch_size: int) -> DecodedGrpcInfer:
    decoded.model = ModelDescription(
        "m", 1, (1,), ModelConfig("m", max_batch_size=max_batch_size), {"OUT": ("zero", "one")}
    )
    return decoded


@pytest.mark.parametrize(
    ("max_batch_size", "shape", "classes"),
    [(4, [1, 2], [b"4.000000:1:one", b"3.000000:3"]), (0, [2], [b"4.000000:1:one", b"3.000000:3"])],
)
def test_classification(max_batch_size: int, shape: list[int], classes: list[bytes]) -> None:
    """Only the outputs that were asked for in this form; the others stay as they are."""
    request = Request(model_name="m")
    with_parameters(request.outputs.add(name="OUT"), classification=("int64_param", 2))
    request.outputs.add(name="RAW")
    decoded = labelled(decode(request), max_batch_size)
    array = np.array([[1, 4, 2, 3]], "<f4")
    outputs = [Tensor(name, FP32, (1, 4), array=array) for name in ("OUT", "RAW")]
    message = Response.FromString(written(write_infer_response(InferenceResponse("m", 1, "", outputs), decoded)))
    assert [(output.datatype, list(output.shape)) for output in message.outputs] == [("BYTES", shape), ("FP32", [1, 4])]
    packed = b"".join(len(text).to_bytes(4, "little") + text for text in classes)
    assert list(message.raw_output_contents) == [packed, array.tobytes()]


def test_what_cannot_be_classified_is_an_error() -> None:
    request = Request(model_name="m")
    with_parameters(request.outputs.add(name="OUT"), classification=("int64_param", 2))
    tensor = Tensor("OUT", FP16, (1,), b"\x00\x00")
    for write in (write_infer_response, lambda *given: write_stream_response(*given, final=True)):
        with pytest.raises(InvalidArgumentError) as caught:
            write(InferenceResponse("m", 1, "", [tensor]), decode(request))
        assert caught.value.message == "class result not available for output due to unsupported type 'FP16'"


def test_a_response_too_large_for_grpc_is_an_error() -> None:
    """To the byte. Nothing is copied, so the data takes no more than address space."""
    data = np.zeros(2**31, np.uint8).data

    def size(nbytes: int) -> int:
        tensor = Tensor("OUT", UINT8, (nbytes,), data[:nbytes])
        return sum(map(len, write_infer_response(InferenceResponse("m", 1, "", [tensor]), ASKED)))

    most = 2**31 - 1 - (size(2**30) - 2**30)
    assert size(most) == 2**31 - 1
    with pytest.raises(InvalidArgumentError) as caught:
        size(most + 1)
    assert caught.value.message == "Response has byte size 2147483648 which exceeds gRPC's byte size limit 2147483647."


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, b"bytes", None])
def test_parameters_that_the_protocol_cannot_carry(value: Any) -> None:
    with pytest.raises(UnsupportedError, match="'odd'"):
        write_infer_response(InferenceResponse("m", 1, "", [], {"odd": value}), ASKED)


# Streams: the forms besides data.


def parsed(pieces: Sequence[Buffer]) -> Any:
    message = written(pieces)
    stream_response = StreamResponse.FromString(message)
    assert stream_response.SerializeToString() == message
    assert stream_response.HasField("infer_response")
    return stream_response


def final_flag(message: Any) -> bool:
    (name,) = message.parameters
    assert name == "triton_final_response"
    assert message.parameters[name].HasField("bool_param")
    return message.parameters[name].bool_param


@pytest.mark.parametrize("final", [False, True])
def test_an_error_of_the_model_tells_of_its_request(final: bool) -> None:
    """The version as the request spells it, and whether more will follow."""
    error = InternalError("it broke")
    pieces = write_stream_response(error, ASKED, final)
    assert pieces == write_stream_error("it broke", ASKED, final)
    message = parsed(pieces)
    assert message.error_message == "it broke"
    told = message.infer_response
    assert (told.model_name, told.model_version, told.id, final_flag(told)) == ("m", "01", "q", final)
    assert (list(told.outputs), list(told.raw_output_contents)) == ([], [])
    told = parsed(write_stream_response(error, UNNAMED, final)).infer_response
    assert (told.model_name, told.model_version, told.id) == ("m", "", "")


def test_an_error_before_execution_has_only_the_id() -> None:
    message = parsed(write_stream_refusal("no such model", "q"))
    assert message == StreamResponse(error_message="no such model", infer_response=Response(id="q"))
    assert parsed(write_stream_refusal("no such model", "")).infer_response == Response()


def test_a_final_response_without_data() -> None:
    message = parsed(write_stream_response(None, ASKED, True))
    assert message.error_message == ""
    told = message.infer_response
    assert (told.model_name, told.model_version, told.id, final_flag(told)) == ("m", "01", "q", True)


def test_texts_that_are_no_unicode_can_still_be_read() -> None:
    """A file name in an error may hold bytes that are no UTF-8; protobuf refuses such a text altogether."""
    assert parsed(write_stream_refusal("cannot read \udcff", "")).error_message == "cannot read ?"
