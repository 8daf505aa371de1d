"""RPCs about shared-memory regions (docs/reference/shared-memory.md#regions). `engine.memory.regions` says what regions
are."""

from __future__ import annotations

from ...engine.memory.regions import RegionKind, Regions
from ...proto.messages import inference as pb
from ..restrictions import refuse_region_changes
from .context import GrpcContext


def system_status(
    context: GrpcContext, message: pb.SystemSharedMemoryStatusRequest
) -> pb.SystemSharedMemoryStatusResponse:
    """SystemSharedMemoryStatus: one region, or all.

    Raises:
        NotFoundError: there is no such region.
    """
    regions = context.server.shared_memory.system_status(message.name)
    return pb.SystemSharedMemoryStatusResponse(
        regions={
            region.name: pb.SystemSharedMemoryStatusResponseRegionStatus(
                name=region.name, key=region.key, offset=region.offset, byte_size=region.byte_size
            )
            for region in regions
        }
    )


def cuda_status(context: GrpcContext, message: pb.CudaSharedMemoryStatusRequest) -> pb.CudaSharedMemoryStatusResponse:
    """CudaSharedMemoryStatus: one region, or all.

    Raises:
        NotFoundError: there is no such region, or it is a system region.
    """
    return pb.CudaSharedMemoryStatusResponse(
        regions={
            region.name: pb.CudaSharedMemoryStatusResponseRegionStatus(
                name=region.name, device_id=region.device_id, byte_size=region.byte_size
            )
            for region in context.server.shared_memory.cuda_status(message.name)
        }
    )


def register_system(
    context: GrpcContext, message: pb.SystemSharedMemoryRegisterRequest
) -> pb.SystemSharedMemoryRegisterResponse:
    """SystemSharedMemoryRegister.

    Raises:
        TriremeError: clients may not, or the region cannot be registered.
    """
    _changeable(context).register_system(message.name, message.key, message.offset, message.byte_size)
    return pb.SystemSharedMemoryRegisterResponse()


def register_cuda(
    context: GrpcContext, message: pb.CudaSharedMemoryRegisterRequest
) -> pb.CudaSharedMemoryRegisterResponse:
    """CudaSharedMemoryRegister.

    Raises:
        TriremeError: clients may not, or the region cannot be registered.
    """
    _changeable(context).register_cuda(message.name, message.raw_handle, message.device_id, message.byte_size)
    return pb.CudaSharedMemoryRegisterResponse()


def unregister_system(
    context: GrpcContext, message: pb.SystemSharedMemoryUnregisterRequest
) -> pb.SystemSharedMemoryUnregisterResponse:
    """SystemSharedMemoryUnregister: one region, or all.

    Raises:
        UnsupportedError: clients may not.
    """
    _changeable(context).unregister(RegionKind.SYSTEM, message.name)
    return pb.SystemSharedMemoryUnregisterResponse()


def unregister_cuda(
    context: GrpcContext, message: pb.CudaSharedMemoryUnregisterRequest
) -> pb.CudaSharedMemoryUnregisterResponse:
    """CudaSharedMemoryUnregister: one region, or all.

    Raises:
        UnsupportedError: clients may not.
    """
    _changeable(context).unregister(RegionKind.CUDA, message.name)
    return pb.CudaSharedMemoryUnregisterResponse()


def _changeable(context: GrpcContext) -> Regions:
    """The regions, for a client that wants to change them."""
    refuse_region_changes(context.options.allow_client_shm)
    return context.server.shared_memory
