"""Requests of sequences: CPU time of each, and the memory of sequences that are live.

    python benchmarks/sequences.py [--concurrency 1 16 256] [--live 10000]

Sequences of 20 requests go to `running_sum` of the model repository through `InferenceServer`, without a front end, so
that nothing but scheduling and execution is counted. The server's task and its clients share one event loop: what is
printed is the process's CPU time, which other programs disturb little. Compare two versions by turns.

Then so many sequences are begun, in a model of as many slots, and the growth of the process is printed.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import trio

from trireme.actors import InferenceServer
from trireme.engine.datatypes import INT32
from trireme.engine.options import ServerOptions
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor

MODEL = "running_sum"
REPOSITORY = Path(__file__).parent.parent / "model_repository"
REQUESTS = 20
"""Of a sequence."""


def request(key: int, place: int, length: int = REQUESTS) -> InferenceRequest:
    """The request of a sequence at this place."""
    tensor = Tensor("INPUT", INT32, (1, 1), array=np.array([[place]], np.int32))
    return InferenceRequest(
        MODEL, inputs=[tensor], correlation_id=key, sequence_start=place == 0, sequence_end=place == length - 1
    )


async def client(server: InferenceServer, keys: list[int]) -> None:
    for key in keys:
        for place in range(REQUESTS):
            await server.infer(request(key, place))


async def measure(server: InferenceServer, concurrency: int, sequences: int) -> float:
    """CPU time of a request, in microseconds."""
    keys = list(range(1, sequences + 1))
    began = time.process_time()
    async with trio.open_nursery() as nursery:
        for number in range(concurrency):
            nursery.start_soon(client, server, keys[number::concurrency])
    return (time.process_time() - began) / (sequences * REQUESTS) * 1e6


async def begin(server: InferenceServer, live: int) -> float:
    """Bytes that the process grows by for each of so many sequences that have begun and go on."""
    async with trio.open_nursery() as nursery:
        for key in range(live + 1, live + 65):
            nursery.start_soon(server.infer, request(key, 0))
    gc.collect()
    process = psutil.Process()
    before = process.memory_info().rss
    for first in range(1, live + 1, 100):
        async with trio.open_nursery() as nursery:
            for key in range(first, min(first + 100, live + 1)):
                nursery.start_soon(server.infer, request(key, 0))
    gc.collect()
    return (process.memory_info().rss - before) / live


def repository(folder: Path, slots: int) -> Path:
    """A copy of the model, with so many slots that stay for an hour; as it is for 0."""
    shutil.copytree(REPOSITORY / MODEL, folder / MODEL)
    if slots:
        config = folder / MODEL / "config.pbtxt"
        text = config.read_text().replace("direct { }", f"oldest {{ max_candidate_sequences: {slots} }}")
        config.write_text(text.replace("microseconds: 5000000", "microseconds: 3600000000"))
    return folder


async def main(concurrency: list[int], requests: int, live: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with InferenceServer(ServerOptions(model_repository=(repository(Path(folder), 0),))) as server:
            await measure(server, 16, 50)
            for each in concurrency:
                used = await measure(server, each, max(each, requests // REQUESTS))
                print(f"{each:5} sequences at once: {used:6.1f} us of CPU a request")
    with tempfile.TemporaryDirectory() as folder:
        async with InferenceServer(ServerOptions(model_repository=(repository(Path(folder), live + 64),))) as server:
            print(f"{live:5} live sequences: {await begin(server, live) / 1024:.1f} KiB each")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16, 256])
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--live", type=int, default=10_000)
    options = parser.parse_args()
    trio.run(main, options.concurrency, options.requests, options.live)
