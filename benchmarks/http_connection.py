"""What the HTTP/1.1 connection loop costs: requests per second and CPU time per request, with an app that does nothing.

The client is a process of its own: raw sockets, one request in flight on each. Run on an otherwise idle machine with
at least two cores:

    python benchmarks/http_connection.py [--connections 16] [--seconds 5] [--body 100]
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import sys
import time

import trio

from trireme.api.http.app import HttpService
from trireme.api.http.exchange import JSON, Answer, Exchange
from trireme.api.sockets.service import ServiceOptions


async def answer(exchange: Exchange) -> None:
    """Reads the body and answers with a small one."""
    while (await exchange.read())[1]:
        pass
    await exchange.respond(Answer(200, JSON, b'{"outputs":[]}' * 8))


def load(port: int, connections: int, seconds: float, body_bytes: int) -> int:
    """Requests answered within the time, in a closed loop."""
    request = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\nUser-Agent: load\r\nAccept: */*\r\n"
    request += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % body_bytes + b"x" * body_bytes
    poller = select.epoll()
    sockets = {}
    for _ in range(connections):
        client = socket.create_connection(("127.0.0.1", port))
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sockets[client.fileno()] = client
        poller.register(client, select.EPOLLIN)
        client.sendall(request)
    answered = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for descriptor, _ in poller.poll(1):
            client = sockets[descriptor]
            client.recv(65_536)
            client.sendall(request)
            answered += 1
    return answered


async def measure(connections: int, seconds: float, body_bytes: int) -> None:
    service = HttpService(answer, ServiceOptions(bind=("127.0.0.1:0",)))
    async with trio.open_nursery() as nursery:
        (port,) = await nursery.start(service.serve)
        arguments = [sys.executable, __file__, "--port", str(port), "--connections", str(connections)]
        arguments += ["--seconds", str(seconds), "--body", str(body_bytes)]
        before_s = time.process_time()
        started_s = time.monotonic()
        client = await trio.run_process(arguments, capture_stdout=True)
        cpu_s = time.process_time() - before_s
        wall_s = time.monotonic() - started_s
        answered = json.loads(client.stdout)
        print(
            f"{connections} connections: {answered / seconds:,.0f} requests/s, "
            f"{cpu_s / answered * 1e6:.1f} µs of CPU each, {cpu_s / wall_s:.0%} of a core busy"
        )
        service.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--body", type=int, default=100, help="bytes of a request's body")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.port is None:
        trio.run(measure, options.connections, options.seconds, options.body)
    else:
        print(json.dumps(load(options.port, options.connections, options.seconds, options.body)))


if __name__ == "__main__":
    main()
