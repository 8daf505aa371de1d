"""What a step of a generating network takes, by how many tokens of prompts and texts it computes, and after how many.

    python benchmarks/generation_steps.py [--shape medium] [--dtype float32] [--threads 2] [--profile] [--quick]

In this process, without a server: `Network.run` alone. A step of texts has one token each of so many generations, each
of which has so many tokens already (context); a step of a prompt has so many tokens of one.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch
from generation_networks import CONTEXT, SHAPES, VOCABULARY, make_network

from trireme.engine.backends.generation.network import Network
from trireme.engine.generation.blocks import BlockMemory
from trireme.engine.generation.iterations import Piece, Step
from trireme.engine.generation.requests import Generation

SIZE = 16
TEXTS = [(1, 64), (1, 1_024), (8, 64), (8, 256), (8, 1_024), (32, 64), (32, 256), (32, 1_024)]
PROMPTS = [(16, 0), (64, 0), (256, 0), (512, 0), (256, 1_024)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="medium")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--profile", action="store_true", help="what takes the time in steps of 32 texts")
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as folder:
        make_network(Path(folder), given.shape, given.dtype)
        network = Network(Path(folder), 32 * CONTEXT // SIZE, SIZE)
    seconds = 0.3 if given.quick else 1.5
    print(
        f"{given.shape}, {given.dtype}, {given.threads} threads: ms a step, median and tenth percentile, and CPU time"
    )
    for count, context in TEXTS:
        shown(f"{count} texts, after {context}", network, made_step([(context, context + 1)] * count), seconds)
    for tokens, context in PROMPTS:
        shown(f"{tokens} of a prompt, after {context}", network, made_step([(context, context + tokens)]), seconds)
    mixed = [(256, 257)] * 16 + [(0, 256)]
    shown("16 texts after 256 beside 256 of a prompt", network, made_step(mixed), seconds)
    if given.profile:
        profile(network, made_step([(256, 257)] * 32))
    return 0


def made_step(pieces: Sequence[tuple[int, int]]) -> Step:
    """A step of generations that have come so far."""
    chance, made = Random(1), []
    memory = BlockMemory(32 * CONTEXT // SIZE, SIZE, shares=False)
    for number, (start, end) in enumerate(pieces):
        tokens = [chance.randrange(VOCABULARY) for _ in range(end)]
        generation = Generation(number, tokens, 1, computed=start, table=memory.begin(tokens, b"", ()))
        made.append(Piece(generation, start, end, draws=True))
    return Step(made, [])


def shown(name: str, network: Network, step: Step, seconds: float) -> None:
    network.run(step)
    found: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found) < 3:
        begun = time.perf_counter(), time.process_time()
        network.run(step)
        found.append(((time.perf_counter() - begun[0]) * 1e3, (time.process_time() - begun[1]) * 1e3))
    by_clock, by_processor = map(sorted, zip(*found, strict=True))
    tenth = by_clock[len(found) // 10]
    print(
        f"  {name:45}{statistics.median(by_clock):9.2f}{tenth:9.2f}{statistics.median(by_processor):9.2f}", flush=True
    )


def profile(network: Network, step: Step) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(20):
            network.run(step)
    print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=22, max_name_column_width=45))


if __name__ == "__main__":
    raise SystemExit(main())
