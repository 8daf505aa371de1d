"""What a model's file says about its inputs and outputs, whatever the framework; whether a configuration fits it, and
what it adds to one that is incomplete."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..config.model import Dims, ModelConfig, ModelInput, ModelOutput
from ..config.sequence import ImplicitState, SequenceBatching, SequenceControl, sequence_batching
from ..datatypes import DataType
from ..errors import InternalError, InvalidArgumentError
from .interface import Completion

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """One input or output.

    Attributes:
        element: the element type in the framework's spelling, upper case (``FLOAT``).
        known: what Trireme calls it; None if it has no such type, or the framework may not have it.
        dims: -1 for a dimension of any size; empty for a scalar.
        any_rank: the graph does not say how many dimensions there are; `dims` is empty.
    """

    name: str
    element: str
    known: DataType | None
    dims: Dims
    any_rank: bool = False

    @property
    def config_type(self) -> str:
        """The element type in a model configuration's spelling, also of types that configurations do not have."""
        return self.known.config_name if self.known else f"TYPE_{self.element}"

    def datatype(self, role: str, model_name: str) -> DataType:
        """The element type.

        Args:
            role: ``input`` or ``output``.

        Raises:
            InternalError: there is no such type in Trireme.
        """
        if self.known is None:
            raise InternalError(
                f"unsupported datatype {self.config_type} for {role} '{self.name}' for model '{model_name}'"
            )
        return self.known


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of a model, by name, in its order.

    Attributes:
        inputs: those that every run needs.
        initializers: inputs that have a value of their own unless a run brings another one.
    """

    inputs: Mapping[str, GraphTensor]
    outputs: Mapping[str, GraphTensor]
    initializers: Mapping[str, GraphTensor] = field(default_factory=dict)

    @property
    def all_inputs(self) -> Mapping[str, GraphTensor]:
        return {**self.inputs, **self.initializers}

    @property
    def scalars(self) -> frozenset[str]:
        """Names of the inputs that are scalars."""
        return frozenset(name for name, each in self.all_inputs.items() if not each.dims and not each.any_rank)


def fed_types(config: ModelConfig, sequences: SequenceBatching) -> dict[str, DataType]:
    """All that a model is given, by name: inputs of requests, batch inputs, controls and states of sequences."""
    types = {tensor.name: tensor.datatype for tensor in config.input}
    types |= {name: spec.datatype for spec in config.batch_input for name in spec.target_names}
    types |= {control.name: control.datatype for control in sequences.controls}
    return types | {state.input_name: state.datatype for state in sequences.states}


# Does a model configuration fit the model's graph? (docs/reference/backends.md#checks-against-the-graph)
#
# The order is Triton's: the sequence controls; number of inputs; then for each input, in the configuration's order,
# optional, name, type, shape; then the same for the outputs; then the implicit states.


def check_model(
    config: ModelConfig, signature: Signature, sequences: SequenceBatching, *, every_input: bool = True
) -> None:
    """Check a complete configuration against the graph.

    Args:
        sequences: what the configuration says about sequences; an empty one if it says nothing.
        every_input: of the graph must be configured; else any number of them will do.

    Raises:
        TriremeError: the first thing found that does not fit.
    """
    for control in sequences.controls:
        _check_control(config, signature, control)
    if every_input:
        _check_input_count(config, signature, sequences)
    for tensor in config.input:
        _check_input(config, signature, tensor)
    for spec in config.batch_input:
        for name in spec.target_names:
            _check_type(config, find_tensor("input", name, signature.all_inputs), "input", spec.datatype)
    for tensor in config.output:
        _check_output(config, signature, tensor)
    for state in sequences.states:
        _check_state(config, signature, state)


def _check_control(config: ModelConfig, signature: Signature, control: SequenceControl) -> None:
    graph = signature.all_inputs.get(control.name)
    if graph is None:
        raise InternalError(
            f"configuration specified sequence control '{control.name}', but model does not provide that input"
        )
    subject = f"unable to load model '{config.name}', sequence control '{control.name}'"
    dims = graph.dims[1:] if config.max_batch_size > 0 else graph.dims
    if dims != (1,):
        raise InvalidArgumentError(f"{subject} in model has dims {shape_text(dims)} but dims [1] is expected")
    if graph.datatype("input", config.name) is not control.datatype:
        raise InvalidArgumentError(
            f"{subject}, the model expects data-type {graph.element} but the model configuration specifies data-type "
            f"{control.datatype.config_name}"
        )


def _check_input_count(config: ModelConfig, signature: Signature, sequences: SequenceBatching) -> None:
    # An optional input, and one with a value of its own, need not be among the inputs that every run needs.
    names = [tensor.name for tensor in config.input if not tensor.optional]
    names += [control.name for control in sequences.controls]
    names += [state.input_name for state in sequences.states]
    needed = [name for name in names if name not in signature.initializers]
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
    graph = find_tensor("input", tensor.name, signature.all_inputs)
    _check_type(config, graph, "input", tensor.datatype)
    if not tensor.allow_ragged_batch:
        _check_dims(config, graph, tensor.inner_dims)
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
    graph = find_tensor("output", tensor.name, signature.outputs)
    _check_type(config, graph, "output", tensor.datatype)
    if not any(tensor.name in spec.target_names for spec in config.batch_output):
        _check_dims(config, graph, tensor.inner_dims)


def _check_state(config: ModelConfig, signature: Signature, state: ImplicitState) -> None:
    """Types of both ends, and whether what the configuration says of the shape can go in. The shape that comes out is
    up to the model: it is the next request's input (docs/reference/sequences.md#implicit-state)."""
    taken = find_tensor("input", state.input_name, signature.all_inputs)
    given = find_tensor("output", state.output_name, signature.outputs)
    _check_type(config, taken, "input state", state.datatype)
    _check_type(config, given, "output state", state.datatype)
    declared = state.initial[0].dims if state.initial else state.dims
    fixed = taken.dims[1:] if config.max_batch_size > 0 else taken.dims
    if len(fixed) == len(declared):
        declared = tuple(mine if dim == -1 else dim for dim, mine in zip(declared, fixed, strict=True))
    _check_dims(config, taken, declared)


def _check_type(config: ModelConfig, graph: GraphTensor, role: str, datatype: DataType) -> None:
    provided = graph.datatype(role, config.name)
    if provided is not datatype:
        raise InvalidArgumentError(
            f"unable to load model '{config.name}', configuration expects datatype {datatype.config_name} for {role} "
            f"'{graph.name}', model provides {provided.config_name}"
        )


def _check_dims(config: ModelConfig, graph: GraphTensor, dims: Dims) -> None:
    if graph.any_rank:
        return
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


def find_tensor(role: str, name: str, allowed: Mapping[str, GraphTensor]) -> GraphTensor:
    """An input or output of the graph.

    Raises:
        InvalidArgumentError: it has none of that name.
    """
    if name not in allowed:
        raise InvalidArgumentError(
            f"unexpected inference {role} '{name}', allowed {role}s are: {', '.join(sorted(allowed))}"
        )
    return allowed[name]


def shape_text(dims: Dims) -> str:
    """``[a,b]``, as all texts about shapes print them."""
    return f"[{','.join(str(dim) for dim in dims)}]"


# What a model's signature adds to an incomplete configuration
# (docs/reference/model-configuration.md#completion-by-backends).


_log = logging.getLogger(__name__)


def needs_completion(config: ModelConfig) -> bool:
    """Whether a configuration leaves inputs or outputs open; says so in the log if not."""
    if (config.input or config.batch_input) and config.output:
        _log.info(
            "skipping model configuration auto-complete for '%s': inputs and outputs already specified", config.name
        )
        return False
    return True


def complete(config: ModelConfig, signature: Signature, default_max_batch_size: int) -> Completion:
    """Fill in what is open: inputs, outputs, the batch size, and with it a dynamic batcher.

    Args:
        default_max_batch_size: for models that can batch, and whose configuration does not say how much.

    Raises:
        InvalidArgumentError: the configuration wants batches, and the model cannot.
    """
    max_batch_size = _max_batch_size(config, signature, default_max_batch_size)
    of_server = _server_tensors(config)
    inputs = outputs = ()
    if not (config.input or config.batch_input):
        inputs = completed(ModelInput, signature.inputs.values(), config.name, max_batch_size, of_server)
    if not config.output:
        outputs = completed(ModelOutput, signature.outputs.values(), config.name, max_batch_size, of_server)
    return Completion(max_batch_size, inputs, outputs, dynamic_batching=max_batch_size > 1)


def _max_batch_size(config: ModelConfig, signature: Signature, default_max_batch_size: int) -> int:
    tensors = (*signature.inputs.values(), *signature.outputs.values())
    if any(tensor.dims[:1] != (-1,) for tensor in tensors):
        if config.max_batch_size != 0:
            raise InvalidArgumentError(
                f"autofill failed for model '{config.name}': model does not support batching while non-zero "
                "max_batch_size is specified"
            )
        return 0
    if config.max_batch_size != 0:
        return config.max_batch_size
    _log.warning(
        "autofilled max_batch_size to %d for model '%s' since batching is supporrted but no max_batch_size is "
        "specified in model configuration. Must specify max_batch_size to utilize autofill with a larger max batch "
        "size",
        default_max_batch_size,
        config.name,
    )
    return default_max_batch_size


def _server_tensors(config: ModelConfig) -> frozenset[str]:
    """Names of tensors that are between the server and the model: clients neither send nor get them."""
    sequences = sequence_batching(config) or SequenceBatching()
    states = [name for state in sequences.states for name in (state.input_name, state.output_name)]
    return frozenset([*states, *(control.name for control in sequences.controls)])


def completed(
    kind: Callable[..., T],
    tensors: Iterable[GraphTensor],
    model_name: str,
    max_batch_size: int,
    left_out: Collection[str],
    shape_tensors: Collection[str] = (),
) -> tuple[T, ...]:
    """A graph's inputs as `ModelInput`, or outputs as `ModelOutput`, but for those that are left out.

    Raises:
        InternalError: one is of a type that Trireme has not got.
    """
    made = []
    for tensor in tensors:
        if tensor.name in left_out:
            continue
        datatype = tensor.datatype("input" if kind is ModelInput else "output", model_name)
        dims = tensor.dims[1:] if max_batch_size > 0 else tensor.dims
        fields: dict[str, Any] = {} if dims or max_batch_size == 0 else {"reshape": ()}
        if tensor.name in shape_tensors:
            dims = tuple(dim - 1 for dim in tensor.dims) if max_batch_size > 0 else tensor.dims
            fields = {"is_shape_tensor": True}
        made.append(kind(name=tensor.name, datatype=datatype, dims=dims or (1,), **fields))
    return tuple(made)
