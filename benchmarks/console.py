"""What an open console costs the server behind it: throughput of small requests, with and without.

    python benchmarks/console.py [--rounds 15] [--seconds 2] [--consoles 1]

First what a frame takes by itself: to note the 192 batches of eight requests that are most in one, and to make it. Then
one server of the shipped `identity_fp32` (FP32[16]) and a closed loop, 16 requests at a time. In turns, in another
order in every other round, the loop runs with so many readers of the console's stream and without; a reader takes the
events and does nothing with them, as a browser's work is not the server's. Printed are medians over the rounds, and the
median of the ratios within a round. Run on an idle machine.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attack_payloads as payloads
import trio
from bench.loop import Load, put_load
from servers import Server, trireme

from trireme.actors import InferenceServer
from trireme.api.console.feed import Feed
from trireme.engine.job import SealReason
from trireme.engine.options import ControlMode, ServerOptions

ROOT = Path(__file__).parents[1]
MODEL = "identity_fp32"
CONCURRENCY = 16
BATCHES, ROWS = 192, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--consoles", type=int, default=1)
    given = parser.parse_args()
    flags = "--model-control-mode=explicit", f"--load-model={MODEL}"
    noting_ms, making_ms = trio.run(frame_cost_ms)
    print(f"a frame: {noting_ms:.2f} ms for noting {BATCHES} batches, {making_ms:.2f} ms for making it")
    seen: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    frames = 0
    with trireme(ROOT / "model_repository", *flags) as server:
        for number in range(given.rounds):
            for watched in (False, True) if number % 2 else (True, False):
                with ExitStack() as stack:
                    readers = range(given.consoles if watched else 0)
                    open_ones = [stack.enter_context(console(server.metrics_port)) for _ in readers]
                    seen[watched].append(measure(server, given.seconds))
                    frames += sum(each.frames for each in open_ones)
    for watched, samples in seen.items():
        throughput = statistics.median(each["throughput"] for each in samples)
        cpu_us = statistics.median(each["cpu_us"] for each in samples)
        print(f"{'watched' if watched else 'alone':8} {throughput:8.0f}/s, {cpu_us:6.2f} us of CPU a request")
    for what in ("throughput", "cpu_us"):
        ratios = [one[what] / other[what] for one, other in zip(seen[True], seen[False], strict=True)]
        low, middle, high = (sorted(ratios)[int(part * (len(ratios) - 1))] for part in (0.25, 0.5, 0.75))
        print(f"ratio of {what}: {middle:.4f} (quartiles {low:.4f} to {high:.4f})")
    print(f"{frames / max(1, given.rounds * given.consoles):.1f} frames a run and console")


async def frame_cost_ms(rounds: int = 200) -> tuple[float, float]:
    """CPU time for noting the batches of a frame, and for making it; medians."""
    marks, times = [2_000_000, 2_100_000, 2_200_000, 2_300_000], {"received_ns": 1_000_000, "enqueued_ns": 1_100_000}
    jobs = [SimpleNamespace(is_null=False, **times)] * ROWS
    about = {"marks": marks, "jobs": jobs, "rows": ROWS, "answers": jobs, "sealed": SealReason.IDLE, "gpu": None}
    batch: Any = SimpleNamespace(instance_name=f"{MODEL}_0_0", **about)
    options = ServerOptions(
        (ROOT / "model_repository",), model_control_mode=ControlMode.EXPLICIT, startup_models=(MODEL,)
    )
    noting, making = [], []
    async with InferenceServer(options) as server:
        feed, (entry,) = Feed(server), server.statistics()
        with feed.reader():
            for _ in range(rounds):
                entry.statistics.execution_count += BATCHES
                entry.statistics.tap.open(0, BATCHES)
                began_ns = time.thread_time_ns()
                for number in range(BATCHES):
                    entry.statistics.tap.note(batch, number, 2_400_000, ROWS)
                noted_ns = time.thread_time_ns()
                feed.make()
                noting.append((noted_ns - began_ns) / 1e6)
                making.append((time.thread_time_ns() - noted_ns) / 1e6)
    return statistics.median(noting), statistics.median(making)


def measure(server: Server, seconds: float) -> dict[str, float]:
    body = payloads.infer_request(MODEL, *payloads.small_infer())
    load = Load(server.http_port, "http", [body], CONCURRENCY, CONCURRENCY, CONCURRENCY, 0.3, seconds)
    return put_load(load, server.cpu_s, timeout_s=60 + seconds)


class StreamReader(threading.Thread):
    """Reads the console's stream; `frames` counts what has come."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self._connection = connection
        self.frames = 0

    def run(self) -> None:
        with suppress(ConnectionError):  # it ends while the server sends
            while data := self._connection.recv(1 << 18):
                self.frames += data.count(b"event: frame")


@contextmanager
def console(port: int) -> Iterator[StreamReader]:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"GET /console/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        reader = StreamReader(connection)
        reader.start()
        try:
            yield reader
        finally:
            connection.shutdown(socket.SHUT_RDWR)
            reader.join()


if __name__ == "__main__":
    main()
