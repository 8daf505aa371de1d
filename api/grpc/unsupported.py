"""RPCs whose features this version does not have: they answer, so that clients are told so (grpc.md §2)."""

from __future__ import annotations

from ...proto.messages.inference import CudaSharedMemoryStatusResponse, SystemSharedMemoryStatusResponse
from ..switched_off import no_such_region


def system_region_status(name: str) -> SystemSharedMemoryStatusResponse:
    """SystemSharedMemoryStatus: there are no regions, as long as none can be registered."""
    if name:
        raise no_such_region("system", name)
    return SystemSharedMemoryStatusResponse()


def cuda_region_status(name: str) -> CudaSharedMemoryStatusResponse:
    """CudaSharedMemoryStatus."""
    if name:
        raise no_such_region("cuda", name)
    return CudaSharedMemoryStatusResponse()
