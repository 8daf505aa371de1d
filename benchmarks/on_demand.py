"""1,000 models, room for 50, requests by Zipf's law: models on demand (docs/on_demand.md) for real.

    python benchmarks/on_demand.py [--models 1000] [--room 50] [--requests 2000] [--rate 60] [--alternations 3]

Writes a repository of 1,000 ONNX models, links to one file with a matrix of 1 MiB. Serves it with memory for 50, and
sends requests over HTTP and gRPC in turn, by tritonclient, at a steady rate; which model is asked for follows Zipf's
law with exponent 1. Beside it a server has the 50 models that are asked for most loaded for good, and gets as many
requests for these alone. The two alternate. Said are: requests that failed (none may), the hit rate beside that of LRU
on the same trace with as many places as were in use, waits, and p50 and p99 of hits beside those of the other server.
Which requests must be hits the client knows: those for the models that were asked for and answered most recently, half
as many as there is room for. It exits with 1 if a request is lost, or the hit rate is more than 5 % below LRU's.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import re
import statistics
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from servers import Server, machine, model_config, trireme
from tritonclient.utils import InferenceServerException

WIDTH = 512
FILE_BYTES = WIDTH * WIDTH * 4
CLIENTS = 16
ALLOWED_LOSS = 0.05
LOOK_S = 5.0
"""The index of 1,000 models takes the server 80 ms, which hits would notice."""
FLAGS = ("--log-info", "false")


@dataclass
class Measured:
    """What a run has shown: seconds, from sending a request to its answer."""

    hits_s: list[float] = field(default_factory=list)
    others_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    hits: int = 0
    misses: int = 0


def write_repository(folder: Path, models: int) -> None:
    """Models `m0` and so on, all links to one file."""
    from onnx import TensorProto, helper, numpy_helper, save_model

    weight = numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32), "weight")
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in ("INPUT0", "OUTPUT0")]
    node = helper.make_node("MatMul", ["INPUT0", "weight"], ["OUTPUT0"])
    graph = helper.make_graph([node], "one", tensors[:1], tensors[1:], [weight])
    file = folder.with_name("one.onnx")
    save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(file))
    for number in range(models):
        name = f"m{number}"
        (folder / name / "1").mkdir(parents=True)
        os.link(file, folder / name / "1" / "model.onnx")
        about = {"INPUT0": ("FP32", (WIDTH,))}, {"OUTPUT0": ("FP32", (WIDTH,))}
        (folder / name / "config.pbtxt").write_text(model_config(name, "onnxruntime", 8, *about))


def zipf_trace(models: int, requests: int, seed: int) -> list[int]:
    """Which model each request is for."""
    return random.Random(seed).choices(range(models), [1 / (rank + 1) for rank in range(models)], k=requests)


def lru_hits(trace: Sequence[int], places: int, first: int) -> int:
    """Of the requests from `first` on, if loads took no time."""
    memory: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for number, model in enumerate(trace):
        if model in memory:
            hits += number >= first
            memory.move_to_end(model)
        else:
            memory[model] = None
            if len(memory) > places:
                memory.popitem(last=False)
    return hits


class Recent:
    """The models that were answered most recently, which are surely in memory."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._models: OrderedDict[int, None] = OrderedDict()
        self._lock = threading.Lock()

    def has(self, model: int) -> bool:
        with self._lock:
            return model in self._models

    def answered(self, model: int) -> None:
        with self._lock:
            self._models[model] = None
            self._models.move_to_end(model)
            if len(self._models) > self._count:
                self._models.popitem(last=False)


def drive(server: Server, trace: Sequence[int], rate: float, recent: Recent) -> Measured:
    """Send all requests at a steady rate, half of them over HTTP."""
    measured, numbers, begin_s = Measured(), itertools.count(), time.perf_counter() + 0.1
    lock = threading.Lock()

    def work(protocol: Any, url: str) -> None:
        client = protocol.InferenceServerClient(url)
        tensor = protocol.InferInput("INPUT0", [1, WIDTH], "FP32")
        tensor.set_data_from_numpy(np.ones((1, WIDTH), np.float32))
        while (number := next(numbers)) < len(trace):
            model, due_s = trace[number], begin_s + number / rate
            time.sleep(max(0.0, due_s - time.perf_counter()))
            is_hit, since_s, error = recent.has(model), time.perf_counter(), ""
            try:
                answer = client.infer(f"m{model}", [tensor]).as_numpy("OUTPUT0")
                error = "" if answer.shape == (1, WIDTH) else f"m{model}: shape {answer.shape}"
            except InferenceServerException as failure:
                error = f"m{model}: {failure}"
            took_s = time.perf_counter() - since_s
            recent.answered(model)
            with lock:
                measured.errors += [error] * bool(error)
                (measured.hits_s if is_hit else measured.others_s).append(took_s)
        client.close()

    protocols = [(tritonclient.http, server.url), (tritonclient.grpc, server.grpc_url)]
    threads = [threading.Thread(target=work, args=protocols[number % 2]) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    looked_s = 0.0
    while any(thread.is_alive() for thread in threads):
        if not measured.places or time.perf_counter() - looked_s > LOOK_S:
            looked_s = time.perf_counter()
            measured.places.append(ready_models(server))
        time.sleep(0.1)
    return measured


def ready_models(server: Server) -> int:
    """How many are in memory."""
    return len(re.findall(rb'"state":\s*"READY"', post(server, "/v2/repository/index")))


def post(server: Server, path: str) -> bytes:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", server.http_port)
    try:
        connection.request("POST", path)
        return connection.getresponse().read()
    finally:
        connection.close()


def metric(server: Server, name: str) -> float:
    """The sum over its labels, or over those series that have this one."""
    name, _, label = name.partition(" ")
    page = server.get("/metrics", metrics=True).decode()
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*{label}.*}})? (\S+)$", page, re.MULTILINE))


def quantile(values: Sequence[float], part: float) -> float:
    """In milliseconds."""
    ranked = sorted(values)
    return 1_000 * ranked[min(len(ranked) - 1, int(part * len(ranked)))] if ranked else 0.0


@contextmanager
def both(folder: Path, options: argparse.Namespace) -> Iterator[tuple[Server, Server]]:
    """The server with models on demand, and the one that has its models for good."""
    limit = str(round(options.room * options.model_bytes))
    most = itertools.chain.from_iterable(("--load-model", f"m{number}") for number in range(options.room))
    on_demand = ("--model-control-mode", "on-demand", "--model-memory-limit", limit)
    with (
        trireme(folder, *on_demand, *FLAGS, grpc=True) as first,
        trireme(folder, "--model-control-mode", "explicit", *most, *FLAGS, grpc=True) as second,
    ):
        yield first, second


def main() -> None:
    """The measurement."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", type=int, default=1_000)
    parser.add_argument("--room", type=int, default=50)
    parser.add_argument("--requests", type=int, default=2_000, help="of each alternation")
    parser.add_argument("--rate", type=float, default=60.0)
    parser.add_argument("--alternations", type=int, default=3)
    parser.add_argument("--model-bytes", type=float, default=FILE_BYTES + 4_096, help="of one model, as counted")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "models"
        write_repository(repository, options.models)
        with both(repository, options) as servers:
            sys.exit(measure(*servers, options))


def measure(on_demand: Server, beside: Server, options: argparse.Namespace) -> int:
    """Print what there is to say; the exit status."""
    count, room = options.requests, options.room
    trace = zipf_trace(options.models, count * (options.alternations + 1), 1)
    few = [number % room for number in zipf_trace(room, len(trace), 2)]
    recent, recent_beside = Recent(room // 2), Recent(room)
    drive(on_demand, trace[:count], options.rate, recent)  # until it is full
    drive(beside, few[:count], options.rate, recent_beside)
    before = {name: metric(on_demand, f"trireme_on_demand_{name}") for name in COUNTS}
    runs: list[tuple[Measured, Measured]] = []
    for number in range(1, options.alternations + 1):
        part = slice(number * count, (number + 1) * count)
        runs.append(
            (
                drive(on_demand, trace[part], options.rate, recent),
                drive(beside, few[part], options.rate, recent_beside),
            )
        )
    counts = {name: metric(on_demand, f"trireme_on_demand_{name}") - before[name] for name in COUNTS}
    return report(trace, runs, counts, options)


HITS, MISSES = 'requests_total outcome="hit"', 'requests_total outcome="miss"'
COUNTS = (HITS, MISSES, "loads_total", "unloads_total", "wait_seconds_sum")
"""Metrics of the server, by the ends of their names, some with a label."""


def report(
    trace: Sequence[int],
    runs: Sequence[tuple[Measured, Measured]],
    counts: dict[str, float],
    options: argparse.Namespace,
) -> int:
    """Print what was found; 1 if it is not as it should be."""
    errors = [error for run in runs for each in run for error in each.errors]
    places = round(statistics.mean(place for run, _ in runs for place in run.places))
    asked = counts[HITS] + counts[MISSES]
    hits = counts[HITS] / asked
    lru = lru_hits(trace, places, options.requests) / (options.requests * options.alternations)
    waits = [wait_s for run, _ in runs for wait_s in run.others_s]
    print(machine())
    print(f"requests {asked:.0f}, failed {len(errors)} {errors[:3]}")
    print(f"in memory {places} models (of {options.models}); loads {counts['loads_total']:.0f}, ", end="")
    print(f"unloads {counts['unloads_total']:.0f}")
    print(f"hit rate {hits:.3f}, LRU's with {places} places {lru:.3f}: {hits / lru:.3f} of it")
    print(f"waits for models: mean {1_000 * counts['wait_seconds_sum'] / max(1.0, counts[MISSES]):.1f} ms")
    print(f"requests that may have waited: p50 {quantile(waits, 0.5):.1f} ms, p99 {quantile(waits, 0.99):.1f} ms")
    for part in (0.5, 0.99):
        pairs = [(quantile(run.hits_s, part), quantile(beside.hits_s, part)) for run, beside in runs]
        ratio = statistics.median(run / beside for run, beside in pairs)
        text = ", ".join(f"{run:.2f} / {beside:.2f}" for run, beside in pairs)
        print(f"hits, p{part * 100:.0f}, beside {options.room} models for good: {text} ms; median ratio {ratio:.2f}")
    return int(bool(errors) or hits < (1 - ALLOWED_LOSS) * lru)


if __name__ == "__main__":
    main()
