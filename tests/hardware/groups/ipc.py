"""CUDA shared memory: another process allocates it, this one reads and writes it as the server does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from hardware import Skipped, main, need_cupy

NBYTES = 8 << 20
CHILD = Path(__file__).resolve().parent.parent / "ipc_child.py"


def group(figures: dict[str, Any]) -> None:
    need_cupy()
    import time

    from trireme.engine.cuda_memory import CudaRegion, find_cuda
    from trireme.engine.errors import InvalidArgumentError

    driver = find_cuda()
    if driver is None:
        raise Skipped("there is no CUDA driver")
    child = subprocess.Popen([sys.executable, str(CHILD), str(NBYTES)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    handle = bytes.fromhex(child.stdout.readline().decode())
    region = CudaRegion(driver, "shared", handle, 0, NBYTES)
    expected = (np.arange(NBYTES) % 251).astype(np.uint8)
    began_s = time.perf_counter()
    read = region.read(0, NBYTES)
    figures["read_gb_per_s"] = NBYTES / (time.perf_counter() - began_s) / 1e9
    assert np.array_equal(np.frombuffer(read, np.uint8), expected)
    began_s = time.perf_counter()
    region.write(0, (255 - expected).tobytes())
    figures["write_gb_per_s"] = NBYTES / (time.perf_counter() - began_s) / 1e9
    for wrong in (b"\x00" * 64, b"short"):
        try:
            CudaRegion(driver, "wrong", wrong, 0, NBYTES)
        except InvalidArgumentError:
            continue
        raise AssertionError("a handle of nothing was opened")
    del region
    output, _ = child.communicate(b"\n", timeout=30)
    assert child.returncode == 0, output


if __name__ == "__main__":
    main(group)
