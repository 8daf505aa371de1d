"""The backend ``tensorrt``: how plans are read, checked, and shared by instances (docs/reference/backends.md#tensorrt).

Written after TensorRT's reference (10.13 to 11.4) and tested against a stand-in for it; no GPU has seen it yet.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

from ...config.model import Dims, ModelConfig, ModelInput, ModelOutput
from ...config.sequence import SequenceBatching
from ...datatypes import DataType
from ...errors import InternalError, InvalidArgumentError
from ..framework import FrameworkBackend, FrameworkModel, find_file
from ..interface import Completion, InstanceSpec, ModelFiles
from ..parameters import parse_bool
from ..signature import GraphTensor, completed, fed_types, find_tensor, shape_text
from .instance import TensorRtInstance
from .library import (
    TYPES,
    Engine,
    EngineTensors,
    Library,
    OptimizationProfile,
    allocation_strategy,
    chosen_profiles,
    import_library,
    read_plan,
    wrong_config_dims,
)

_POLICIES = ("DEVICE_BLOCKING", "BLOCKING")


class TensorRtBackend(FrameworkBackend):
    """Runs TensorRT's plans on GPUs.

    Options: ``plugins``; ``version-compatible`` (false), whether plans may bring the code of the TensorRT version that
    made them. ``coalesce-request-input`` and ``execution-policy`` are checked, and change nothing: inputs are joined in
    pinned memory whatever they say, and every instance has a thread.
    """

    name = "tensorrt"

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        parse_bool(options.get("coalesce-request-input", "false"))
        policy = options.get("execution-policy", _POLICIES[0])
        if policy not in _POLICIES:
            raise InvalidArgumentError(f"execution-policy must be {' or '.join(_POLICIES)}, not '{policy}'")
        self._plugins = tuple(path for path in options.get("plugins", "").split(";") if path)
        self._version_compatible = parse_bool(options.get("version-compatible", "false"))

    def auto_complete(self, config: ModelConfig, files: ModelFiles) -> Completion | None:
        groups = config.instance_group
        if not groups or groups[0].kind != "KIND_GPU":
            return None  # it cannot be loaded, and `load` says why
        spec = InstanceSpec(config.name, "KIND_GPU", groups[0].gpus[0])
        return complete_from_engine(config, self.read(config, files, spec).tensors)

    def uses_gpus(self) -> bool:
        return True

    def load(self, config: ModelConfig, files: ModelFiles) -> TensorRtModel:
        return TensorRtModel(self, config, files)

    def import_library(self) -> Library:
        return import_library(self._plugins)

    def read(self, config: ModelConfig, files: ModelFiles, spec: InstanceSpec) -> Engine:
        """The plan of an instance, in the memory of its device. Raises `TriremeError`: it cannot be read."""
        path = find_file(config, files, spec, "model.plan", name=spec.name)
        library, device = self.library, self.services.gpus.get(spec.device_id)
        return read_plan(library, device, path, model=config.name, version_compatible=self._version_compatible)


class TensorRtModel(FrameworkModel[Engine]):
    """A model whose configuration fits its plan: that of the first device; those of the others are read, and checked,
    when the first instance is made there.
    """

    def __init__(self, backend: TensorRtBackend, config: ModelConfig, files: ModelFiles) -> None:
        self._strategy = allocation_strategy(config)
        for group in config.instance_group:
            if group.kind != "KIND_GPU":
                raise InvalidArgumentError(
                    f"unable to load model '{config.name}', TensorRT backend supports only GPU device"
                )
        super().__init__(config, files, share=math.inf)
        self._backend = backend
        for group in config.instance_group[:1]:
            self.program(InstanceSpec(f"{group.name}_0", group.kind, group.gpus[0]))

    def instance_class(self, spec: InstanceSpec) -> type[TensorRtInstance]:
        return TensorRtInstance

    def create_instance(self, spec: InstanceSpec) -> TensorRtInstance:
        engine = self.program(spec)
        group_name = spec.name.rpartition("_")[0]
        names = next((group.profile for group in self.config.instance_group if group.name == group_name), ())
        profiles = chosen_profiles(engine.tensors, names, spec.name)
        check_profiles(self.config, profiles)
        library = self._backend.library
        return TensorRtInstance(library, self.config, spec.name, self.tensors, engine, profiles, self._strategy)

    def make(self, spec: InstanceSpec) -> Engine:
        engine = self._backend.read(self.config, self.files, spec)
        check_engine(self.config, engine.tensors, self.tensors.sequences)
        self.tensors.scalars = engine.tensors.signature.scalars
        return engine


# Does a model configuration fit an engine? (docs/reference/backends.md#tensorrt)
#
# The order is Triton's: number and names of the inputs, names of the outputs, types that TensorRT has, shape tensors
# that are marked as such; then types and shapes, one by one; then whether anything of the engine has been left out.


def check_engine(config: ModelConfig, tensors: EngineTensors, sequences: SequenceBatching) -> None:
    """Check a complete configuration against an engine.

    Args:
        sequences: what the configuration says about sequences; an empty one if it says nothing.

    Raises:
        TriremeError: the first thing found that does not fit.
    """
    signature = tensors.signature
    if len(signature.inputs) < len(config.input):
        raise InvalidArgumentError(
            f"unable to load model '{config.name}', configuration expects {len(config.input)} inputs, model provides "
            f"at most {len(signature.inputs)}"
        )
    for tensor in config.input:
        find_tensor("input", tensor.name, signature.inputs)
    for tensor in config.output:
        find_tensor("output", tensor.name, signature.outputs)
    for role, described in (("input", config.input), ("output", config.output)):
        for tensor in described:
            _check_kind(config, tensors, role, tensor)
    scattered = frozenset(name for spec in config.batch_output for name in spec.target_names)
    for tensor in config.input:
        graph = signature.inputs[tensor.name]
        _check_type(config, graph, "input", tensor.datatype)
        if not tensor.allow_ragged_batch:
            _check_dims(config, tensors, graph, tensor.inner_dims)
        elif len(graph.dims) != 1:
            raise InvalidArgumentError(
                f"model '{config.name}', tensor '{tensor.name}': for the model to support ragged input, the engine "
                f"shape is: {shape_text(graph.dims)} while the model config shape is: {shape_text(tensor.dims)}"
            )
    for tensor in config.output:
        graph = signature.outputs[tensor.name]
        _check_type(config, graph, "output", tensor.datatype)
        if tensor.name not in scattered:
            _check_dims(config, tensors, graph, tensor.inner_dims)
    _check_server_tensors(config, tensors, sequences)
    _check_complete(config, tensors, sequences)


def check_profiles(config: ModelConfig, profiles: Sequence[OptimizationProfile]) -> None:
    """Check that a configuration fixes no dimension that a profile has not.

    Raises:
        InvalidArgumentError: it does.
    """
    for profile in profiles:
        for tensor in config.input:
            if tensor.allow_ragged_batch or tensor.name in profile.values:
                continue
            dims = _complete(config, tensor.inner_dims)
            wrong = wrong_config_dims(dims, profile.shapes[tensor.name])
            if wrong:
                raise InvalidArgumentError(
                    f"model configuration specified invalid shape for input '{tensor.name}' for model {config.name}. "
                    f"Error details: {wrong}"
                )


def _check_kind(config: ModelConfig, tensors: EngineTensors, role: str, tensor: ModelInput | ModelOutput) -> None:
    if tensor.datatype not in TYPES.values():
        raise InternalError(
            f"unsupported datatype {tensor.datatype.config_name} for {role} '{tensor.name}' for model '{config.name}'"
        )
    if tensor.name in tensors.shape_tensors and not tensor.is_shape_tensor:
        raise InternalError(
            f"{role} '{tensor.name}' for model '{config.name}' is a shape tensor but the model configuration doesn't "
            "mark it as a shape tensor."
        )
    if tensor.is_shape_tensor and tensor.name not in tensors.shape_tensors:
        raise InternalError(
            f"{role} '{tensor.name}' for model '{config.name}' is incorrectly marked as a shape tensor in the model "
            "configuration."
        )


def _check_type(config: ModelConfig, graph: GraphTensor, role: str, datatype: DataType) -> None:
    if graph.datatype(role, config.name) is not datatype:
        raise InvalidArgumentError(
            f"unexpected datatype {graph.config_type} for inference {role} '{graph.name}', expecting "
            f"{datatype.config_name} for {config.name}"
        )


def _check_dims(config: ModelConfig, tensors: EngineTensors, graph: GraphTensor, dims: Dims) -> None:
    if graph.name in tensors.shape_tensors:
        if len(graph.dims) > 1:
            raise InternalError(
                f"unable to load model '{config.name}', shape binding '{graph.name}' can only be 0-d or 1-D tensor, "
                f"got {shape_text(graph.dims)}"
            )
        # A batch adds a value to a shape tensor, not a dimension. A scalar has a shape in the configuration only.
        if config.max_batch_size > 0:
            fits = len(dims) == 1 and (dims[0] + 1,) == graph.dims
        else:
            fits = dims == (graph.dims or (1,))
    elif not graph.dims and config.max_batch_size == 0:
        fits = all(dim == 1 for dim in dims)
    else:
        dims = _complete(config, dims)
        fits = len(graph.dims) == len(dims) and all(
            -1 in pair or pair[0] == pair[1] for pair in zip(graph.dims, dims, strict=True)
        )
    if not fits:
        raise InternalError(
            f"unable to load model '{config.name}', binding '{graph.name}' shape expected by framework "
            f"{shape_text(graph.dims)} doesn't match model configuration shape {shape_text(dims)}"
        )


def _check_server_tensors(config: ModelConfig, tensors: EngineTensors, sequences: SequenceBatching) -> None:
    """Batch inputs, controls and states: what clients do not send."""
    inputs = tensors.signature.inputs
    for spec in config.batch_input:
        for name in spec.target_names:
            _check_type(config, find_tensor("input", name, inputs), "input", spec.datatype)
    for control in sequences.controls:
        taken = find_tensor("input", control.name, inputs)
        _check_type(config, taken, "input", control.datatype)
        _check_dims(config, tensors, taken, (1,))
    for state in sequences.states:
        taken = find_tensor("input", state.input_name, inputs)
        given = find_tensor("output", state.output_name, tensors.signature.outputs)
        _check_type(config, taken, "input", state.datatype)
        _check_type(config, given, "output", state.datatype)
        _check_dims(config, tensors, taken, state.dims)


def _check_complete(config: ModelConfig, tensors: EngineTensors, sequences: SequenceBatching) -> None:
    """An engine computes with all of its inputs, and writes all of its outputs."""
    outputs = [tensor.name for tensor in config.output] + [state.output_name for state in sequences.states]
    for role, needed, given in (
        ("input", tensors.signature.inputs, fed_types(config, sequences)),
        ("output", tensors.signature.outputs, outputs),
    ):
        for name in needed:
            if name not in given:
                raise InvalidArgumentError(f"expected configuration for {role} '{name}' for {config.name}")
    optional = next((tensor.name for tensor in config.input if tensor.optional), None)
    if optional is not None:
        raise InvalidArgumentError(
            f"unable to load model '{config.name}', optional input '{optional}' is not supported by TensorRT, whose "
            "engines need every input"
        )


def _complete(config: ModelConfig, dims: Dims) -> Dims:
    return (-1, *dims) if config.max_batch_size > 0 else dims


# -- What an engine adds to an incomplete configuration (docs/reference/model-configuration.md#completion-by-backends)


_log = logging.getLogger(__name__)


def complete_from_engine(config: ModelConfig, tensors: EngineTensors) -> Completion:
    """The largest batch that the profiles allow, inputs and outputs where none are given, and a dynamic batcher.

    Whether the first dimension is the batch is seen from the ranks of those inputs and outputs that are given. Where
    none are, it is.

    Raises:
        InternalError: the configuration wants larger batches, or contradicts itself or the engine.
    """
    largest = _largest_batch(config, tensors)
    batches = _wants_batches(config, tensors)
    if batches and largest == 0:
        raise InternalError(
            f"autofill failed for model '{config.name}': model tensor shape configuration hints for dynamic batching "
            "but the underlying engine doesn't support batching."
        )
    if batches is False:
        _log.warning("The specified dimensions in model config for %s hints that batching is unavailable", config.name)
        largest = 0
    if config.max_batch_size > largest:
        raise InternalError(
            f"autofill failed for model '{config.name}': configuration specified max-batch {config.max_batch_size} but "
            f"TensorRT engine only supports max-batch {largest}"
        )
    max_batch_size = config.max_batch_size or largest
    generated = frozenset(name for spec in config.batch_input for name in spec.target_names)
    signature, shaped = tensors.signature, tensors.shape_tensors
    inputs = outputs = ()
    if not config.input:
        inputs = completed(ModelInput, signature.inputs.values(), config.name, max_batch_size, generated, shaped)
    if not config.output:
        outputs = completed(ModelOutput, signature.outputs.values(), config.name, max_batch_size, (), shaped)
    return Completion(max_batch_size, inputs, outputs, dynamic_batching=largest > 1)


def _largest_batch(config: ModelConfig, tensors: EngineTensors) -> int:
    """The largest batch of the profiles in use: what all inputs of one allow. 0 if an input has no dimension for it."""
    names = {name for group in config.instance_group for name in group.profile} or {"0"}
    most = 0
    for name in sorted(names):
        index = int(name)
        if index >= len(tensors.shapes):
            raise InternalError(
                f"unable to autofill for '{config.name}', configuration specified invalid profile {name} . Number of "
                f"profiles supported by TensorRT engine: {len(tensors.shapes)}"
            )
        values = tensors.values[index]
        first = [
            (values[tensor].maximum if tensor in values else shape.maximum)[:1]
            for tensor, shape in tensors.shapes[index].items()
        ]
        most = max(most, min((dims[0] if dims else 0 for dims in first), default=0))
    return most


def _wants_batches(config: ModelConfig, tensors: EngineTensors) -> bool | None:
    """Whether what the configuration gives of inputs and outputs has a dimension less than the engine; None if it gives
    nothing."""
    if any(tensor.allow_ragged_batch for tensor in config.input):
        return True
    known = {**tensors.signature.inputs, **tensors.signature.outputs}
    hints: list[bool] = []
    for tensor in (*config.input, *config.output):
        if tensor.name not in known:
            continue  # the checks say so later
        mine = known[tensor.name].dims
        dims = tensor.inner_dims
        if tensor.name in tensors.shape_tensors:
            hints.append(mine[:1] == (dims[0] + 1,) if dims else False)
        elif tensor.dims:
            hints.append(len(mine) == len(dims) + 1)
    if len(set(hints)) > 1:
        raise InternalError(
            f"unable to autofill for '{config.name}', model tensor configurations are contradicting each other in "
            "terms of whether batching is supported"
        )
    return hints[0] if hints else None
