"""The typed, immutable view of a model configuration that the rest of the engine works with.

`ModelConfig.message` is the protobuf message itself (normalised); ``/config`` renders that one. The fields here mirror
it one to one, with numpy-ready types, so that nothing outside `engine.config` touches protobuf.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..datatypes import DataType

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
    def platform_name(self) -> str:
        """What metadata calls the platform: `platform`, else `backend`
        (docs/reference/model-configuration.md#backend-platform-and-file)."""
        return self.platform or self.backend
