"""RPCs about shared-memory regions (docs/reference/shared-memory.md#regions). `engine.memory.regions` says what regions
are, and which errors they raise. A status is that of one region, or of all; so is what is unregistered."""

from __future__ import annotations

from ...engine.memory.regions import RegionKind, Regions
from ...proto.messages import inference as pb
from ..restrictions import refuse_region_changes
from .context import GrpcContext


def system_status(
    context: GrpcContext, message: pb.SystemSharedMemoryStatusRequest
) -> pb.SystemSharedMemoryStatusResponse:
    """SystemSharedMemoryStatus."""
    status = pb.SystemSharedMemoryStatusResponseRegionStatus
    return pb.SystemSharedMemoryStatusResponse(
        regions={
            each.name: status(name=each.name, key=each.key, offset=each.offset, byte_size=each.byte_size)
            for each in context.server.shared_memory.system_status(message.name)
        }
    )


def cuda_status(context: GrpcContext, message: pb.CudaSharedMemoryStatusRequest) -> pb.CudaSharedMemoryStatusResponse:
    """CudaSharedMemoryStatus."""
    status = pb.CudaSharedMemoryStatusResponseRegionStatus
    return pb.CudaSharedMemoryStatusResponse(
        regions={
            each.name: status(name=each.name, device_id=each.device_id, byte_size=each.byte_size)
            for each in context.server.shared_memory.cuda_status(message.name)
        }
    )


def register_system(
    context: GrpcContext, message: pb.SystemSharedMemoryRegisterRequest
) -> pb.SystemSharedMemoryRegisterResponse:
    """SystemSharedMemoryRegister."""
    _changeable(context).register_system(message.name, message.key, message.offset, message.byte_size)
    return pb.SystemSharedMemoryRegisterResponse()


def register_cuda(
    context: GrpcContext, message: pb.CudaSharedMemoryRegisterRequest
) -> pb.CudaSharedMemoryRegisterResponse:
    """CudaSharedMemoryRegister."""
    _changeable(context).register_cuda(message.name, message.raw_handle, message.device_id, message.byte_size)
    return pb.CudaSharedMemoryRegisterResponse()


def unregister_system(
    context: GrpcContext, message: pb.SystemSharedMemoryUnregisterRequest
) -> pb.SystemSharedMemoryUnregisterResponse:
    """SystemSharedMemoryUnregister."""
    _changeable(context).unregister(RegionKind.SYSTEM, message.name)
    return pb.SystemSharedMemoryUnregisterResponse()


def unregister_cuda(
    context: GrpcContext, message: pb.CudaSharedMemoryUnregisterRequest
) -> pb.CudaSharedMemoryUnregisterResponse:
    """CudaSharedMemoryUnregister."""
    _changeable(context).unregister(RegionKind.CUDA, message.name)
    return pb.CudaSharedMemoryUnregisterResponse()


def _changeable(context: GrpcContext) -> Regions:
    """The regions, for a client that wants to change them; raises UnsupportedError if clients may not."""
    refuse_region_changes(context.options.allow_client_shm)
    return context.server.shared_memory
