"""The closed-loop client: a process of its own, with so many requests in flight, each answered before the next.

It reads a pickled `Load` from standard input, opens the connections, and puts load on the server. When it has warmed
up it prints a line; when the time is over, another one with what it has seen, as JSON. Then it waits for what is in
flight.
"""

from __future__ import annotations

import json
import pickle
import select
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from servers import FailedError

from trireme.clients.connections import BUFFER_BYTES, HttpLoadConnection, LoadConnection, RefusedError
from trireme.clients.grpc_connection import GrpcLoadConnection

TRANSPORTS: dict[str, type[LoadConnection]] = {"http": HttpLoadConnection, "grpc": GrpcLoadConnection}
ANSWER_TIMEOUT_S = 60.0
READY = b"warm\n"


@dataclass(frozen=True)
class Load:
    """What is to be sent.

    Attributes:
        transport: a key of `TRANSPORTS`.
        requests: sent in turn, as the transport's connection takes them.
        connections: how many are open.
        asked: how many of them are asked, in turn.
        concurrency: how many are asked at a time.
    """

    port: int
    transport: str
    requests: list[bytes]
    connections: int
    asked: int
    concurrency: int
    warm_up_s: float
    seconds: float


class Loop:
    """The connections, and the requests in flight."""

    def __init__(self, load: Load) -> None:
        connection = TRANSPORTS[load.transport]
        self._requests = load.requests
        self._concurrency = load.concurrency
        self._next = 0
        self._poller = select.epoll()
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._by_descriptor = {}
        for number in range(load.connections):
            opened = connection(load.port, number)
            self._by_descriptor[opened.socket.fileno()] = opened
            self._poller.register(opened.socket, opened.wanted)
        self._idle = deque(islice(self._by_descriptor.values(), load.asked))

    def run(self, warm_up_s: float, seconds: float) -> Iterator[dict[str, float]]:
        """Keep asking: yields an empty dictionary when it is warm, then the figures when the time is over.

        Time counts from the last answer of the warm-up to the last one that counts: where answers come in batches,
        that is a number of whole batches.

        Raises:
            RefusedError: a request is refused, or not answered in time.
        """
        times_us: list[float] = []
        warm = over = False
        first_s = last_s = time.perf_counter()
        warm_s = first_s + warm_up_s
        over_s = warm_s + seconds
        for _ in range(self._concurrency):
            self._ask()
        in_flight = self._concurrency
        while in_flight:
            for sent_s in self._answers():
                now_s = time.perf_counter()
                if not warm and now_s >= warm_s:
                    warm, first_s = True, last_s
                    yield {}
                if not over and now_s >= over_s and times_us:
                    over = True
                    yield summary(times_us, last_s - first_s)
                if warm and not over:
                    times_us.append((now_s - sent_s) * 1e6)
                last_s = now_s
                in_flight -= 1
                if not over:
                    self._ask()
                    in_flight += 1

    def _answers(self) -> Iterator[float]:
        """Wait; when each request that is answered now was sent."""
        events = self._poller.poll(ANSWER_TIMEOUT_S)
        if not events:
            raise RefusedError(f"no answer within {ANSWER_TIMEOUT_S:g} s")
        for descriptor, what in events:
            connection = self._by_descriptor[descriptor]
            if what & select.EPOLLOUT:
                connection.flush()
                self._poller.modify(descriptor, connection.wanted)
            if not what & ~select.EPOLLOUT or not connection.receive(self._buffer):
                continue
            if connection.status:
                raise RefusedError(f"answered with {connection.status}: {connection.reason}")
            if not connection.began_s:
                raise RefusedError("the server sent what it was not asked for")
            sent_s, connection.began_s = connection.began_s, 0.0
            self._idle.append(connection)
            yield sent_s

    def _ask(self) -> None:
        connection = self._idle.popleft()
        request = self._requests[self._next]
        self._next = (self._next + 1) % len(self._requests)
        connection.began_s = time.perf_counter()
        connection.ask((request,))
        if connection.wanted & select.EPOLLOUT:
            self._poller.modify(connection.socket.fileno(), connection.wanted)


def put_load(load: Load, cpu_s: Callable[[], float], timeout_s: float) -> dict[str, float]:
    """Run the client; inferences a second, latencies, and the server's CPU time for each request, in microseconds.

    Args:
        cpu_s: what the server has used so far.

    Raises:
        FailedError: a request is refused, or the client does not end in time.
    """
    used_s = 0.0
    words = [sys.executable, "-m", "bench.loop"]
    folder = Path(__file__).parents[1]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        limit = threading.Timer(timeout_s, client.kill)
        limit.start()
        try:
            client.stdin.write(pickle.dumps(load))
            client.stdin.close()
            said = client.stdout.readline()
            before_s = cpu_s()
            said = client.stdout.readline() if said == READY else said
            used_s = cpu_s() - before_s
            client.wait()
        except BrokenPipeError as error:
            raise FailedError("the client ended too early") from error
        finally:
            limit.cancel()
            client.kill()
    result = json.loads(said or '{"error": "the client did not end in time"}')
    if "error" in result:
        raise FailedError(result["error"])
    requests = result.pop("requests")
    return {**result, "cpu_us": used_s / requests * 1e6}


def summary(times_us: list[float], seconds: float) -> dict[str, float]:
    """Figures of requests that took these times, within so many seconds; `requests` among them."""
    ordered = sorted(times_us)
    return {
        "requests": len(ordered),
        "throughput": len(ordered) / seconds,
        "p50_us": statistics.median(ordered),
        "p99_us": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
    }


def main() -> None:
    load: Load = pickle.load(sys.stdin.buffer)  # from the parent process
    try:
        for figures in Loop(load).run(load.warm_up_s, load.seconds):
            sys.stdout.write(json.dumps(figures) + "\n" if figures else READY.decode())
            sys.stdout.flush()
    except (OSError, RefusedError) as error:
        print(json.dumps({"error": str(error)}), flush=True)


if __name__ == "__main__":
    main()
