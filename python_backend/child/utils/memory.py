"""Where a tensor should lie: `MemoryType` and `PreferredMemory` (docs/reference/python-backend.md#module-members); and
the memory that is shared with the server.
"""

from __future__ import annotations

import enum

from .context import current


class MemoryType(enum.IntEnum):
    """A kind of memory."""

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1

    __str__ = enum.Enum.__str__


class PreferredMemory:
    """Where the outputs of a request to another model should lie.

    Args:
        preferred_memory_type: a `MemoryType`.
        preferred_device_id: the GPU.
    """

    __slots__ = ("_device_id", "_memory_type")

    def __init__(self, preferred_memory_type: int, preferred_device_id: int = 0) -> None:
        self._memory_type = preferred_memory_type
        self._device_id = preferred_device_id


DEFAULT_MEMORY = PreferredMemory(MemoryType.TRITONSERVER_MEMORY_CPU)
"""Wherever the answering model leaves them."""


class SharedMemory:
    """``c_python_backend_utils.shared_memory``."""

    __slots__ = ()

    def free_memory(self) -> int:
        """Bytes of shared memory that have been made and are free for the model's next messages. None is made before it
        is needed, and more whenever it is, so that 0 does not mean that there is none left."""
        return current().host.free_memory()
