"""A model configuration: the protobuf message, and the typed, immutable view that the rest of the engine works with.

`ModelConfig.message` is the protobuf message itself (normalised); ``/config`` renders that one. The fields here mirror
it one to one, with numpy-ready types, so that nothing outside `engine.config` touches protobuf.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, cast

import numpy as np
from google.protobuf import text_format
from google.protobuf.message import Message

from ...proto.descriptors import message_class
from ..datatypes import BY_NUMBER, DataType
from ..errors import InvalidArgumentError
from .platforms import GENERATION

T = TypeVar("T")

ModelConfigMessage: type[Any] = message_class("inference.ModelConfig")
"""The class of `inference.ModelConfig`; nested messages are reached through its fields."""

ProtoField = Any
"""A field's descriptor. Protobuf's stubs make its message and enum types optional, also where they cannot be."""

Dims = tuple[int, ...]

UNSPECIFIED = DataType("INVALID", "TYPE_INVALID", 0, 0, np.dtype("V"), "")
"""Stands in a configuration that is not validated yet for a type that it does not give; never in one that is."""


class TimeoutAction(enum.Enum):
    """What happens to a request whose time in the queue is over (docs/reference/scheduling.md#queue-policies)."""

    REJECT = 0
    DELAY = 1


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """`dims` and `reshape` are without the batch dimension; -1 is a dimension of any size."""

    name: str
    datatype: DataType
    dims: Dims
    reshape: Dims | None = None

    @property
    def inner_dims(self) -> Dims:
        """The dimensions as the model sees them, but for the batch."""
        return self.dims if self.reshape is None else self.reshape


@dataclass(frozen=True, slots=True)
class ModelInput(ModelTensor):
    is_shape_tensor: bool = False
    allow_ragged_batch: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True)
class ModelOutput(ModelTensor):
    label_filename: str = ""
    is_shape_tensor: bool = False


@dataclass(frozen=True, slots=True)
class BatchInput:
    """A tensor made from the batch, never sent by clients
    (docs/reference/model-configuration.md#ragged-and-batch-inputs)."""

    kind: str
    target_names: tuple[str, ...]
    datatype: DataType
    source_inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BatchOutput:
    """How a flat output is cut up per request (docs/reference/model-configuration.md#ragged-and-batch-inputs)."""

    kind: str
    target_names: tuple[str, ...]
    source_inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """Times in microseconds; 0 means none, for the timeout and for the queue size
    (docs/reference/scheduling.md#queue-policies)."""

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_us: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """``dynamic_batching``, normalised: `preferred_batch_sizes` is not empty when max_batch_size > 0."""

    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy = QueuePolicy()
    priority_queue_policy: Mapping[int, QueuePolicy] = field(default_factory=dict)

    def policy(self, level: int) -> QueuePolicy:
        """The queue policy of a priority level."""
        return self.priority_queue_policy.get(level, self.default_queue_policy)


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """`kind` is the enum name (``KIND_CPU`` …), never ``KIND_AUTO`` once normalised."""

    name: str
    kind: str
    count: int
    gpus: tuple[int, ...] = ()
    passive: bool = False
    host_policy: str = ""
    profile: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """Exactly one of `latest` (how many), `all_versions`, `specific` (which) applies
    (docs/reference/model-control.md#versions)."""

    latest: int = 0
    all_versions: bool = False
    specific: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Accelerator:
    name: str
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model configuration. Field names follow the proto's; `message` is the proto itself."""

    name: str
    platform: str = ""
    backend: str = ""
    runtime: str = ""
    version_policy: VersionPolicy = VersionPolicy(latest=1)
    max_batch_size: int = 0
    input: tuple[ModelInput, ...] = ()
    output: tuple[ModelOutput, ...] = ()
    batch_input: tuple[BatchInput, ...] = ()
    batch_output: tuple[BatchOutput, ...] = ()
    graph_level: int = 0
    cpu_accelerators: tuple[Accelerator, ...] = ()
    gpu_accelerators: tuple[Accelerator, ...] = ()
    dynamic_batching: DynamicBatching | None = None
    has_sequence_batching: bool = False
    has_ensemble_scheduling: bool = False
    instance_group: tuple[InstanceGroup, ...] = ()
    default_model_filename: str = ""
    cc_model_filenames: Mapping[str, str] = field(default_factory=dict)
    metric_tags: Mapping[str, str] = field(default_factory=dict)
    histogram_buckets: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    op_library_filenames: tuple[str, ...] = ()
    decoupled: bool = False
    response_cache: bool = False
    message: Any = None

    def find_input(self, name: str) -> ModelInput | None:
        return next((tensor for tensor in self.input if tensor.name == name), None)

    def find_output(self, name: str) -> ModelOutput | None:
        return next((tensor for tensor in self.output if tensor.name == name), None)

    @property
    def generates_text(self) -> bool:
        """It answers with texts, in steps. Encoders, which are of the same backend, answer once."""
        return self.decoupled and self.backend == GENERATION

    @property
    def platform_name(self) -> str:
        """What metadata calls the platform: `platform`, else `backend`
        (docs/reference/model-configuration.md#backend-platform-and-file)."""
        return self.platform or self.backend


# -- From the protobuf message to the typed view and its text


def refuse(problems: Iterable[str]) -> None:
    """Raise the first of them as an InvalidArgumentError, if there is one."""
    for problem in problems:
        raise InvalidArgumentError(problem)


def copy_message(message: Message) -> Any:
    """An independent copy, for a caller that changes it."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def enum_name(message: Message, field: str) -> str:
    """The name of an enum field's value; the number, where the schema knows no name."""
    number = getattr(message, field)
    descriptor: ProtoField = message.DESCRIPTOR.fields_by_name[field]
    known = descriptor.enum_type.values_by_number.get(number)
    return str(number) if known is None else known.name


def config_text(config: ModelConfig) -> str:
    """The configuration in protobuf's text form, as ``config.pbtxt`` has it."""
    return text_format.MessageToString(config.message)


def config_protobuf(config: ModelConfig) -> bytes:
    """What gRPC's ModelConfig answers: the message `inference.ModelConfig` in protobuf's encoding."""
    return config.message.SerializeToString()


def with_runtime(config: ModelConfig, runtime: str) -> ModelConfig:
    """The configuration with what its backend makes of ``runtime``; as it is if that says nothing."""
    if not runtime or config.runtime == runtime:
        return config
    message = copy_message(config.message)
    message.runtime = runtime
    return replace(config, message=message, runtime=runtime)


def model_config(message: Any) -> ModelConfig:
    """The typed view of a message, which is copied; nothing is checked or filled in.

    A tensor whose type is missing or unknown gets `UNSPECIFIED`; `validate` refuses it.
    """
    message = copy_message(message)
    accelerators = message.optimization.execution_accelerators
    return mirrored(
        ModelConfig,
        message,
        version_policy=version_policy(message),
        input=tuple(_tensor(ModelInput, tensor) for tensor in message.input),
        output=tuple(_tensor(ModelOutput, tensor) for tensor in message.output),
        batch_input=tuple(mirrored(BatchInput, item) for item in message.batch_input),
        batch_output=tuple(mirrored(BatchOutput, item) for item in message.batch_output),
        graph_level=message.optimization.graph.level,
        cpu_accelerators=tuple(mirrored(Accelerator, each) for each in accelerators.cpu_execution_accelerator),
        gpu_accelerators=tuple(mirrored(Accelerator, each) for each in accelerators.gpu_execution_accelerator),
        dynamic_batching=_dynamic_batching(message.dynamic_batching) if message.HasField("dynamic_batching") else None,
        has_sequence_batching=message.HasField("sequence_batching"),
        has_ensemble_scheduling=message.HasField("ensemble_scheduling"),
        instance_group=tuple(mirrored(InstanceGroup, group) for group in message.instance_group),
        histogram_buckets={
            control.metric_identifier.family: tuple(control.histogram_options.buckets)
            for control in message.model_metrics.metric_control
        },
        parameters={key: value.string_value for key, value in message.parameters.items()},
        op_library_filenames=tuple(message.model_operations.op_library_filename),
        decoupled=message.model_transaction_policy.decoupled,
        response_cache=message.response_cache.enable,
        message=message,
    )


_PROTO_NAMES = {
    "default_timeout_us": "default_timeout_microseconds",
    "growable": "use_growable_memory",
    "is_global": "global",
    "max_queue_delay_us": "max_queue_delay_microseconds",
    "preferred_batch_sizes": "preferred_batch_size",
    "same_buffer": "use_same_buffer_for_input_output",
    "source_inputs": "source_input",
    "target_names": "target_name",
}
"""Fields of dataclasses that the proto calls something else."""


def mirrored(kind: Callable[..., T], message: Any, /, **given: Any) -> T:
    """A dataclass from a message: what is not given is the message's field, as a tuple if that is repeated, and in the
    order of its keys if it is a map; `kind` is the name of an enum's value, and `datatype` a `DataType`."""
    for name in (each.name for each in fields(cast(Any, kind)) if each.name not in given):
        if name == "datatype":
            given[name] = BY_NUMBER.get(message.data_type, UNSPECIFIED)
        elif name == "kind":
            given[name] = enum_name(message, name)
        else:
            value = getattr(message, _PROTO_NAMES.get(name, name))
            if isinstance(value, Mapping):
                given[name] = dict(sorted(value.items()))
            else:
                given[name] = value if isinstance(value, str | int | float) else tuple(value)
    return kind(**given)


def version_policy(message: Any) -> VersionPolicy:
    """Without a policy the latest version serves; an empty one means all of them, as in Triton."""
    policy = message.version_policy
    match policy.WhichOneof("policy_choice"):
        case "latest":
            return VersionPolicy(latest=policy.latest.num_versions)
        case "specific":
            return VersionPolicy(specific=tuple(policy.specific.versions))
        case "all":
            return VersionPolicy(all_versions=True)
    return VersionPolicy(all_versions=True) if message.HasField("version_policy") else VersionPolicy(latest=1)


def _tensor(kind: Callable[..., T], tensor: Any) -> T:
    return mirrored(kind, tensor, reshape=tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None)


def _dynamic_batching(batching: Any) -> DynamicBatching:
    policies = batching.priority_queue_policy
    return mirrored(
        DynamicBatching,
        batching,
        default_queue_policy=_queue_policy(batching.default_queue_policy),
        priority_queue_policy={level: _queue_policy(policies[level]) for level in sorted(policies)},
    )


def _queue_policy(policy: Any) -> QueuePolicy:
    """A timeout action that the schema does not know rejects, as Triton's switch does by default."""
    delays = policy.timeout_action == TimeoutAction.DELAY.value
    return mirrored(QueuePolicy, policy, timeout_action=TimeoutAction.DELAY if delays else TimeoutAction.REJECT)
