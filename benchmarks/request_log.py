"""What the request log costs small requests: throughput and CPU time, with and without it.

    python benchmarks/request_log.py [--rounds 15] [--seconds 2] [--transport http]

First what a request takes that is noted, and what it takes to encode it, by themselves. Then three servers of the
shipped `identity_fp32` (FP32[16]) run side by side: without a log, with one, and with one that has results. In turns,
and in another order in each round, each is asked by a closed loop, 16 requests at a time; the others idle. Printed are
medians over the rounds, and the medians of the ratios to the server without a log in the same round. Run on an idle
machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import timeit
from contextlib import ExitStack
from pathlib import Path
from random import Random

import attack_payloads as payloads
from bench.loop import Load, put_load
from servers import Server, trireme

from trireme.engine.clock import SystemClock
from trireme.engine.config.model import ModelConfig, ModelInput
from trireme.engine.datatypes import FP32
from trireme.engine.logs.request_recorder import RequestRecorder
from trireme.engine.request import InferenceRequest, RequestForm
from trireme.engine.tensor import Tensor

ROOT = Path(__file__).parents[1]
MODEL = "identity_fp32"
CONCURRENCY = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--transport", choices=("http", "grpc"), default="http")
    given = parser.parse_args()
    for name, taken_us in steps().items():
        print(f"{name:28} {taken_us:6.3f} us a request")
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        log = f"--request-log={folder}/"
        cases = {"no log": [], "a log": [f"{log}a"], "with results": [f"{log}b", "--request-log-results=true"]}
        common = "--model-control-mode=explicit", f"--load-model={MODEL}"
        servers = {
            name: stack.enter_context(trireme(ROOT / "model_repository", *common, *flags, grpc=True))
            for name, flags in cases.items()
        }
        seen = measure(servers, given.rounds, given.seconds, given.transport)
    base = seen["no log"]
    for name, samples in seen.items():
        throughput = statistics.median(each["throughput"] for each in samples)
        cpu_us = statistics.median(each["cpu_us"] for each in samples)
        ratios = [
            statistics.median(each[what] / other[what] for each, other in zip(samples, base, strict=True))
            for what in ("throughput", "cpu_us")
        ]
        print(
            f"{name:14} {throughput:8.0f}/s ({ratios[0]:.4f} of that without), "
            f"{cpu_us:6.2f} us of CPU a request ({ratios[1]:.4f})"
        )


def steps(count: int = 1000) -> dict[str, float]:
    """What the log takes of a request, in microseconds: the least of many times, so whatever else the machine does."""
    config = ModelConfig("m", max_batch_size=8, input=(ModelInput("A", FP32, (-1,)),))
    recorder = RequestRecorder(SystemClock(), b"key")
    alike = [InferenceRequest("m", form=RequestForm(), protocol="http")] * count
    inputs = [{"A": Tensor("A", FP32, (1, size), bytes(4 * size))} for size in range(1, count + 1)]
    now_ns = time.monotonic_ns()

    def note(form: RequestForm | None) -> None:
        for request, given in zip(alike, inputs, strict=True):
            request.form = form
            recorder.arrived(request, config, given if form is None else inputs[0], 1, now_ns)

    def least_us(what: object) -> float:
        return min(timeit.repeat(what, number=1, repeat=200)) * 1e6 / count  # type: ignore[arg-type]

    def note_alike(form: RequestForm = RequestForm()) -> None:  # noqa: B008
        note(form)
        recorder.take()

    def note_different() -> None:
        note(None)
        recorder.take()

    taken = {"noted, one like the other": least_us(note_alike), "noted, no two alike": least_us(note_different)}
    for name, form in (("encoded, one like the other", RequestForm()), ("encoded, no two alike", None)):
        note(form)
        waiting = recorder.take()
        taken[name] = least_us(lambda waiting=waiting: list(recorder.encode(waiting)))
    return taken


def measure(
    servers: dict[str, Server], rounds: int, seconds: float, transport: str
) -> dict[str, list[dict[str, float]]]:
    http = transport == "http"
    body = payloads.infer_request(MODEL, *payloads.small_infer()) if http else payloads.grpc_small(MODEL)
    chance = Random(1)
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
    for _ in range(rounds):
        for name in chance.sample(list(servers), len(servers)):
            server = servers[name]
            port = server.http_port if http else server.grpc_port or 0
            load = Load(port, transport, [body], CONCURRENCY, CONCURRENCY, CONCURRENCY, 0.3, seconds)
            seen[name].append(put_load(load, server.cpu_s, timeout_s=60 + seconds))
    return seen


if __name__ == "__main__":
    main()
