"""What an ONNX file adds to a configuration (docs/reference/model-configuration.md#completion-by-backends)."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from onnx import TensorProto, helper

from trireme.engine.backends.interface import Completion
from trireme.engine.backends.onnxruntime import OnnxRuntimeBackend
from trireme.engine.config.model import BatchInput, ModelConfig, ModelInput, ModelOutput
from trireme.engine.datatypes import BYTES, FP32, INT32
from trireme.engine.errors import InternalError, InvalidArgumentError, UnavailableError

X = ModelInput("X", FP32, (4,))
Y = ModelOutput("Y", FP32, (4,))


def complete(models: Any, options: dict[str, str] | None = None, **fields: Any) -> Completion | None:
    return OnnxRuntimeBackend(options or {}).auto_complete(ModelConfig("m", **fields), models.files)


def test_a_model_that_can_batch(models: Any, caplog: pytest.LogCaptureFixture) -> None:
    models.unary()
    assert complete(models) == Completion(4, (X,), (Y,), dynamic_batching=True)
    (message,) = caplog.messages
    assert message == (
        "autofilled max_batch_size to 4 for model 'm' since batching is supporrted but no max_batch_size is specified "
        "in model configuration. Must specify max_batch_size to utilize autofill with a larger max batch size"
    )


@pytest.mark.parametrize(("default", "size"), [("16", 16), ("1", 1), ("0", 0), ("-3", 0)])
def test_the_default_batch_size_is_a_backend_option(models: Any, default: str, size: int) -> None:
    models.unary()
    completion = complete(models, {"default-max-batch-size": default})
    assert completion is not None
    assert completion.max_batch_size == size
    assert completion.dynamic_batching == (size > 1)
    assert completion.input[0].dims == ((4,) if size else (-1, 4))


def test_a_given_batch_size_stays(models: Any) -> None:
    models.unary()
    assert complete(models, max_batch_size=32) == Completion(32, (X,), (Y,), dynamic_batching=True)


def test_a_model_that_cannot_batch(models: Any) -> None:
    models.unary(shape=(2, "a"), datatype="BYTES")
    assert complete(models) == Completion(0, (ModelInput("X", BYTES, (2, -1)),), (ModelOutput("Y", BYTES, (2, -1)),))


def test_every_tensor_must_have_a_variable_first_dimension(models: Any) -> None:
    models.unary("ReduceSum", output_shape=(), keepdims=0)
    completion = complete(models)
    assert completion is not None
    assert completion.max_batch_size == 0
    assert completion.input == (ModelInput("X", FP32, (-1, 4)),)
    assert completion.output == (ModelOutput("Y", FP32, (1,)),)


def test_a_batch_size_on_a_model_that_cannot_batch(models: Any) -> None:
    models.unary(shape=(2, 4))
    with pytest.raises(InvalidArgumentError) as caught:
        complete(models, max_batch_size=2)
    assert caught.value.message == (
        "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified"
    )


def test_a_tensor_that_is_only_a_batch_dimension_is_reshaped(models: Any) -> None:
    models.unary(shape=("n",))
    completion = complete(models)
    assert completion is not None
    assert completion.input == (ModelInput("X", FP32, (1,), reshape=()),)
    assert completion.output == (ModelOutput("Y", FP32, (1,), reshape=()),)


def test_only_what_is_missing_is_filled(models: Any) -> None:
    models.unary()
    given = ModelInput("X", FP32, (-1,))
    assert complete(models, input=(given,)) == Completion(4, (), (Y,), dynamic_batching=True)
    assert complete(models, output=(Y,)) == Completion(4, (X,), (), dynamic_batching=True)
    batch_input = (BatchInput("BATCH_ELEMENT_COUNT", ("N",), INT32, ("X",)),)
    assert complete(models, batch_input=batch_input) == Completion(4, (), (Y,), dynamic_batching=True)


def test_a_complete_configuration_is_left_alone_without_opening_the_file(
    models: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert complete(models, input=(X,), output=(Y,)) is None
    assert caplog.messages == [
        "skipping model configuration auto-complete for 'm': inputs and outputs already specified"
    ]


def test_initialisers_are_not_inputs_that_clients_must_send(models: Any) -> None:
    models.graph(
        [helper.make_node("Add", ["X", "B"], ["Y"])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "XB"],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [2])],
        [helper.make_tensor("B", TensorProto.FLOAT, [2], [1, 2])],
    )
    completion = complete(models)
    assert completion is not None
    assert [tensor.name for tensor in completion.input] == ["X"]


def test_a_type_that_requests_cannot_have(models: Any) -> None:
    models.graph(
        [helper.make_node("Cast", ["X"], ["Y"], to=TensorProto.FLOAT8E5M2)],
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT8E5M2, ["n", 4])],
    )
    with pytest.raises(InternalError, match="unsupported datatype TYPE_FLOAT8E5M2 for output 'Y' for model 'm'"):
        complete(models)


def test_a_missing_file(models: Any) -> None:
    with pytest.raises(UnavailableError) as caught:
        complete(models)
    assert caught.value.message == f"unable to find '{models.path}' for model instance 'm'"
