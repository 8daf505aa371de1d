"""Requests for replicas are what the house's reader, and protobuf, read back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from triton_messages import MESSAGES

from trireme.api.grpc.framing import prefix
from trireme.api.grpc.replica.requests import write_infer_request
from trireme.engine.datatypes import BYTES, FP32
from trireme.engine.errors import UnsupportedError
from trireme.engine.request import LATEST, InferenceRequest, RequestForm
from trireme.engine.tensor import Tensor

names = st.text(min_size=1, max_size=8)
values = st.booleans() | st.integers(-(2**63), 2**63 - 1) | names | st.floats(allow_nan=False)
tensors = st.builds(
    lambda name, size: Tensor(name, FP32, (1, size), np.arange(size, dtype=np.float32).tobytes()),
    names,
    st.integers(0, 300),
)
requests = st.builds(
    InferenceRequest,
    model_name=names,
    model_version=st.sampled_from([LATEST, 1, 300]),
    id=st.just("") | names,
    inputs=st.lists(tensors, max_size=3),
    requested_outputs=st.lists(names, max_size=2, unique=True).map(tuple),
    parameters=st.dictionaries(names, values, max_size=2),
    priority=st.sampled_from([0, 0, 3]),
    timeout_us=st.sampled_from([0, 0, 2**64 - 1]),
    correlation_id=st.sampled_from([0, 0, 7, 2**64 - 5, "some"]),
    sequence_start=st.booleans(),
    sequence_end=st.booleans(),
)


def as_read(request: InferenceRequest) -> Any:
    """As protobuf reads what is written."""
    pieces, size = write_infer_request(request)
    whole = b"".join(pieces)
    assert len(whole) == size
    assert whole[:5] == prefix(False, size - 5)
    return MESSAGES.ModelInferRequest.FromString(whole[5:])


def choice_of(parameter: Any) -> Any:
    return getattr(parameter, parameter.WhichOneof("parameter_choice"))


@given(request=requests)
def test_nothing_is_lost(request: InferenceRequest) -> None:
    for _ in range(2):
        read = as_read(request)
        version = "" if request.model_version == LATEST else str(request.model_version)
        assert (read.model_name, read.model_version, read.id) == (request.model_name, version, request.id)
        assert [(each.name, each.datatype, tuple(each.shape)) for each in read.inputs] == [
            (tensor.name, tensor.datatype.name, tensor.shape) for tensor in request.inputs
        ]
        assert list(read.raw_input_contents) == [bytes(tensor.buffer) for tensor in request.inputs]
        assert tuple(output.name for output in read.outputs) == request.requested_outputs
        said = {name: choice_of(parameter) for name, parameter in read.parameters.items()}
        mask = 2**64 - 1
        correlation_id = said.pop("sequence_id", 0)
        assert (correlation_id & mask if isinstance(correlation_id, int) else correlation_id) == request.correlation_id
        assert said.pop("sequence_start", False) == request.sequence_start
        assert said.pop("sequence_end", False) == request.sequence_end
        assert said.pop("priority", 0) == request.priority
        assert said.pop("timeout", 0) & mask == request.timeout_us
        assert said == request.parameters


@given(request=requests, other=requests, sizes=st.tuples(st.integers(0, 9), st.integers(0, 9)))
def test_what_forms_have_in_common_is_said_of_their_own_requests_only(
    request: InferenceRequest, other: InferenceRequest, sizes: tuple[int, int]
) -> None:
    """Requests of one form may be for other models, and have ids, sequences, parameters and other numbers of bytes."""
    form = RequestForm()
    usual, longer = (
        replace(request, inputs=[Tensor(each.name, FP32, each.shape, bytes(size)) for each in request.inputs])
        for size in sizes
    )
    elsewhere = replace(usual, model_name=other.model_name, model_version=other.model_version)
    named = replace(usual, id=other.id, correlation_id=other.correlation_id, parameters=other.parameters)
    for each in (usual, elsewhere, usual, longer, usual, named, usual):
        assert as_read(replace(each, form=form)) == as_read(each)


def test_a_message_goes_on_as_it_came() -> None:
    message = MESSAGES.ModelInferRequest(model_name="m", model_version="2", id="7")
    message.inputs.add(name="IN", datatype="FP32", shape=[1]).contents.fp32_contents.append(1.0)
    request = InferenceRequest("m", 2, "7", message=message.SerializeToString())
    assert as_read(request) == message


def test_tensors_are_not_copied() -> None:
    array = np.zeros(1 << 20, np.float32)
    request = InferenceRequest("m", inputs=[Tensor("IN", FP32, (1 << 20,), array=array)])
    pieces, _ = write_infer_request(request)
    assert np.shares_memory(np.frombuffer(pieces[-1], np.uint8), array)


def test_bytes_are_packed() -> None:
    strings = np.array([b"a", b"bcd"], dtype=object)
    read = as_read(InferenceRequest("m", inputs=[Tensor("IN", BYTES, (2,), array=strings)]))
    assert read.raw_input_contents[0] == b"\x01\0\0\0a\x03\0\0\0bcd"


def test_what_cannot_be_carried_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="parameter 'x' must be"):
        write_infer_request(InferenceRequest("m", parameters={"x": 2**63}))
