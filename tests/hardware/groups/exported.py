"""Programs in ``.pt2``: exported on the CPU with a device written into it, and compiled by AOTInductor."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from hardware import main, need_torch, serving

CONFIG = """
platform: "torch_aoti" backend: "pytorch" max_batch_size: 16
input {{ name: "ARGS[0]" data_type: TYPE_FP32 dims: [ 64 ] }}
output {{ name: "RESULT" data_type: TYPE_FP32 dims: [ 64 ] }}
dynamic_batching {{ }} instance_group {{ kind: KIND_GPU count: {instances} gpus: [ 0 ] }}
"""


def program(torch: Any, place: str) -> Any:
    class Ramp(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 3 + torch.arange(64, device=x.device)

    rows = torch.export.Dim("rows", min=1, max=16)
    return torch.export.export(Ramp().eval(), (torch.ones(2, 64, device=place),), dynamic_shapes={"x": {0: rows}})


async def ask(figures: dict[str, Any], folder: Path, name: str) -> None:
    import trio

    from trireme.engine.datatypes import FP32
    from trireme.engine.request import InferenceRequest
    from trireme.engine.tensor import Tensor

    given = np.random.default_rng(0).random((4, 64), np.float32)
    request = InferenceRequest(name, inputs=[Tensor("ARGS[0]", FP32, given.shape, given.tobytes())])

    async def one(server: Any) -> None:
        for _ in range(50):
            response = await server.infer(request)
            assert np.allclose(response.outputs[0].array, given * 3 + np.arange(64), rtol=1e-5)

    async with serving(folder) as (server, _):
        began_s = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(one, server)
        figures[f"{name}_requests_per_s"] = 400 / (time.perf_counter() - began_s)


def serve(figures: dict[str, Any], name: str, write: Any) -> None:
    import trio

    with tempfile.TemporaryDirectory() as folder:
        version = Path(folder) / name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(CONFIG.format(instances=2))
        write(version / "model.pt2")
        trio.run(ask, figures, Path(folder), name)


def group(figures: dict[str, Any]) -> None:
    torch = need_torch()
    serve(figures, "exported", lambda path: torch.export.save(program(torch, "cpu"), path))

    def compile_to(path: Path) -> None:
        torch._inductor.aoti_compile_and_package(program(torch, "cuda"), package_path=str(path))

    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "model.pt2"
        try:
            compile_to(package)
        except Exception as error:  # noqa: BLE001 - a machine without compilers, of which there are several
            figures["compiled"] = f"skipped: AOTInductor cannot compile here: {error}"[:500]
            return
        serve(figures, "compiled", lambda path: path.write_bytes(package.read_bytes()))


if __name__ == "__main__":
    main(group)
