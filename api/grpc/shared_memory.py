"""RPCs about shared-memory regions (docs/reference/shared-memory.md#regions). `engine.memory.regions` says what regions
are, and which errors they raise. A status is that of one region, or of all; so is what is unregistered."""

from __future__ import annotations

from typing import Any

from ...engine.memory.regions import RegionKind, Regions
from ...proto.messages import inference as pb
from .. import about
from ..restrictions import refuse_region_changes
from .context import GrpcContext


def system_status(
    context: GrpcContext, message: pb.SystemSharedMemoryStatusRequest
) -> pb.SystemSharedMemoryStatusResponse:
    return pb.SystemSharedMemoryStatusResponse.from_dict(_status(context, RegionKind.SYSTEM, message.name))


def cuda_status(context: GrpcContext, message: pb.CudaSharedMemoryStatusRequest) -> pb.CudaSharedMemoryStatusResponse:
    return pb.CudaSharedMemoryStatusResponse.from_dict(_status(context, RegionKind.CUDA, message.name))


def _status(context: GrpcContext, kind: RegionKind, name: str) -> dict[str, Any]:
    return {"regions": {region["name"]: region for region in about.region_status(context.server, kind, name)}}


def register_system(
    context: GrpcContext, message: pb.SystemSharedMemoryRegisterRequest
) -> pb.SystemSharedMemoryRegisterResponse:
    _changeable(context).register_system(message.name, message.key, message.offset, message.byte_size)
    return pb.SystemSharedMemoryRegisterResponse()


def register_cuda(
    context: GrpcContext, message: pb.CudaSharedMemoryRegisterRequest
) -> pb.CudaSharedMemoryRegisterResponse:
    _changeable(context).register_cuda(message.name, message.raw_handle, message.device_id, message.byte_size)
    return pb.CudaSharedMemoryRegisterResponse()


def unregister_system(
    context: GrpcContext, message: pb.SystemSharedMemoryUnregisterRequest
) -> pb.SystemSharedMemoryUnregisterResponse:
    _changeable(context).unregister(RegionKind.SYSTEM, message.name)
    return pb.SystemSharedMemoryUnregisterResponse()


def unregister_cuda(
    context: GrpcContext, message: pb.CudaSharedMemoryUnregisterRequest
) -> pb.CudaSharedMemoryUnregisterResponse:
    _changeable(context).unregister(RegionKind.CUDA, message.name)
    return pb.CudaSharedMemoryUnregisterResponse()


def _changeable(context: GrpcContext) -> Regions:
    """The regions, for a client that wants to change them; raises UnsupportedError if clients may not."""
    refuse_region_changes(context.options.allow_client_shm)
    return context.server.shared_memory
