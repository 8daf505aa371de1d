"""What an open console costs the server behind it: throughput of small requests, with and without.

    python benchmarks/console.py [--rounds 24] [--seconds 0.8] [--consoles 1] [--rate 3000]

First what a frame takes by itself: to note the 96 batches of eight requests that are most in one, and to make it. Then
one server of the shipped `identity_fp32` (FP32[16]) and a closed loop, 16 requests at a time, that does not stop: while
it goes on, consoles are opened and closed. A round is eight windows of so many seconds, without and with, in the order
`0110 0110`, so that each window with a console stands beside one without. What a window has done is the difference of
the server's own counters. A reader takes the events and does nothing with them: a browser's work is not the server's.

With `--rate` requests come at this rate instead, eight at a time, below what the server can do: then the CPU time that
it takes a second tells what a console costs, also on a machine that is not at rest.
"""

from __future__ import annotations

import argparse
import select
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
from servers import Server, trireme
from windows import Window, closed_loop, report, round_of_windows, round_s

from trireme.actors import InferenceServer
from trireme.api.console.feed import Feed
from trireme.clients.connections import BUFFER_BYTES, HttpLoadConnection
from trireme.engine.job import SealReason
from trireme.engine.options import ControlMode, ServerOptions

ROOT = Path(__file__).parents[1]
MODEL = "identity_fp32"
CONCURRENCY = 16
BATCHES, ROWS = 96, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=0.8)
    parser.add_argument("--consoles", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.0)
    given = parser.parse_args()
    flags = "--model-control-mode=explicit", f"--load-model={MODEL}"
    noting_ms, making_ms = trio.run(frame_cost_ms)
    print(f"a frame: {noting_ms:.2f} ms for noting {BATCHES} batches, {making_ms:.2f} ms for making it")
    rounds: list[list[Window]] = []
    readers: list[StreamReader] = []

    @contextmanager
    def watched(on: bool) -> Iterator[None]:
        with ExitStack() as stack:
            opened = [stack.enter_context(console(server.metrics_port)) for _ in range(given.consoles if on else 0)]
            readers.extend(opened)
            yield

    body = payloads.infer_request(MODEL, *payloads.small_infer())
    with trireme(ROOT / "model_repository", *flags) as server:
        for _ in range(given.rounds):
            load = (
                paced(server, given.rate)
                if given.rate
                else closed_loop(server, MODEL, body, CONCURRENCY, round_s(given.seconds))
            )
            with load:
                rounds.append(round_of_windows(server, MODEL, given.seconds, watched))
    report(rounds, "watched", "alone", ("throughput", "cpu_ms"))
    print(f"{sum(each.frames for each in readers) / len(readers):.1f} frames a window and console")


async def frame_cost_ms(rounds: int = 200) -> tuple[float, float]:
    """CPU time for noting the batches of a frame, and for making it; medians."""
    marks, times = [2_000_000, 2_100_000, 2_200_000, 2_300_000], {"received_ns": 1_000_000, "enqueued_ns": 1_100_000}
    jobs = [SimpleNamespace(is_null=False, **times)] * ROWS
    about = {"marks": marks, "jobs": jobs, "rows": ROWS, "answers": jobs, "sealed": SealReason.IDLE, "gpu": None}
    batch: Any = SimpleNamespace(instance_name=f"{MODEL}_0_0", rescheduled=(), **about)
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


@contextmanager
def paced(server: Server, rate_hz: float) -> Iterator[None]:
    """Requests at this rate, eight at a time, inside the block."""
    body = payloads.infer_request(MODEL, *payloads.small_infer())
    connections = [HttpLoadConnection(server.http_port, number) for number in range(ROWS)]
    buffer, over = memoryview(bytearray(BUFFER_BYTES)), threading.Event()

    def ask() -> None:
        due_s = time.perf_counter()
        while not over.wait(max(0.0, due_s - time.perf_counter())):
            for each in connections:
                each.ask((body,))
            for each in connections:
                while not each.receive(buffer):
                    select.select([each.socket], [], [], 60)
            due_s = max(due_s + ROWS / rate_hz, time.perf_counter() - 1)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        over.set()
        asking.join()
        for each in connections:
            each.close()


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
