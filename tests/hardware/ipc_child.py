"""A client that has memory on the GPU: prints its handle, and, told to go on, looks at what the server has written."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np

cupy: Any = importlib.import_module("cupy")
nbytes = int(sys.argv[1])
memory = cupy.cuda.Memory(nbytes)  # of its own, not of a pool
array = cupy.ndarray((nbytes,), cupy.uint8, cupy.cuda.MemoryPointer(memory, 0))
array[...] = cupy.arange(nbytes) % 251
cupy.cuda.runtime.deviceSynchronize()
print(bytes(cupy.cuda.runtime.ipcGetMemHandle(array.data.ptr)).hex(), flush=True)
sys.stdin.readline()
expected = (255 - np.arange(nbytes) % 251).astype(np.uint8)
sys.exit(0 if np.array_equal(array.get(), expected) else "the server has written something else")
