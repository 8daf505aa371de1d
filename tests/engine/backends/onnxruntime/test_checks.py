"""Every disagreement between a configuration and a graph is a load error with Triton's text
(docs/reference/backends.md#checks-against-the-graph)."""

from __future__ import annotations

from typing import Any

import pytest
from onnx import TensorProto, helper

from trireme.engine.backends.onnxruntime import OnnxRuntimeBackend
from trireme.engine.config.model import BatchInput, ModelConfig, ModelInput, ModelOutput
from trireme.engine.datatypes import BF16, BYTES, FP16, FP32, INT32, INT64
from trireme.engine.errors import InternalError, InvalidArgumentError, UnsupportedError

X = ModelInput("X", FP32, (4,))
Y = ModelOutput("Y", FP32, (4,))


def load(models: Any, inputs: tuple, outputs: tuple, max_batch_size: int = 8, **rest: Any) -> None:
    config = ModelConfig("m", max_batch_size=max_batch_size, input=inputs, output=outputs, **rest)
    OnnxRuntimeBackend({}).load(config, models.files)


def refusal(models: Any, *args: Any, kind: type[Exception] = InvalidArgumentError, **rest: Any) -> str:
    with pytest.raises(kind) as caught:
        load(models, *args, **rest)
    return str(caught.value)


def value(name: str, element: int, shape: Any) -> Any:
    return helper.make_tensor_value_info(name, element, shape)


def test_number_of_inputs(models: Any) -> None:
    models.unary()
    assert refusal(models, (X, ModelInput("Z", FP32, (4,))), (Y,)) == (
        "unable to load model 'm', configuration expects 2 inputs, model provides 1"
    )
    assert refusal(models, (), (Y,)) == "unable to load model 'm', configuration expects 0 inputs, model provides 1"


def test_batch_inputs_count_as_inputs(models: Any) -> None:
    models.unary()
    batch_input = (BatchInput("BATCH_ELEMENT_COUNT", ("COUNT",), INT32, ("X",)),)
    assert refusal(models, (X,), (Y,), batch_input=batch_input) == (
        "unable to load model 'm', configuration expects 2 inputs, model provides 1"
    )


def two_inputs(models: Any, second: str = "B", initializers: Any = ()) -> None:
    models.graph(
        [helper.make_node("Add", ["X", second], ["Y"])],
        [value("X", TensorProto.FLOAT, ["n", 4]), value(second, TensorProto.FLOAT, ["n", 4])],
        [value("Y", TensorProto.FLOAT, ["n", 4])],
        initializers,
    )


def test_unknown_input_lists_the_allowed_ones(models: Any) -> None:
    two_inputs(models)
    assert refusal(models, (X, ModelInput("Z", FP32, (4,))), (Y,)) == (
        "unexpected inference input 'Z', allowed inputs are: B, X"
    )


def test_unknown_target_of_a_batch_input(models: Any) -> None:
    two_inputs(models)
    batch_input = (BatchInput("BATCH_ELEMENT_COUNT", ("COUNT",), INT32, ("X",)),)
    assert refusal(models, (X,), (Y,), batch_input=batch_input) == (
        "unexpected inference input 'COUNT', allowed inputs are: B, X"
    )


def test_type_of_a_batch_input(models: Any) -> None:
    two_inputs(models)
    batch_input = (BatchInput("BATCH_ELEMENT_COUNT", ("B",), INT32, ("X",)),)
    assert refusal(models, (X,), (Y,), batch_input=batch_input) == (
        "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'B', model provides TYPE_FP32"
    )


def test_unknown_output_lists_the_allowed_ones(models: Any) -> None:
    models.unary()
    assert refusal(models, (X,), (ModelOutput("Z", FP32, (4,)),)) == (
        "unexpected inference output 'Z', allowed outputs are: Y"
    )


def test_types(models: Any) -> None:
    models.unary()
    assert refusal(models, (ModelInput("X", FP16, (4,)),), (Y,)) == (
        "unable to load model 'm', configuration expects datatype TYPE_FP16 for input 'X', model provides TYPE_FP32"
    )
    assert refusal(models, (X,), (ModelOutput("Y", BYTES, (4,)),)) == (
        "unable to load model 'm', configuration expects datatype TYPE_STRING for output 'Y', model provides TYPE_FP32"
    )


def test_types_that_requests_cannot_have(models: Any) -> None:
    models.graph(
        [helper.make_node("Cast", ["X"], ["Y"], to=TensorProto.FLOAT8E4M3FN)],
        [value("X", TensorProto.FLOAT, ["n", 4])],
        [value("Y", TensorProto.FLOAT8E4M3FN, ["n", 4])],
    )
    assert refusal(models, (X,), (Y,), kind=InternalError) == (
        "unsupported datatype TYPE_FLOAT8E4M3FN for output 'Y' for model 'm'"
    )


def test_outputs_that_are_no_tensors(models: Any) -> None:
    models.graph(
        [helper.make_node("SplitToSequence", ["X"], ["Y"])],
        [value("X", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_sequence_value_info("Y", TensorProto.FLOAT, None)],
    )
    assert refusal(models, (X,), (Y,), kind=UnsupportedError) == (
        "Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O 'Y', expected 'ONNX_TYPE_TENSOR'."
    )


def test_batching_needs_a_variable_first_dimension(models: Any) -> None:
    models.unary(shape=(2, 4))
    assert refusal(models, (X,), (Y,)) == (
        "model 'm', tensor 'X': for the model to support batching the shape should have at least 1 dimension and the "
        "first dimension must be -1; but shape expected by the model is [2,4]"
    )


def test_batching_needs_a_dimension_at_all(models: Any) -> None:
    models.unary(shape=())
    assert refusal(models, (ModelInput("X", FP32, (1,)),), (Y,)) == (
        "model 'm', tensor 'X': for the model to support batching the shape should have at least 1 dimension and the "
        "first dimension must be -1; but shape expected by the model is []"
    )


@pytest.mark.parametrize(
    ("dims", "count", "complete"), [((5,), 2, "[-1,5]"), ((4, 1), 3, "[-1,4,1]"), ((-1,), 2, "[-1,-1]")]
)
def test_shapes_with_batching(models: Any, dims: tuple[int, ...], count: int, complete: str) -> None:
    models.unary()
    text = (
        f"the model expects 2 dimensions (shape [-1,4]) but the model configuration specifies {count} dimensions (an "
        "initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete "
        f"shape {complete})"
    )
    assert refusal(models, (ModelInput("X", FP32, dims),), (Y,)) == f"model 'm', tensor 'X': {text}"
    assert refusal(models, (X,), (ModelOutput("Y", FP32, dims),)) == f"model 'm', tensor 'Y': {text}"


def test_shapes_without_batching(models: Any) -> None:
    models.unary(shape=(4,))
    assert refusal(models, (ModelInput("X", FP32, (5,)),), (Y,), max_batch_size=0) == (
        "model 'm', tensor 'X': the model expects 1 dimensions (shape [4]) but the model configuration specifies 1 "
        "dimensions (shape [5])"
    )


def test_reshape_is_what_counts_for_the_graph(models: Any) -> None:
    models.unary()
    load(models, (ModelInput("X", FP32, (2, 2), reshape=(4,)),), (ModelOutput("Y", FP32, (2, 2), reshape=(4,)),))


def test_variable_dimensions_of_the_graph_take_any_size(models: Any) -> None:
    models.unary(shape=("n", "a"))
    load(models, (X,), (ModelOutput("Y", FP32, (-1,)),))


def test_scalars_have_only_ones(models: Any) -> None:
    models.unary(shape=())
    one = ModelInput("X", FP32, (1,))
    assert refusal(models, (ModelInput("X", FP32, (1, 2)),), (Y,), max_batch_size=0) == (
        "unable to load model 'm', scalar tensor 'X', should only provide 1 in the model configuration when the model "
        "doesn't support batching. Model configuration provided: [1,2]."
    )
    assert "scalar tensor 'Y'" in refusal(models, (one,), (Y,), max_batch_size=0)


def test_optional_inputs_need_a_model_that_does_not_batch(models: Any) -> None:
    models.unary()
    text = refusal(models, (X, ModelInput("B", FP32, (4,), optional=True)), (Y,))
    assert text == ("unable to load model 'm', optional input 'B' is not supported for models that support batching")


def test_an_input_that_the_graph_always_needs_cannot_be_optional(models: Any) -> None:
    models.unary(shape=(4,))
    text = refusal(models, (ModelInput("X", FP32, (4,), optional=True),), (Y,), max_batch_size=0)
    assert text == "unable to load model 'm', configuration expects 0 inputs, model provides 1"


def test_initialisers_may_be_declared_or_left_out(models: Any) -> None:
    models.graph(
        [helper.make_node("Add", ["X", "B"], ["Y"])],
        [value("X", TensorProto.FLOAT, [4]), value("B", TensorProto.FLOAT, [4])],
        [value("Y", TensorProto.FLOAT, [4])],
        [helper.make_tensor("B", TensorProto.FLOAT, [4], [1, 2, 3, 4])],
    )
    load(models, (X,), (Y,), max_batch_size=0)
    load(models, (X, ModelInput("B", FP32, (4,))), (Y,), max_batch_size=0)
    load(models, (X, ModelInput("B", FP32, (4,), optional=True)), (Y,), max_batch_size=0)
    wrong = ModelInput("B", INT64, (4,), optional=True)
    assert "configuration expects datatype TYPE_INT64 for input 'B'" in refusal(
        models, (X, wrong), (Y,), max_batch_size=0
    )


def test_ragged_inputs_are_flat_in_the_graph(models: Any) -> None:
    models.unary()
    assert refusal(models, (ModelInput("X", FP32, (-1,), allow_ragged_batch=True),), (Y,)) == (
        "unable to load model 'm', configuration expects model provides input with shape [-1]  for ragged input 'X', "
        "model provides [-1,4]"
    )


def test_ragged_inputs_cannot_be_optional(models: Any) -> None:
    two_inputs(models, initializers=[helper.make_tensor("B", TensorProto.FLOAT, [1, 4], [1, 2, 3, 4])])
    ragged = ModelInput("B", FP32, (-1,), allow_ragged_batch=True, optional=True)
    assert refusal(models, (ModelInput("X", FP32, (-1, 4)), ragged), (Y,), max_batch_size=0) == (
        "unable to load model 'm', configuration expects model provides input with shape [-1] for ragged input 'B', "
        "which is not supported for optional input"
    )


def test_strings_in_and_bf16_out_are_beyond_the_runtime(models: Any) -> None:
    models.graph(
        [helper.make_node("Identity", ["X"], ["Z"]), helper.make_node("Cast", ["X"], ["Y"], to=TensorProto.BFLOAT16)],
        [value("X", TensorProto.STRING, ["n", 4])],
        [value("Y", TensorProto.BFLOAT16, ["n", 4])],
    )
    text = refusal(models, (ModelInput("X", BYTES, (4,)),), (ModelOutput("Y", BF16, (4,)),), kind=UnsupportedError)
    assert text == (
        "unable to load model 'm': ONNX Runtime cannot take the TYPE_STRING input 'X' and return the TYPE_BF16 output "
        "'Y' in one run; let the model cast one of them"
    )
