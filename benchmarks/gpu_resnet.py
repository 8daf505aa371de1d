"""What serving costs on a GPU: ResNet-50, half precision, random weights, against PyTorch alone at the same batch size.

    python benchmarks/gpu_resnet.py --output gpu

Four questions, in one run:

* Of the images a second that a bare loop of PyTorch gets through, how many does the server, at concurrency 64? The loop
  has its input on the GPU already and copies nothing: what the server copies, it must hide.
* Are two instances faster than one?
* How much of the time for copies is hidden behind computation? Says the profiler; the picture is ``OUTPUT.svg``.
* What does serving add to a single request, at concurrency 1? Median of the server's, less the median of a loop that
  copies in, computes, copies out, and waits.

Requests are put to `InferenceServer` in this process, so that no client and no socket is measured, and each carries one
image of its own. `--graphs` lets the server use CUDA graphs, `--cpu` only tries the script out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trio
from gpu_timeline import Timeline, picture, timeline
from resnet import resnet50
from rich.console import Console
from rich.table import Table
from servers import machine
from torch.profiler import ProfilerActivity, profile

from trireme.actors import InferenceServer
from trireme.engine.backends.pytorch import PyTorchBackend
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.datatypes import FP16, FP32
from trireme.engine.options import ServerOptions
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor

MODEL = "resnet50"
WARM_UP_S = 3.0
PROFILED_S = 0.5


@dataclass(frozen=True)
class Case:
    """What is measured.

    Attributes:
        place: ``cuda`` or ``cpu``.
        size: pixels of an image's side.
        batch: largest batch.
    """

    place: str
    size: int
    batch: int
    concurrency: int
    seconds: float
    graphs: bool

    @property
    def dtype(self) -> torch.dtype:
        return torch.float16 if self.place == "cuda" else torch.float32


@dataclass(frozen=True)
class Served:
    """One server, measured once."""

    instances: int
    concurrency: int
    images_per_s: float
    p50_ms: float
    p99_ms: float
    rows_per_batch: float


# PyTorch alone


def bare_images_per_s(case: Case, module: Any) -> float:
    """Batch after batch, all on one stream, never waiting but at the end."""
    given = torch.zeros((case.batch, 3, case.size, case.size), dtype=case.dtype, device=case.place)

    def run(seconds: float) -> float:
        batches, started_s = 0, time.perf_counter()
        while time.perf_counter() - started_s < seconds:
            for _ in range(8):
                module(given)
            _wait(case)
            batches += 8
        return batches * case.batch / (time.perf_counter() - started_s)

    with torch.inference_mode():
        run(WARM_UP_S)
        return run(case.seconds)


def bare_p50_ms(case: Case, module: Any) -> float:
    """One image: in, through, out, and waited for."""
    given = torch.zeros((1, 3, case.size, case.size), dtype=case.dtype)
    if case.place == "cuda":
        given = given.pin_memory()
    times_s: list[float] = []
    with torch.inference_mode():
        until_s = time.perf_counter() + WARM_UP_S + case.seconds
        while (started_s := time.perf_counter()) < until_s:
            module(given.to(case.place, non_blocking=True)).cpu()
            times_s.append(time.perf_counter() - started_s)
    return 1000 * statistics.median(times_s[len(times_s) // 3 :])


def _wait(case: Case) -> None:
    if case.place == "cuda":
        torch.cuda.synchronize()


# The server


def scripted(case: Case) -> Any:
    """The network as TorchScript, which is what both sides run."""
    example = torch.zeros((2, 3, case.size, case.size), dtype=case.dtype, device=case.place)
    with torch.inference_mode():
        return torch.jit.trace(resnet50().to(case.place, case.dtype), (example,))


def write_model(repository: Path, case: Case, module: Any, instances: int) -> None:
    """The model's file, and how it is to be served."""
    version = repository / MODEL / "1"
    version.mkdir(parents=True)
    module.save(str(version / "model.pt"))
    kind = "KIND_GPU" if case.place == "cuda" else "KIND_CPU"
    datatype = "TYPE_FP16" if case.dtype is torch.float16 else "TYPE_FP32"
    graphs = "optimization { cuda { graphs: true } }" if case.graphs else ""
    (repository / MODEL / "config.pbtxt").write_text(
        f'backend: "pytorch" max_batch_size: {case.batch} '
        f'input {{ name: "IMAGE__0" data_type: {datatype} dims: [ 3, {case.size}, {case.size} ] }} '
        f'output {{ name: "SCORES__0" data_type: {datatype} dims: [ 1000 ] }} '
        f"dynamic_batching {{ }} instance_group {{ kind: {kind} count: {instances} }} {graphs}"
    )


class Load:
    """Requests to a server, one after the other from each of so many tasks."""

    def __init__(self, server: InferenceServer, case: Case, concurrency: int) -> None:
        self._server = server
        datatype = FP16 if case.dtype is torch.float16 else FP32
        rng = np.random.default_rng(0)
        shape = (1, 3, case.size, case.size)
        images = rng.random((concurrency, *shape)).astype(datatype.storage)
        self._requests = [
            InferenceRequest(MODEL, inputs=[Tensor("IMAGE__0", datatype, shape, image.tobytes())]) for image in images
        ]
        self.times_s: list[float] = []

    async def run(self, seconds: float) -> float:
        """Images a second."""
        self.times_s = []
        started_s = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for request in self._requests:
                nursery.start_soon(self._ask, request, started_s + seconds)
        return len(self.times_s) / (time.perf_counter() - started_s)

    async def _ask(self, request: InferenceRequest, until_s: float) -> None:
        while (started_s := time.perf_counter()) < until_s:
            await self._server.infer(request)
            self.times_s.append(time.perf_counter() - started_s)


async def serve(case: Case, module: Any, instances: int, measure: Callable[[InferenceServer], Any]) -> Any:
    """A server with so many instances of the model, for as long as `measure` takes; its result."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), case, module, instances)
        options = ServerOptions(model_repository=(Path(folder),))
        registry = BackendRegistry(options.options_for_backend, {"pytorch": PyTorchBackend})
        async with InferenceServer(options, backends=registry) as server:
            return await measure(server)


async def served(case: Case, module: Any, instances: int, concurrency: int) -> Served:
    async def measure(server: InferenceServer) -> Served:
        load = Load(server, case, concurrency)
        await load.run(WARM_UP_S)
        before = executions(server)
        rate = await load.run(case.seconds)
        after = executions(server)
        times_ms = sorted(1000 * each for each in load.times_s)
        p99_ms = times_ms[len(times_ms) * 99 // 100]
        rows = (after[0] - before[0]) / max(after[1] - before[1], 1)
        return Served(instances, concurrency, rate, statistics.median(times_ms), p99_ms, rows)

    return await serve(case, module, instances, measure)


async def profiled(case: Case, module: Any) -> Timeline:
    """What the GPU did while one instance was under load."""

    async def measure(server: InferenceServer) -> Timeline:
        load = Load(server, case, case.concurrency)
        await load.run(WARM_UP_S)
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            await load.run(PROFILED_S)
        return timeline(
            (event.name, event.time_range.start, event.time_range.end)
            for event in seen.events() or ()
            if event.device_type.name == "CUDA"
        )

    return await serve(case, module, 1, measure)


def executions(server: InferenceServer) -> tuple[int, int]:
    """Rows and batches so far."""
    (entry,) = server.statistics(MODEL)
    return entry.statistics.inference_count, entry.statistics.execution_count


# What is said about it


def report(case: Case, bare: float, single_ms: float, runs: list[Served], console: Console) -> None:
    table = Table(
        title=f"ResNet-50, {case.size} x {case.size}, batches of {case.batch}, bare loop {bare:,.0f} images/s"
    )
    for column in ("instances", "concurrency", "images/s", "of bare", "p50 ms", "p99 ms", "rows/batch"):
        table.add_column(column, justify="right")
    for run in runs:
        share = run.images_per_s / bare
        table.add_row(
            str(run.instances), str(run.concurrency), f"{run.images_per_s:,.0f}", f"{share:.1%}",
            f"{run.p50_ms:.2f}", f"{run.p99_ms:.2f}", f"{run.rows_per_batch:.1f}",
        )  # fmt: skip
    console.print(table)
    alone = next(run for run in runs if run.concurrency == 1)
    console.print(f"serving adds {1000 * (alone.p50_ms - single_ms):.0f} us to a request of {single_ms:.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32, help="largest batch; half of the concurrency, so that two fly")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each measurement")
    parser.add_argument("--graphs", action="store_true", help="serve with CUDA graphs")
    parser.add_argument("--cpu", action="store_true", help="try the script out where there is no GPU")
    parser.add_argument("--output", type=Path, help="write OUTPUT.json, and the timeline as OUTPUT.svg")
    asked = parser.parse_args()
    if not asked.cpu and not torch.cuda.is_available():
        raise SystemExit(f"torch {torch.__version__} finds no GPU; --cpu tries the script out without one")
    place = "cpu" if asked.cpu else "cuda"
    case = Case(place, asked.size, asked.batch, asked.concurrency, asked.seconds, asked.graphs and not asked.cpu)
    module = scripted(case)
    bare, single_ms = bare_images_per_s(case, module), bare_p50_ms(case, module)
    runs = [
        trio.run(served, case, module, instances, concurrency)
        for instances, concurrency in ((1, case.concurrency), (2, case.concurrency), (1, 1))
    ]
    console = Console()
    report(case, bare, single_ms, runs, console)
    result = {
        "device": torch.cuda.get_device_name() if place == "cuda" else "cpu",
        "torch": torch.__version__,
        "machine": machine(),
        "case": asdict(case),
        "bare_images_per_s": bare,
        "bare_p50_ms": single_ms,
        "served": [asdict(run) for run in runs],
    }
    if place == "cuda":
        shown = trio.run(profiled, case, module)
        result |= {"copies_hidden": shown.hidden(), "computing": shown.busy()}
        console.print(f"{shown.hidden():.0%} of the copies' time is hidden; computing {shown.busy():.0%} of the time")
        if asked.output:
            title = f"ResNet-50 served at concurrency {case.concurrency}: {shown.hidden():.0%} of the copies are hidden"
            asked.output.with_suffix(".svg").write_text(picture(shown, title))
    if asked.output:
        asked.output.with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
