"""From the protobuf message to the typed view and its text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeVar, cast

from google.protobuf import text_format
from google.protobuf.message import Message

from ..datatypes import BY_NUMBER, DataType
from .json_text import write_json
from .model import (
    UNSPECIFIED,
    Accelerator,
    BatchInput,
    BatchOutput,
    DynamicBatching,
    InstanceGroup,
    ModelConfig,
    ModelInput,
    ModelOutput,
    QueuePolicy,
    TimeoutAction,
    VersionPolicy,
)
from .schema import Field, copy_message

T = TypeVar("T")


def enum_name(message: Message, field: str) -> str:
    """The name of an enum field's value; the number, where the schema knows no name."""
    number = getattr(message, field)
    descriptor: Field = message.DESCRIPTOR.fields_by_name[field]
    known = descriptor.enum_type.values_by_number.get(number)
    return str(number) if known is None else known.name


def config_json(config: ModelConfig) -> bytes:
    """What ``/config`` answers: JSON text, UTF-8 (docs/reference/model-configuration.md#json-form)."""
    return write_json(config.message)


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
        version_policy=_version_policy(message),
        input=tuple(_tensor(ModelInput, tensor) for tensor in message.input),
        output=tuple(_tensor(ModelOutput, tensor) for tensor in message.output),
        batch_input=tuple(
            BatchInput(enum_name(item, "kind"), tuple(item.target_name), _datatype(item), tuple(item.source_input))
            for item in message.batch_input
        ),
        batch_output=tuple(
            BatchOutput(enum_name(item, "kind"), tuple(item.target_name), tuple(item.source_input))
            for item in message.batch_output
        ),
        graph_level=message.optimization.graph.level,
        cpu_accelerators=_accelerators(accelerators.cpu_execution_accelerator),
        gpu_accelerators=_accelerators(accelerators.gpu_execution_accelerator),
        dynamic_batching=_dynamic_batching(message.dynamic_batching) if message.HasField("dynamic_batching") else None,
        has_sequence_batching=message.HasField("sequence_batching"),
        has_ensemble_scheduling=message.HasField("ensemble_scheduling"),
        instance_group=tuple(
            mirrored(InstanceGroup, group, kind=enum_name(group, "kind")) for group in message.instance_group
        ),
        cc_model_filenames=dict(message.cc_model_filenames),
        metric_tags=dict(message.metric_tags),
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


def mirrored(kind: Callable[..., T], message: Any, /, **given: Any) -> T:
    """A dataclass from a message: what is not given is the message's field of the same name, as a tuple if that is
    repeated."""
    for field in fields(cast(Any, kind)):
        if field.name not in given:
            value = getattr(message, field.name)
            given[field.name] = value if isinstance(value, str | int | float) else tuple(value)
    return kind(**given)


def _version_policy(message: Any) -> VersionPolicy:
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
    reshape = tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None
    return mirrored(kind, tensor, datatype=_datatype(tensor), reshape=reshape)


def _datatype(tensor: Any) -> DataType:
    return BY_NUMBER.get(tensor.data_type, UNSPECIFIED)


def _accelerators(items: Any) -> tuple[Accelerator, ...]:
    return tuple(Accelerator(item.name, dict(item.parameters)) for item in items)


def _dynamic_batching(batching: Any) -> DynamicBatching:
    policies = batching.priority_queue_policy
    return mirrored(
        DynamicBatching,
        batching,
        preferred_batch_sizes=tuple(batching.preferred_batch_size),
        max_queue_delay_us=batching.max_queue_delay_microseconds,
        default_queue_policy=_queue_policy(batching.default_queue_policy),
        priority_queue_policy={level: _queue_policy(policies[level]) for level in sorted(policies)},
    )


def _queue_policy(policy: Any) -> QueuePolicy:
    """A timeout action that the schema does not know rejects, as Triton's switch does by default."""
    delays = policy.timeout_action == TimeoutAction.DELAY.value
    return mirrored(
        QueuePolicy,
        policy,
        timeout_action=TimeoutAction.DELAY if delays else TimeoutAction.REJECT,
        default_timeout_us=policy.default_timeout_microseconds,
    )
