"""A client that has memory on the GPU: ``NBYTES bytes|linear``; prints its handle, and, told to go on, looks at
what the server has written.

``bytes``: it begins with a pattern of bytes, and is to have the reverse. ``linear``: its first half has inputs of
`hardware.LINEAR`, its second half is to have the outputs.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np

cupy: Any = importlib.import_module("cupy")
nbytes, what = int(sys.argv[1]), sys.argv[2]
if what == "bytes":
    begin = (np.arange(nbytes) % 251).astype(np.uint8)
    expected = 255 - begin
else:
    inputs = (np.arange(nbytes // 8) % 251).astype(np.float32)
    begin = np.concatenate([inputs, np.zeros_like(inputs)]).view(np.uint8)
    expected = np.concatenate([inputs, inputs * 3 + 1]).view(np.uint8)
memory = cupy.cuda.Memory(nbytes)  # of its own, not of a pool
array = cupy.ndarray((nbytes,), cupy.uint8, cupy.cuda.MemoryPointer(memory, 0))
array.set(begin)  # a copy, for which no kernel has to be compiled
cupy.cuda.runtime.deviceSynchronize()
print(bytes(cupy.cuda.runtime.ipcGetMemHandle(array.data.ptr)).hex(), flush=True)
sys.stdin.readline()
sys.exit(0 if np.array_equal(array.get(), expected) else "the server has written something else")
