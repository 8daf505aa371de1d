"""What idle connections cost: memory each, and CPU time for looking after them; and whether others are still served.

The clients are a process of their own, so that each side needs one open file a connection; and the server takes no more
connections than half of its files:

    python benchmarks/idle_connections.py [--connections 10000]
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import time

import psutil
import trio

from trireme.api.http.app import HttpService
from trireme.api.http.exchange import TEXT, Answer, Exchange
from trireme.api.sockets.limits import raise_open_file_limit
from trireme.api.sockets.service import ServiceOptions

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
OBSERVED_S = 5.0


async def answer(exchange: Exchange) -> None:
    await exchange.respond(Answer(200, TEXT, b"ok"))


def hold(port: int, connections: int) -> None:
    """Opens the connections, has a request answered on each, and holds them until standard input ends."""
    clients = []
    for index in range(connections):
        clients.append(socket.create_connection((f"127.0.0.{index % 200 + 1}", port)))
        clients[-1].sendall(REQUEST)
        assert clients[-1].recv(1000).endswith(b"ok")
    print("holding", flush=True)
    sys.stdin.read()


async def measure(connections: int) -> None:
    service = HttpService(answer, ServiceOptions(bind=("0.0.0.0:0",)))
    process = psutil.Process()
    async with trio.open_nursery() as nursery:
        (port,) = await nursery.start(service.serve)
        before_bytes = process.memory_info().rss
        arguments = [sys.executable, __file__, "--port", str(port), "--connections", str(connections)]
        holder = await trio.lowlevel.open_process(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert holder.stdout is not None
        started_s = time.monotonic()
        assert await holder.stdout.receive_some() == b"holding\n"
        opened_s = time.monotonic() - started_s
        each_bytes = (process.memory_info().rss - before_bytes) / connections
        before_s = time.process_time()
        await trio.sleep(OBSERVED_S)
        busy = (time.process_time() - before_s) / OBSERVED_S
        started_s = time.monotonic()
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(REQUEST)
            assert (await stream.receive_some()).endswith(b"ok")
        answered_s = time.monotonic() - started_s
        print(
            f"{service.statistics().peak_connections - 1:,} idle connections, opened and asked once in "
            f"{opened_s:.1f} s: {each_bytes / 1024:.1f} KiB of memory each, {busy:.1%} of a core for all; "
            f"a new client is answered in {answered_s * 1e3:.1f} ms"
        )
        assert holder.stdin is not None
        await holder.stdin.aclose()
        await holder.wait()
        service.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    limit = raise_open_file_limit()
    if limit < 2 * (options.connections + 300):
        parser.error(f"this process may open {limit} files only")
    if options.port is None:
        trio.run(measure, options.connections)
    else:
        hold(options.port, options.connections)


if __name__ == "__main__":
    main()
