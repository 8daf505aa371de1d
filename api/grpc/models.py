"""The RPCs about one model: readiness, metadata, configuration, statistics (docs/reference/grpc.md#calls)."""

from __future__ import annotations

from ...engine.config import config_protobuf
from ...engine.config.model import ModelInput, ModelOutput
from ...engine.description import ModelDescription
from ...engine.metrics.responses import Duration
from ...engine.metrics.statistics import ModelStatisticsEntry
from ...proto.messages.inference import (
    InferBatchStatistics,
    InferResponseStatistics,
    InferStatistics,
    MemoryUsage,
    ModelConfig,
    ModelConfigRequest,
    ModelConfigResponse,
    ModelMetadataRequest,
    ModelMetadataResponse,
    ModelMetadataResponseTensorMetadata,
    ModelReadyRequest,
    ModelReadyResponse,
    ModelStatistics,
    ModelStatisticsRequest,
    ModelStatisticsResponse,
    StatisticDuration,
)
from .context import GrpcContext
from .infer_parameters import parse_version

_COMPUTE = ("compute_input", "compute_infer", "compute_output")
_PHASES = ("success", "fail", "queue", *_COMPUTE)
_CACHE = ("cache_hit", "cache_miss")
_RESPONSES = ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")


async def ready(context: GrpcContext, message: ModelReadyRequest) -> ModelReadyResponse:
    """ModelReady: a model that is not ready, or that there is not, is no error."""
    version = parse_version(message.version)
    context.refuse_when_exiting()
    return ModelReadyResponse(ready=await context.server.check_model_ready(message.name, version))


def metadata(context: GrpcContext, message: ModelMetadataRequest) -> ModelMetadataResponse:
    """ModelMetadata."""
    model = context.server.describe(message.name, parse_version(message.version))
    versions = (model.version,) if message.version else model.versions
    return ModelMetadataResponse(
        name=model.name,
        versions=[str(version) for version in versions],
        platform=model.config.platform_name,
        inputs=[_tensor_metadata(model, tensor) for tensor in model.config.input],
        outputs=[_tensor_metadata(model, tensor) for tensor in model.config.output],
    )


def config(context: GrpcContext, message: ModelConfigRequest) -> ModelConfigResponse:
    """ModelConfig."""
    model = context.server.describe(message.name, parse_version(message.version))
    return ModelConfigResponse(config=ModelConfig.parse(config_protobuf(model.config)))


def statistics(context: GrpcContext, message: ModelStatisticsRequest) -> ModelStatisticsResponse:
    """ModelStatistics: of all models, if none is named."""
    entries = context.server.statistics(message.name, parse_version(message.version))
    return ModelStatisticsResponse(model_stats=[_model_statistics(entry) for entry in entries])


def _tensor_metadata(model: ModelDescription, tensor: ModelInput | ModelOutput) -> ModelMetadataResponseTensorMetadata:
    return ModelMetadataResponseTensorMetadata(
        name=tensor.name, datatype=tensor.datatype.name, shape=list(model.client_shape(tensor))
    )


def _model_statistics(entry: ModelStatisticsEntry) -> ModelStatistics:
    counted = entry.statistics
    return ModelStatistics(
        name=entry.name,
        version=str(entry.version),
        last_inference=counted.last_inference_ms,
        inference_count=counted.inference_count,
        execution_count=counted.execution_count,
        inference_stats=InferStatistics(**_durations(counted, *_PHASES, *_CACHE)),
        batch_stats=[
            InferBatchStatistics(batch_size=rows, **_durations(batch, *_COMPUTE))
            for rows, batch in sorted(counted.batches.items())
        ],
        memory_usage=[
            MemoryUsage(type=usage.type, id=usage.id, byte_size=usage.byte_size) for usage in entry.memory_usage
        ],
        response_stats={
            str(index): InferResponseStatistics(**_durations(responses, *_RESPONSES))
            for index, responses in sorted(counted.responses.items())
        },
    )


def _durations(counted: object, *names: str) -> dict[str, StatisticDuration]:
    """Durations of these names, which messages have as well."""
    durations: dict[str, Duration] = {name: getattr(counted, name) for name in names}
    return {name: StatisticDuration(count=each.count, ns=each.ns) for name, each in durations.items()}
