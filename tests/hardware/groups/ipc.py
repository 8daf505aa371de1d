"""CUDA shared memory: another process allocates it, this one reads and writes it as the server does, and serves a model
whose inputs and outputs are copied within the GPU."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from hardware import Skipped, main, need_cupy, need_torch, serving, write_linear

NBYTES = 8 << 20
CHILD = Path(__file__).resolve().parent.parent / "ipc_child.py"
PATIENCE_S = 40
ROWS, COLUMNS = 4, 64
REQUEST_BYTES = ROWS * COLUMNS * 4
REQUESTS = NBYTES // 2 // REQUEST_BYTES
AT_ONCE = 64


@contextmanager
def client(what: str) -> Iterator[bytes]:
    """A process with memory on the GPU, by its handle. At the end it finds there what it expects."""
    command = [sys.executable, str(CHILD), str(NBYTES), what]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        handle = bytes.fromhex(child.stdout.readline().decode())
        assert handle, f"the client ended: {child.wait(PATIENCE_S)}"
        yield handle
        output, _ = child.communicate(b"\n", timeout=PATIENCE_S)
        assert child.returncode == 0, output
    finally:
        child.kill()


def read_and_write(figures: dict[str, Any], driver: Any, handle: bytes) -> None:
    from trireme.engine.errors import InvalidArgumentError
    from trireme.engine.memory.cuda import CudaRegion

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


async def serve(figures: dict[str, Any], handle: bytes) -> None:
    """Requests whose inputs and outputs are in the client's memory, many at once, so that batches have several."""
    import trio

    from trireme.engine.datatypes import FP32
    from trireme.engine.memory.regions import RegionKind
    from trireme.engine.memory.tensors import RegionTensor
    from trireme.engine.request import InferenceRequest

    placed = 0
    free = trio.CapacityLimiter(AT_ONCE)

    async def ask(server: Any, number: int) -> None:
        nonlocal placed
        at = number * REQUEST_BYTES
        given = RegionTensor("X", FP32, (ROWS, COLUMNS), server.shared_memory.slice("shared", at, REQUEST_BYTES))
        request = InferenceRequest("linear", inputs=[given], in_regions=True)
        wanted = server.shared_memory.slice("shared", NBYTES // 2 + at, REQUEST_BYTES)
        request.output_places = {"Y": wanted}
        async with free:
            (output,) = (await server.infer(request)).outputs
        placed += isinstance(output, RegionTensor)

    with tempfile.TemporaryDirectory() as folder:
        write_linear(Path(folder), columns=COLUMNS)
        async with serving(Path(folder)) as (server, _):
            server.shared_memory.register_cuda("shared", handle, 0, NBYTES)
            began_s = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for number in range(REQUESTS):
                    nursery.start_soon(ask, server, number)
            figures["placed_requests_per_s"] = REQUESTS / (time.perf_counter() - began_s)
            server.shared_memory.unregister(RegionKind.CUDA)
    assert placed == REQUESTS, f"the host has copied {REQUESTS - placed} of {REQUESTS} outputs"


def group(figures: dict[str, Any]) -> None:
    need_cupy()
    from trireme.engine.memory.cuda import find_cuda

    driver = find_cuda()
    if driver is None:
        raise Skipped("there is no CUDA driver")
    with client("bytes") as handle:
        read_and_write(figures, driver, handle)
    try:
        need_torch()
    except Skipped as missing:
        figures["served"] = f"skipped: {missing}"
        return
    import trio

    with client("linear") as handle:
        trio.run(serve, figures, handle)


if __name__ == "__main__":
    main(group)
