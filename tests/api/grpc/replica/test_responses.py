"""Answers of replicas are read as protobuf writes them, the first time and when their heads are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from triton_messages import MESSAGES

from trireme.api.grpc.replica.responses import ReplicaResponses, UnreadableAnswerError
from trireme.engine.errors import ErrorKind, RefusalReason, TriremeError
from trireme.engine.request import InferenceResponse

names = st.text(min_size=1, max_size=8) | st.just("n" * 200)
values = st.booleans() | st.integers(-(2**63), 2**63 - 1) | names | st.floats(allow_nan=False)


@st.composite
def responses(draw: st.DrawFn) -> Any:
    message = MESSAGES.ModelInferResponse(
        model_name=draw(names), model_version=draw(st.sampled_from(["1", "300"])), id=draw(st.just("") | names)
    )
    for name, value in draw(st.dictionaries(names, values, max_size=2)).items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}[type(value)]
        setattr(message.parameters[name], kind, value)
    for name, size in draw(st.lists(st.tuples(names, st.sampled_from([0, 1, 40, 5_000])), max_size=3)):
        message.outputs.add(name=name, datatype="FP32", shape=[1, size])
        message.raw_output_contents.append(np.arange(size, dtype=np.float32).tobytes())
    return message


def assert_same(response: InferenceResponse, message: Any) -> None:
    assert (response.model_name, str(response.model_version), response.id) == (
        message.model_name,
        message.model_version,
        message.id,
    )
    assert response.parameters == {
        name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in message.parameters.items()
    }
    assert [(each.name, each.datatype.name, each.shape, bytes(each.buffer)) for each in response.outputs] == [
        (output.name, output.datatype, tuple(output.shape), raw)
        for output, raw in zip(message.outputs, message.raw_output_contents, strict=True)
    ]


@given(message=responses(), other_id=names)
def test_answers_mean_what_protobuf_wrote(message: Any, other_id: str) -> None:
    reader = ReplicaResponses()
    for _ in range(2):
        assert_same(reader.read(message.SerializeToString()), message)
        message.id = other_id
    assert_same(reader.read(memoryview(message.SerializeToString())), message)


@given(message=responses(), other=responses())
def test_answers_of_other_heads_in_between_change_nothing(message: Any, other: Any) -> None:
    """What one has in common with the answers before is not said of others; and messages go on as they came."""
    reader = ReplicaResponses()
    for each in (message, other, message, message, other, other, message):
        data = each.SerializeToString()
        response = reader.read(data)
        assert_same(response, each)
        assert response.message == data


@given(data=st.binary(max_size=60))
def test_what_is_no_message_is_an_error(data: bytes) -> None:
    reader = ReplicaResponses()
    for read in (reader.read, reader.read_stream):
        try:
            read(data)
        except UnreadableAnswerError:
            continue
        except TriremeError as error:
            raise AssertionError(f"another error: {error!r}") from error


def test_cut_off_answers_are_errors_even_if_their_head_is_known() -> None:
    message = MESSAGES.ModelInferResponse(model_name="m", model_version="1")
    message.outputs.add(name="OUT", datatype="FP32", shape=[2])
    message.raw_output_contents.append(bytes(8))
    whole = message.SerializeToString()
    reader = ReplicaResponses()
    reader.read(whole)
    reader.read(whole)
    for size in range(1, len(whole)):
        if not whole[size:].startswith((b"\x32", b"\x2a", b"\x12")):
            with pytest.raises(UnreadableAnswerError):
                reader.read(whole[:size])


def test_large_tensors_are_views() -> None:
    message = MESSAGES.ModelInferResponse(model_name="m", model_version="1")
    message.outputs.add(name="OUT", datatype="UINT8", shape=[100_000])
    message.raw_output_contents.append(bytes(100_000))
    received = np.frombuffer(message.SerializeToString(), np.uint8)
    reader = ReplicaResponses()
    for _ in range(2):
        (tensor,) = reader.read(received.data).outputs
        assert np.shares_memory(tensor.array, received)


def test_what_does_not_fit_together_is_an_error() -> None:
    message = MESSAGES.ModelInferResponse(model_name="m", model_version="1")
    message.outputs.add(name="OUT", datatype="FP33", shape=[2])
    with pytest.raises(UnreadableAnswerError, match="output 'OUT' has the unknown datatype 'FP33'"):
        ReplicaResponses().read(message.SerializeToString())
    message.outputs[0].datatype = "FP32"
    message.raw_output_contents.extend([b"", b""])
    with pytest.raises(UnreadableAnswerError, match="2 raw contents for 1 outputs"):
        ReplicaResponses().read(message.SerializeToString())


def stream_message(text: str = "", **parameters: Any) -> bytes:
    message = MESSAGES.ModelStreamInferResponse(error_message=text)
    message.infer_response.model_name = "m"
    for name, value in parameters.items():
        setattr(message.infer_response.parameters[name], "bool_param" if value is True else "string_param", value)
    return message.SerializeToString()


def test_errors_on_streams_have_their_kind() -> None:
    reader = ReplicaResponses()
    error, final = reader.read_stream(
        stream_message(
            "no", triton_final_response=True, trireme_error_kind="UNAVAILABLE", trireme_error_refusal="queue_full"
        )
    )
    assert isinstance(error, TriremeError)
    assert (error.kind, error.message, final) == (ErrorKind.UNAVAILABLE, "no", True)
    assert error.refusal is RefusalReason.QUEUE_FULL
    error, final = reader.read_stream(stream_message("no", trireme_error_kind="NEW"))
    assert isinstance(error, TriremeError)
    assert (error.kind, final, error.refusal) == (ErrorKind.INTERNAL, False, None)
    assert reader.read_stream(stream_message(triton_final_response=True)) == (None, True)
