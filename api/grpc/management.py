"""The RPCs about the server and its models (docs/reference/grpc.md#calls): health, metadata, configuration, statistics;
shared-memory regions (docs/reference/shared-memory.md#regions); what is traced and logged, and how
(docs/reference/grpc.md#settings). And gRPC's standard health service (docs/reference/grpc.md#health-service).

That one tells of the server as a whole, whichever service is asked about. Watch is not part of it: as in Triton, the
dispatcher answers that there is no such method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grpclib.const import Cardinality, Handler

from ...actors.facade import Management
from ...engine.config import config_protobuf
from ...engine.errors import InvalidArgumentError
from ...engine.memory.regions import RegionKind
from ...proto.messages import inference as pb
from ...proto.messages.grpc.health import v1 as health
from .. import about
from ..about import check_traced_model, read_trace_change
from ..access import needed
from ..logging import FORMATS, log_file_refused, log_unreachable, verbose_level
from ..model_routes import shown_config
from ..pipeline import find_model
from ..request_parameters import refuse_region_changes
from .infer import GrpcContext
from .infer_request import parse_version

if TYPE_CHECKING:
    from .streaming import StreamingCall

Fields = dict[str, Any]
"""Of a response, as `from_dict` of its class takes them; None for an empty one."""


# ---- the server and its models ----


async def server_live(context: GrpcContext, _message: pb.ServerLiveRequest) -> Fields:
    about.refuse_when_exiting(context.server)
    return {"live": await context.server.management.live()}


async def server_ready(context: GrpcContext, _message: pb.ServerReadyRequest) -> Fields:
    """A server that is not ready is no error."""
    about.refuse_when_exiting(context.server)
    return {"ready": await context.server.management.ready()}


async def server_metadata(context: GrpcContext, _message: pb.ServerMetadataRequest) -> Fields:
    return await context.server.management.server_metadata()


async def model_ready(context: GrpcContext, message: pb.ModelReadyRequest) -> Fields:
    """A model that is not ready, or that there is not, is no error."""
    version = parse_version(message.version)
    about.refuse_when_exiting(context.server)
    return {"ready": await context.server.management.model_ready(message.name, version)}


async def model_metadata(context: GrpcContext, message: pb.ModelMetadataRequest) -> Fields:
    version = parse_version(message.version)
    await find_model(context.server, message.name, version)
    return about.model_metadata(context.server, message.name, version, one_version=bool(message.version))


async def model_config(context: GrpcContext, message: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
    config = await shown_config(context.server, message.name, parse_version(message.version))
    return pb.ModelConfigResponse(config=pb.ModelConfig.parse(config_protobuf(config)))


async def statistics(context: GrpcContext, message: pb.ModelStatisticsRequest) -> Fields:
    """Of all models, if none is named."""
    return await context.server.management.model_statistics(message.name, parse_version(message.version))


class Health:
    """`grpc.health.v1.Health` of a server."""

    def __init__(self, context: GrpcContext) -> None:
        self._context = context

    def __mapping__(self) -> dict[str, Handler]:
        types = health.HealthCheckRequest, health.HealthCheckResponse
        return {"/grpc.health.v1.Health/Check": Handler(self._check, Cardinality.UNARY_UNARY, *types)}

    async def _check(self, stream: StreamingCall) -> None:
        """Whether the server is ready; that it is not is no error."""
        access = self._context.access
        if access is not None:
            await access.authorise(stream.head.identity, "health", needed("health"), "Check", stream.address)
        await stream.recv_message()
        about.refuse_when_exiting(self._context.server)
        status = health.HealthCheckResponseServingStatus
        ready = await self._context.server.management.ready()
        await stream.send_message(health.HealthCheckResponse(status=status.SERVING if ready else status.NOT_SERVING))


# ---- shared-memory regions: `engine.memory.regions` says which errors they raise ----


async def region_status(kind: RegionKind, context: GrpcContext, message: Any) -> Fields:
    """SystemSharedMemoryStatus, CudaSharedMemoryStatus: of one region, or of all."""
    regions = await context.server.management.region_status(kind, message.name)
    return {"regions": {region["name"]: region for region in regions}}


async def register_system(context: GrpcContext, message: pb.SystemSharedMemoryRegisterRequest) -> None:
    where = message.key, message.offset, message.byte_size
    await _changeable(context).register_system_region(message.name, *where)


async def register_cuda(context: GrpcContext, message: pb.CudaSharedMemoryRegisterRequest) -> None:
    where = message.raw_handle, message.device_id, message.byte_size
    await _changeable(context).register_cuda_region(message.name, *where)


async def unregister_region(kind: RegionKind, context: GrpcContext, message: Any) -> None:
    """SystemSharedMemoryUnregister, CudaSharedMemoryUnregister: of one region, or of all."""
    await _changeable(context).unregister_region(kind, message.name)


def _changeable(context: GrpcContext) -> Management:
    """What changes regions, for a client that wants to; raises UnsupportedError if clients may not."""
    refuse_region_changes(context.options.allow_client_shm)
    return context.server.management


# ---- settings ----


async def change_trace(context: GrpcContext, message: pb.TraceSettingRequest) -> Fields:
    """TraceSetting: all that the message asks for, or, if something in it is wrong, nothing."""
    check_traced_model(context.server, message.model_name)
    given = {name: setting.value or None for name, setting in message.settings.items()}  # no value clears
    changes = read_trace_change(given, list, _only, gap=" ")
    shown: dict[str, list[str]] = {}
    for name, value in await context.server.management.trace_settings(message.model_name, changes):
        shown.setdefault(name, []).extend(value if isinstance(value, list) else [value])
    return {"settings": {name: {"value": values} for name, values in shown.items()}}


def _only(name: str, values: Sequence[str]) -> str:
    if len(values) > 1:
        raise InvalidArgumentError(f"expect only 1 value for '{name}'")
    return values[0]


_SETTINGS = (
    ("log_file", "file", "string_param", "string"),
    ("log_info", "info", "bool_param", "boolean"),
    ("log_warning", "warning", "bool_param", "boolean"),
    ("log_error", "error", "bool_param", "boolean"),
    ("log_verbose_level", "verbose", "uint32_param", "int32"),
    ("log_format", "format", "string_param", "string"),
)
"""Each setting, the field of `LogSettings` that it is, the choice that its value makes, and what errors call that."""


async def change_log(context: GrpcContext, message: pb.LogSettingsRequest) -> Fields:
    """LogSettings: all that the message asks for, or, if something in it is wrong, nothing."""
    log = context.log
    if log is None:
        raise log_unreachable()
    now = await log.change_and_show(**_changes(message.settings))
    shown = {name: {choice: getattr(now, field)} for name, field, choice, _ in _SETTINGS}
    shown["log_verbose_level"] = {"uint32_param": max(0, now.verbose)}
    return {"settings": shown}


def _changes(given: Mapping[str, pb.LogSettingsRequestSettingValue]) -> dict[str, Any]:
    """Fields of `LogSettings`; settings of other names are ignored.

    Raises:
        UnsupportedError: the file is among them.
        InvalidArgumentError: a value of the wrong type, or no such format.
    """
    if "log_file" in given:
        raise log_file_refused()
    changes: dict[str, Any] = {}
    for name, field, choice, kind in _SETTINGS:
        if name in given:
            value = getattr(given[name], choice)
            if value is None:
                raise InvalidArgumentError(f"expect {kind} for '{name}'")
            changes[field] = verbose_level(value) if field == "verbose" else value
    if "format" in changes and changes["format"] not in FORMATS:
        raise InvalidArgumentError(f"invalid argument for log_format, got: {changes['format']}")
    return changes
