"""Calls that need a key in their metadata (docs/reference/grpc.md#restricted-protocols)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ..restrictions import Restriction

if TYPE_CHECKING:
    from .call_head import CallHead

_KEY_PREFIX = "triton-grpc-protocol-"

_METHODS = {
    "health": ("ServerLive", "ServerReady", "ModelReady"),
    "metadata": ("ServerMetadata", "ModelMetadata"),
    "inference": ("ModelInfer", "ModelStreamInfer"),
    "shared-memory": (
        "SystemSharedMemoryStatus",
        "SystemSharedMemoryRegister",
        "SystemSharedMemoryUnregister",
        "CudaSharedMemoryStatus",
        "CudaSharedMemoryRegister",
        "CudaSharedMemoryUnregister",
    ),
    "model-config": ("ModelConfig",),
    "model-repository": ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
    "statistics": ("ModelStatistics",),
    "trace": ("TraceSetting",),
    "logging": ("LogSettings",),
}
"""Methods of the inference service by the category that a restriction names."""


def paths_of(category: str) -> list[str]:
    """The paths of the calls that belong to a category."""
    paths = [f"/inference.GRPCInferenceService/{method}" for method in _METHODS[category]]
    if category == "health":
        paths.append("/grpc.health.v1.Health/Check")
    return paths


class RestrictedProtocols:
    """A guard: it looks at every call when it begins, so at a stream once."""

    __slots__ = ("_needed",)

    def __init__(self, restrictions: Sequence[Restriction]) -> None:
        self._needed = {
            path: (_KEY_PREFIX + restriction.key, restriction)
            for restriction in restrictions
            for category in restriction.categories
            for path in paths_of(category)
        }

    def __call__(self, head: CallHead) -> None:
        """Let the call pass.

        Raises:
            GRPCError: it lacks the key, or has it with another value.
        """
        needed = self._needed.get(head.path)
        if needed is not None:
            key, restriction = needed
            given = head.metadata.get(key.lower())
            if given is None or not restriction.admits(str(given).encode("utf-8", "surrogateescape")):
                raise GRPCError(Status.UNAVAILABLE, f"This protocol is restricted, expecting header '{key}'")

    def __repr__(self) -> str:
        return f"<RestrictedProtocols: {len(self._needed)} methods>"
