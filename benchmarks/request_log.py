"""What the request log costs small requests: throughput and CPU time, with and without it.

    python benchmarks/request_log.py [--rounds 15] [--seconds 2] [--transport http]

Three servers of the shipped `identity_fp32` (FP32[16]) run side by side: without a log, with one, and with one that has
results. In turns, and in another order in each round, each is asked by a closed loop, 16 requests at a time; the
others idle. Printed are medians over the rounds, and the medians of the ratios to the server without a log in the same
round. Run on an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from random import Random

import attack_payloads as payloads
from bench.loop import Load, put_load
from servers import Server, trireme

ROOT = Path(__file__).parents[1]
MODEL = "identity_fp32"
CONCURRENCY = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--transport", choices=("http", "grpc"), default="http")
    given = parser.parse_args()
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
