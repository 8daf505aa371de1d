"""ONNX Runtime on a GPU: `simple`, whose answers are known, at concurrency 64."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hardware import Skipped, main, need, need_cupy, serving

SIMPLE = Path(__file__).resolve().parent.parent.parent.parent / "model_repository" / "simple"
CONCURRENCY, REQUESTS = 64, 50


async def ask_all(figures: dict[str, Any], repository: Path) -> None:
    import time

    import trio

    from trireme.engine.datatypes import INT32
    from trireme.engine.request import InferenceRequest
    from trireme.engine.tensor import Tensor

    async def ask(server: Any, number: int) -> None:
        a = np.arange(number, number + 16, dtype=np.int32)[None]
        b = np.full((1, 16), number, np.int32)
        tensors = [Tensor(f"INPUT{at}", INT32, (1, 16), array.tobytes()) for at, array in enumerate((a, b))]
        for _ in range(REQUESTS):
            response = await server.infer(InferenceRequest("simple", inputs=tensors))
            answers = {output.name: output.array for output in response.outputs}
            assert (answers["OUTPUT0"] == a + b).all()
            assert (answers["OUTPUT1"] == a - b).all()

    async with serving(repository) as (server, _):
        began_s = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for number in range(CONCURRENCY):
                nursery.start_soon(ask, server, number)
        figures["requests_per_s"] = CONCURRENCY * REQUESTS / (time.perf_counter() - began_s)


def group(figures: dict[str, Any]) -> None:
    runtime = need("onnxruntime")
    need_cupy()
    if hasattr(runtime, "preload_dlls"):
        runtime.preload_dlls()
    if "CUDAExecutionProvider" not in runtime.get_available_providers():
        raise Skipped(f"onnxruntime {runtime.__version__} has no CUDAExecutionProvider")
    import trio

    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder) / "simple"
        shutil.copytree(SIMPLE, there)
        config = there / "config.pbtxt"
        config.write_text(config.read_text() + "\ninstance_group { kind: KIND_GPU count: 2 gpus: [ 0 ] }\n")
        trio.run(ask_all, figures, Path(folder))


if __name__ == "__main__":
    main(group)
