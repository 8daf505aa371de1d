"""From the protobuf message to the typed view and its text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import Message

from ..datatypes import BY_NUMBER
from .json_writer import write_json
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
    return ModelConfig(
        name=message.name,
        platform=message.platform,
        backend=message.backend,
        runtime=message.runtime,
        version_policy=_version_policy(message),
        max_batch_size=message.max_batch_size,
        input=tuple(_input(tensor) for tensor in message.input),
        output=tuple(_output(tensor) for tensor in message.output),
        batch_input=tuple(
            BatchInput(
                kind=enum_name(item, "kind"),
                target_names=tuple(item.target_name),
                datatype=BY_NUMBER.get(item.data_type, UNSPECIFIED),
                source_inputs=tuple(item.source_input),
            )
            for item in message.batch_input
        ),
        batch_output=tuple(
            BatchOutput(enum_name(item, "kind"), tuple(item.target_name), tuple(item.source_input))
            for item in message.batch_output
        ),
        graph_level=message.optimization.graph.level,
        cpu_accelerators=tuple(_accelerator(item) for item in accelerators.cpu_execution_accelerator),
        gpu_accelerators=tuple(_accelerator(item) for item in accelerators.gpu_execution_accelerator),
        dynamic_batching=_dynamic_batching(message.dynamic_batching) if message.HasField("dynamic_batching") else None,
        has_sequence_batching=message.HasField("sequence_batching"),
        has_ensemble_scheduling=message.HasField("ensemble_scheduling"),
        instance_group=tuple(_instance_group(group) for group in message.instance_group),
        default_model_filename=message.default_model_filename,
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


def _input(tensor: Any) -> ModelInput:
    return ModelInput(
        name=tensor.name,
        datatype=BY_NUMBER.get(tensor.data_type, UNSPECIFIED),
        dims=tuple(tensor.dims),
        reshape=tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None,
        is_shape_tensor=tensor.is_shape_tensor,
        allow_ragged_batch=tensor.allow_ragged_batch,
        optional=tensor.optional,
    )


def _output(tensor: Any) -> ModelOutput:
    return ModelOutput(
        name=tensor.name,
        datatype=BY_NUMBER.get(tensor.data_type, UNSPECIFIED),
        dims=tuple(tensor.dims),
        reshape=tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None,
        label_filename=tensor.label_filename,
        is_shape_tensor=tensor.is_shape_tensor,
    )


def _accelerator(item: Any) -> Accelerator:
    return Accelerator(name=item.name, parameters=dict(item.parameters))


def _dynamic_batching(batching: Any) -> DynamicBatching:
    return DynamicBatching(
        preferred_batch_sizes=tuple(batching.preferred_batch_size),
        max_queue_delay_us=batching.max_queue_delay_microseconds,
        preserve_ordering=batching.preserve_ordering,
        priority_levels=batching.priority_levels,
        default_priority_level=batching.default_priority_level,
        default_queue_policy=_queue_policy(batching.default_queue_policy),
        priority_queue_policy={
            level: _queue_policy(batching.priority_queue_policy[level])
            for level in sorted(batching.priority_queue_policy)
        },
    )


def _queue_policy(policy: Any) -> QueuePolicy:
    """A timeout action that the schema does not know rejects, as Triton's switch does by default."""
    return QueuePolicy(
        timeout_action=TimeoutAction.DELAY
        if policy.timeout_action == TimeoutAction.DELAY.value
        else TimeoutAction.REJECT,
        default_timeout_us=policy.default_timeout_microseconds,
        allow_timeout_override=policy.allow_timeout_override,
        max_queue_size=policy.max_queue_size,
    )


def _instance_group(group: Any) -> InstanceGroup:
    return InstanceGroup(
        name=group.name,
        kind=enum_name(group, "kind"),
        count=group.count,
        gpus=tuple(group.gpus),
        passive=group.passive,
        host_policy=group.host_policy,
        profile=tuple(group.profile),
    )
