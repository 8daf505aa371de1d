"""Captures of CUDA graphs: one that succeeds, one that fails and what it leaves, two instances at a time, one while
others give memory back and make instances, and fifteen reloads of a model with graphs."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
from hardware import linear_request, main, need_torch, serving, write_linear

FLOAT = np.dtype(np.float32)
RELOADS, PATIENCE_S = 15, 60
GRAPHS = "optimization { cuda { graphs: true } }"


def zeros(gpu: Any, stream: Any) -> Any:
    with stream.active():
        return gpu.empty((1024,), FLOAT).zero_()


def succeeds(gpu: Any) -> None:
    stream = gpu.stream()
    total = zeros(gpu, stream)
    graph = gpu.capture(stream, lambda: total.add_(1))
    for _ in range(3):
        graph.launch(stream)
    back = stream.download(total)
    stream.drain()
    assert (back == 3).all(), back


def fails(torch: Any, gpu: Any) -> str:
    """A capture that waits for the device; the text of its failure."""
    from trireme.engine.errors import InternalError

    stream = gpu.stream()
    total = zeros(gpu, stream)
    try:
        gpu.capture(stream, lambda: total.sum().item())
    except InternalError as error:
        text = str(error)
    else:
        raise AssertionError("it was captured, though it waits for the device")
    torch.cuda.empty_cache()
    assert not gpu.captures._stopped, gpu.captures._stopped
    succeeds(gpu)
    return text


def at_once(gpu: Any, *works: Any) -> None:
    """Each on a thread of its own, again and again."""
    errors: list[BaseException] = []

    def run(work: Any) -> None:
        try:
            for _ in range(20):
                work()
        except BaseException as error:  # noqa: BLE001 - for the main thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a capture hangs"
    if errors:
        raise errors[0]


async def reload(figures: dict[str, Any], torch: Any) -> None:
    from trireme.engine.options import ControlMode

    used = []
    with tempfile.TemporaryDirectory() as folder:
        write_linear(Path(folder), instances=2, more=GRAPHS)
        options = {"model_control_mode": ControlMode.EXPLICIT, "startup_models": ("linear",)}
        async with serving(Path(folder), **options) as (server, _):
            for number in range(RELOADS):
                write_linear(
                    Path(folder),
                    instances=2,
                    more=f"{GRAPHS} version_policy {{ latest {{ num_versions: {number + 1} }} }}",
                )
                await server.load_model("linear", {})
                given = np.full((3, 64), number, np.float32)
                response = await server.infer(linear_request(given))
                assert np.allclose(response.outputs[0].array, given * 3 + 1)
                used.append(torch.cuda.memory_reserved(0))
    figures["reserved_after_reloads"] = used
    assert used[-1] <= 2 * max(used[:3]), "memory of graphs does not come back"


def group(figures: dict[str, Any]) -> None:
    torch = need_torch()
    import trio

    from trireme.engine.gpu.torch_device import TorchDevices

    gpu = TorchDevices().get(0)
    succeeds(gpu)
    figures["succeeded"] = True
    figures["failure"] = fails(torch, gpu)
    at_once(gpu, lambda: succeeds(gpu), lambda: succeeds(gpu))
    figures["two_at_once"] = True
    at_once(gpu, lambda: succeeds(gpu), gpu.give_back, lambda: gpu.loaded(gpu.stream()))
    figures["while_others_wait"] = True
    trio.run(reload, figures, torch)


if __name__ == "__main__":
    main(group)
