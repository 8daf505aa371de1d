"""Does a model configuration fit the ONNX graph? (backends.md §2)

The order is Triton's: number of inputs; then for each input, in the configuration's order, optional, name, type, shape;
then the same for the outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...config.model import Dims, ModelConfig, ModelInput, ModelOutput
from ...datatypes import BF16, BYTES, DataType
from ...errors import InvalidArgumentError, UnsupportedError
from .signature import GraphTensor, Signature


def check_model(config: ModelConfig, signature: Signature) -> None:
    """Check a complete configuration against the graph.

    Raises:
        TriremeError: the first thing found that does not fit.
    """
    _check_input_count(config, signature)
    for tensor in config.input:
        _check_input(config, signature, tensor)
    for spec in config.batch_input:
        for name in spec.target_names:
            target = signature.find_input(name) or _unexpected("input", name, _input_names(signature))
            _check_type(config, target, "input", spec.datatype)
    for tensor in config.output:
        _check_output(config, signature, tensor)
    _check_together(config)


def _check_input_count(config: ModelConfig, signature: Signature) -> None:
    # An optional input, and one with a value of its own, need not be among the inputs that every run needs.
    needed = [tensor for tensor in config.input if not tensor.optional and tensor.name not in signature.initializers]
    expected = len(needed) + sum(len(spec.target_names) for spec in config.batch_input)
    if expected != len(signature.inputs):
        raise InvalidArgumentError(
            f"unable to load model '{config.name}', configuration expects {expected} inputs, model provides "
            f"{len(signature.inputs)}"
        )


def _check_input(config: ModelConfig, signature: Signature, tensor: ModelInput) -> None:
    if tensor.optional and config.max_batch_size > 0:
        raise InvalidArgumentError(
            f"unable to load model '{config.name}', optional input '{tensor.name}' is not supported for models that "
            "support batching"
        )
    graph = signature.find_input(tensor.name) or _unexpected("input", tensor.name, _input_names(signature))
    _check_type(config, graph, "input", tensor.datatype)
    if not tensor.allow_ragged_batch:
        _check_dims(config, graph, tensor)
        return
    expects = f"unable to load model '{config.name}', configuration expects model provides input with shape [-1] "
    if tensor.optional:
        raise InvalidArgumentError(
            f"{expects}for ragged input '{tensor.name}', which is not supported for optional input"
        )
    if graph.dims != (-1,):
        raise InvalidArgumentError(
            f"{expects} for ragged input '{tensor.name}', model provides {shape_text(graph.dims)}"
        )


def _check_output(config: ModelConfig, signature: Signature, tensor: ModelOutput) -> None:
    graph = signature.outputs.get(tensor.name) or _unexpected("output", tensor.name, signature.outputs)
    _check_type(config, graph, "output", tensor.datatype)
    if not any(tensor.name in spec.target_names for spec in config.batch_output):
        _check_dims(config, graph, tensor)


def _check_type(config: ModelConfig, graph: GraphTensor, role: str, datatype: DataType) -> None:
    provided = graph.datatype(role, config.name)
    if provided is not datatype:
        raise InvalidArgumentError(
            f"unable to load model '{config.name}', configuration expects datatype {datatype.config_name} for {role} "
            f"'{graph.name}', model provides {provided.config_name}"
        )


def _check_dims(config: ModelConfig, graph: GraphTensor, tensor: ModelInput | ModelOutput) -> None:
    dims = tensor.dims if tensor.reshape is None else tensor.reshape
    subject = f"model '{config.name}', tensor '{graph.name}': "
    if config.max_batch_size > 0:
        if graph.dims[:1] != (-1,):
            raise InvalidArgumentError(
                f"{subject}for the model to support batching the shape should have at least 1 dimension and the first "
                f"dimension must be -1; but shape expected by the model is {shape_text(graph.dims)}"
            )
        complete = (-1, *dims)
        if not _fits(graph.dims, complete):
            raise InvalidArgumentError(
                f"{subject}{_expects(graph, complete)} (an initial batch dimension because max_batch_size > 0 followed "
                f"by the explicit tensor shape, making complete shape {shape_text(complete)})"
            )
    elif not graph.dims:
        if any(dim != 1 for dim in dims):
            raise InvalidArgumentError(
                f"unable to load model '{config.name}', scalar tensor '{graph.name}', should only provide 1 in the "
                "model configuration when the model doesn't support batching. Model configuration provided: "
                f"{shape_text(dims)}."
            )
    elif not _fits(graph.dims, dims):
        raise InvalidArgumentError(f"{subject}{_expects(graph, dims)} (shape {shape_text(dims)})")


def _fits(graph: Dims, dims: Dims) -> bool:
    return len(graph) == len(dims) and all(mine in (-1, yours) for mine, yours in zip(graph, dims, strict=True))


def _expects(graph: GraphTensor, dims: Dims) -> str:
    return (
        f"the model expects {len(graph.dims)} dimensions (shape {shape_text(graph.dims)}) but the model configuration "
        f"specifies {len(dims)} dimensions"
    )


def _check_together(config: ModelConfig) -> None:
    """onnxruntime's Python interface has BF16 outputs only through I/O binding, which has no strings."""
    output = next((tensor.name for tensor in config.output if tensor.datatype is BF16), None)
    text = next((tensor.name for tensor in config.input if tensor.datatype is BYTES), None)
    if output is not None and text is not None:
        raise UnsupportedError(
            f"unable to load model '{config.name}': ONNX Runtime cannot take the TYPE_STRING input '{text}' and return "
            f"the TYPE_BF16 output '{output}' in one run; let the model cast one of them"
        )


def _unexpected(role: str, name: str, allowed: Iterable[str]) -> GraphTensor:
    raise InvalidArgumentError(
        f"unexpected inference {role} '{name}', allowed {role}s are: {', '.join(sorted(allowed))}"
    )


def _input_names(signature: Signature) -> Mapping[str, GraphTensor]:
    return {**signature.inputs, **signature.initializers}


def shape_text(dims: Dims) -> str:
    """``[a,b]``, as all texts about shapes print them."""
    return f"[{','.join(str(dim) for dim in dims)}]"
