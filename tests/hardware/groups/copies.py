"""Copies are asynchronous, and their memory is pinned, by torch and by cupy; without pinned memory they are right."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from hardware import Skipped, main, need_cupy, need_torch

NBYTES = 64 << 20
CYCLES = 1_000_000_000
"""How long the stream is kept busy first: half a second or so."""
HOST_MEMORY = 1  # cudaMemoryTypeHost


def keep_busy(torch: Any, stream: Any) -> None:
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.handle, device=0)):
        torch.cuda._sleep(CYCLES)


def check(torch: Any, device: Any) -> dict[str, Any]:
    """What is copied behind half a second of work is enqueued at once, and right in the end."""
    stream = device.stream()
    given = device.pinned((NBYTES,), np.dtype(np.uint8))
    given[...] = np.arange(NBYTES) % 251
    warm = stream.download(stream.upload(given))  # torch and the driver get their memory now
    stream.drain()
    assert np.array_equal(warm, given)
    keep_busy(torch, stream)
    began_s = time.perf_counter()
    array = stream.upload(given)
    back = stream.download(array)
    landed = stream.record()
    enqueued_s = time.perf_counter() - began_s
    assert not landed.reached(), "the copies were waited for"
    stream.drain()
    assert landed.reached()
    assert np.array_equal(back, given)
    began = stream.record()
    stream.upload(given)
    over = stream.record()
    stream.drain()
    return {"enqueued_us": 1e6 * enqueued_s, "copy_in_gb_per_s": NBYTES / began.elapsed_ns(over)}


def group(figures: dict[str, Any]) -> None:
    torch = need_torch()
    from trireme.engine.gpu.cuda_device import Captures
    from trireme.engine.gpu.cupy_device import CupyDevices
    from trireme.engine.gpu.pinned_pool import PinnedPool, is_pinned
    from trireme.engine.gpu.torch_device import TorchDevices

    captures, pool = Captures(), PinnedPool(1 << 30)
    gpu = TorchDevices(pool, captures=captures).get(0)
    figures["torch"] = check(torch, gpu)
    array = gpu.pinned((4096,), np.dtype(np.uint8))
    assert is_pinned(array)
    assert torch.from_numpy(array).is_pinned()
    full = TorchDevices(PinnedPool(0)).get(0)
    stream, ordinary = full.stream(), full.pinned((1 << 20,), np.dtype(np.uint8))
    ordinary[...] = 7
    there = stream.upload(ordinary)
    assert (stream.download(there) == 7).all(), "without pinned memory a copy is waited for, and right"
    try:
        cupy = need_cupy()
    except Skipped as missing:
        figures["cupy"] = f"skipped: {missing}"
        return
    device = CupyDevices(pool, captures=captures).get(0)
    figures["cupy"] = check(torch, device)
    array = device.pinned((4096,), np.dtype(np.uint8))
    assert cupy.cuda.runtime.pointerGetAttributes(array.ctypes.data).type == HOST_MEMORY


if __name__ == "__main__":
    main(group)
