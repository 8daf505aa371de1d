"""`InferenceRequest`: the checks of its constructor and what an incoming one tells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from recording_host import RecordingHost

from trireme.python_backend.child.utils.errors import TritonModelException
from trireme.python_backend.child.utils.request import InferenceRequest
from trireme.python_backend.child.utils.tensor import Tensor

INPUT = Tensor("INPUT0", np.zeros((1, 4), np.float32))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"inputs": [None]}, "Input tensor for request with id 'r' and model name 'a' should not be empty."),
        (
            {"requested_output_names": [""]},
            "Requested output name for request with id 'r' and model name 'a' should not be empty.",
        ),
        ({"correlation_id": 1.5}, "Correlation ID must be integer or string"),
        (
            {"parameters": {"e": 1.5}},
            "Expect parameters values to have type bool/int/str, found type <class 'float'>",
        ),
        ({"parameters": {1: 1}}, "Expect parameters keys to have type str, found type <class 'int'>"),
        ({"parameters": "x"}, "Expect parameters to be a dict, got <class 'str'>"),
    ],
)
def test_bad_arguments_are_told_in_tritons_words(changes: dict[str, Any], text: str) -> None:
    arguments = {"request_id": "r", "model_name": "a", "inputs": [INPUT], "requested_output_names": []} | changes
    with pytest.raises(TritonModelException) as caught:
        InferenceRequest(**arguments)
    assert str(caught.value) == text


def test_other_objects_as_inputs_are_a_type_error() -> None:
    with pytest.raises(TypeError, match="inputs must be Tensor objects"):
        InferenceRequest(model_name="a", inputs=[5], requested_output_names=[])  # type: ignore[list-item]


def test_parameters_that_are_no_dictionary_are_refused_even_if_empty() -> None:
    with pytest.raises(TritonModelException, match="got <class 'list'>"):
        InferenceRequest(model_name="a", inputs=[], requested_output_names=[], parameters=[])  # type: ignore[arg-type]


@pytest.mark.parametrize("missing", ["model_name", "inputs", "requested_output_names"])
def test_what_says_who_is_asked_for_what_must_be_given(missing: str) -> None:
    arguments: dict[str, Any] = {"model_name": "a", "inputs": [], "requested_output_names": []}
    del arguments[missing]
    with pytest.raises(TypeError, match=missing):
        InferenceRequest(**arguments)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_name": None},
        {"model_name": 5},
        {"inputs": None},
        {"inputs": ""},
        {"requested_output_names": None},
        {"requested_output_names": "OUTPUT0"},
        {"requested_output_names": [None]},
        {"requested_output_names": [5]},
        {"request_id": None},
        {"correlation_id": None},
        {"correlation_id": -1},
        {"correlation_id": 1 << 64},
        {"model_version": None},
        {"model_version": "1"},
        {"model_version": 1.0},
        {"model_version": 1 << 63},
        {"flags": None},
        {"flags": 1.5},
        {"flags": -1},
        {"flags": 1 << 32},
        {"timeout": None},
        {"timeout": -1},
        {"trace": 5},
    ],
)
def test_arguments_of_other_types_are_a_type_error_where_they_are_given(changes: dict[str, Any]) -> None:
    """Not later, when the request is made, where no call would get it."""
    with pytest.raises(TypeError):
        InferenceRequest(**({"model_name": "a", "inputs": [], "requested_output_names": []} | changes))


def test_numbers_of_numpy_and_bytes_are_taken_as_what_they_mean() -> None:
    request = InferenceRequest(
        model_name=b"a",  # type: ignore[arg-type]
        inputs=(INPUT,),
        requested_output_names=(b"o",),  # type: ignore[arg-type]
        correlation_id=np.int64(4),  # type: ignore[arg-type]
        flags=np.int32(3),  # type: ignore[arg-type]
        timeout=np.int64(10),  # type: ignore[arg-type]
        model_version=np.int64(1),  # type: ignore[arg-type]
    )
    request.set_flags(np.uint8(2))  # type: ignore[arg-type]
    values = (request.correlation_id(), request.flags(), request.timeout())
    assert values == (4, 2, 10)
    assert {type(value) for value in values} == {int}
    assert request.requested_output_names() == {"o"}


def test_positions_are_those_of_triton() -> None:
    request = InferenceRequest("rid", 5, [INPUT], ["a", "a"], "m", 1, 2, 3)
    assert (request.request_id(), request.correlation_id(), request.inputs()) == ("rid", 5, [INPUT])
    assert (request.requested_output_names(), request.flags(), request.timeout()) == ({"a"}, 2, 3)
    assert (request._model_name, request._model_version) == ("m", 1)


@pytest.mark.parametrize(
    ("given", "text"),
    [(None, "{}"), ({}, "{}"), ({"a": 1, "b": "é", "d": True}, '{"a": 1, "b": "\\u00e9", "d": true}')],
)
def test_parameters_are_json_text(given: dict[str, Any] | None, text: str) -> None:
    request = InferenceRequest(model_name="a", inputs=[], requested_output_names=[], parameters=given)
    assert request.parameters() == text


def test_defaults_are_those_of_triton() -> None:
    request = InferenceRequest(model_name="a", inputs=[], requested_output_names=[])
    assert (request.request_id(), request.correlation_id(), request.flags(), request.timeout()) == ("", 0, 0, 0)
    assert request._model_version == -1
    assert request.trace().get_context() is None
    assert not request.is_cancelled()


def test_request_of_ones_own_cannot_be_answered() -> None:
    sender = InferenceRequest(model_name="a", inputs=[], requested_output_names=[]).get_response_sender()
    with pytest.raises(TritonModelException) as caught:
        sender.send(flags=1)
    assert str(caught.value) == (
        "Unable to send response. Response sender has no reference to the decoupled state of the model."
    )


def test_incoming_request_tells_what_the_client_said(host: RecordingHost) -> None:
    request = host.request(
        7,
        INPUT,
        outputs=["a", "b"],
        request_id="rid",
        correlation_id="seq",
        flags=3,
        timeout=9,
        parameters_json='{"p":1}',
        trace_context="{}",
    )
    assert (request.request_id(), request.correlation_id(), request.flags(), request.timeout()) == ("rid", "seq", 3, 9)
    assert request.parameters() == '{"p":1}'
    assert request.requested_output_names() == {"a", "b"}
    assert request.inputs() == [INPUT]
    assert request.trace().get_context() == "{}"


def test_cancellation_is_asked_of_the_host(host: RecordingHost) -> None:
    request = host.request(7)
    assert not request.is_cancelled()
    host.cancelled.add(7)
    assert request.is_cancelled()
    assert request.get_response_sender().is_cancelled()


def test_flags_can_be_changed(host: RecordingHost) -> None:
    request = host.request(7, flags=1)
    request.set_flags(2)
    assert request.flags() == 2
