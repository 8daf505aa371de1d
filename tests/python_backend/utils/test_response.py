"""`InferenceResponse` and `TritonError`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trireme.python_backend.child.utils.errors import ErrorCode, TritonError, TritonModelException
from trireme.python_backend.child.utils.response import InferenceResponse
from trireme.python_backend.child.utils.tensor import Tensor

OUTPUT = Tensor("O", np.zeros(1))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([None],), "Output tensor for inference response should not be empty."),
        (([], None, {"a": 1.5}), "Expect parameters values to have type bool/int/str, found type <class 'float'>"),
        (([], None, {1: 1}), "Expect parameters keys to have type str, found type <class 'int'>"),
    ],
)
def test_bad_arguments_are_told_in_tritons_words(arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(TritonModelException) as caught:
        InferenceResponse(*arguments)
    assert str(caught.value) == text


@pytest.mark.parametrize("arguments", [([5],), (None,), ([], "x")])
def test_other_objects_are_a_type_error(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        InferenceResponse(*arguments)


def test_response_with_an_error_may_have_outputs_too() -> None:
    response = InferenceResponse([OUTPUT], TritonError("x", TritonError.NOT_FOUND))
    error = response.error()
    assert response.has_error()
    assert error is not None
    assert (error.message(), error.code(), error.code().name) == ("x", ErrorCode.NOT_FOUND, "NOT_FOUND")
    assert response.output_tensors() == [OUTPUT]


def test_empty_response() -> None:
    response = InferenceResponse()
    assert (response.output_tensors(), response.has_error(), response.error()) == ([], False, None)
    assert response.parameters() == "{}"


def test_parameters_are_json_text() -> None:
    parameters = {"a": True, "b": 2, "c": "text"}
    text = InferenceResponse([OUTPUT], parameters=parameters).parameters()
    assert text == '{"a": true, "b": 2, "c": "text"}'


def test_outputs_that_were_not_requested_are_left_out_of_a_copy() -> None:
    other = Tensor("P", np.zeros(1))
    response = InferenceResponse([OUTPUT, other], parameters={"a": 1})
    pruned = response._only({"P"})
    assert pruned.output_tensors() == [other]
    assert pruned.parameters() == response.parameters()
    assert response.output_tensors() == [OUTPUT, other]
    assert response._only({"O", "P", "Q"}) is response


def test_error_codes_are_numbered_as_in_triton() -> None:
    names = ["UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS"]
    assert [getattr(TritonError, name) for name in [*names, "CANCELLED"]] == list(range(8))
    assert TritonError("x").code() is ErrorCode.INTERNAL


@pytest.mark.parametrize(("arguments", "error"), [((5,), TypeError), (("x", 99), ValueError)])
def test_errors_need_a_text_and_a_known_code(arguments: tuple[Any, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        TritonError(*arguments)
