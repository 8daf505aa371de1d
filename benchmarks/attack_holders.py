"""Attacks by clients that hold memory and do nothing: requests that do not go on, answers that are not read."""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import time
from collections.abc import Callable, Sequence

import attack_payloads as payloads
from attack_clients import ADDRESS, Http2Client, read_answer, status_of
from servers import Server

MIB = 1 << 20
HOLD_S = 3.0
CONNECTIONS = 3_000

INFER = "/v2/models/small/infer"


def unfinished_body(_number: int) -> bytes:
    """64 KB of a body that is a little longer."""
    return payloads.http_request("POST", INFER, [("Content-Length", "65000")]) + bytes(64_000)


def unfinished_head(_number: int) -> bytes:
    """A head of many headers, without its end."""
    return payloads.http_request("POST", INFER, []).removesuffix(b"\r\n") + b"ab: cd\r\n" * 1000


def pipelined(_number: int) -> bytes:
    """Small requests; the answers are not read."""
    return payloads.http_request("GET", "/v2", []) * 1500


def held_by_many(sent: Callable[[int], bytes]) -> Callable[[Server], str]:
    """3,000 connections send something and wait; how many of them the server has not closed after a while."""

    def run(server: Server) -> str:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        clients: list[socket.socket] = []
        with contextlib.ExitStack() as stack:
            for number in range(CONNECTIONS):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", server.http_port), 10))
                client.settimeout(1.0)
                with contextlib.suppress(OSError):
                    client.sendall(sent(number))
                clients.append(client)
            time.sleep(HOLD_S)
            return f"{sum(map(_is_open, clients)):,} of {CONNECTIONS:,} still open"

    return run


def _is_open(client: socket.socket) -> bool:
    poller = select.poll()
    poller.register(client, select.POLLRDHUP)
    return not poller.poll(0)


def slow_large_bodies(server: Server) -> str:
    """One address announces eight bodies of 30 MiB and sends 8 KiB a second of each. Then another one sends 32 MiB."""
    head = payloads.http_request("POST", "/v2/models/echo/infer", [("Content-Length", str(30 * MIB))])
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(("127.0.0.1", server.http_port), 10)) for _ in range(8)]
        for client in slow:
            client.sendall(head)
        trickle(slow, 2)
        other = socket.create_connection(("127.0.0.1", server.http_port), 10, source_address=(ADDRESS, 0))
        stack.enter_context(other)
        begun_s = time.monotonic()
        other.setblocking(False)
        rest = memoryview(payloads.infer_request("echo", *payloads.floats(32 * MIB)))
        while rest and time.monotonic() < begun_s + 20:
            with contextlib.suppress(BlockingIOError):
                rest = rest[other.send(rest[:MIB]) :]
            trickle(slow, 0.01)
        if rest:
            return f"another large request: {len(rest) // MIB} MiB were not taken in 20 s"
        other.settimeout(20)
        status = status_of(read_answer(other))
        return f"another large request: {status} after {time.monotonic() - begun_s:.1f} s"


def trickle(clients: Sequence[socket.socket], seconds: float) -> None:
    """8 KiB a second of each."""
    ends_s = time.monotonic() + seconds
    while True:
        for client in clients:
            with contextlib.suppress(OSError):
                client.send(bytes(max(80, int(8192 * min(seconds, 0.2)))))
        if time.monotonic() >= ends_s:
            return
        time.sleep(min(0.2, seconds))


def unread_http(server: Server) -> str:
    """60 requests whose answers have 8 MiB each; none is read."""
    request = payloads.infer_request("echo", *payloads.floats(8 * MIB))
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.http_port), 10)) for _ in range(60)
        ]
        for client in clients:
            client.settimeout(5)
            with contextlib.suppress(OSError):
                client.sendall(request)
        time.sleep(HOLD_S)
    return ""


def unread_grpc(method: str) -> Callable[[Server], str]:
    """12 connections ask 80 times each for 1 MiB, in one stream or in calls of their own; nothing is read."""

    def run(server: Server) -> str:
        message = payloads.grpc_frame(payloads.grpc_floats("echo", MIB))
        clients, asked = [], 0
        for _ in range(12):
            client = Http2Client(server.grpc_port or 0, reads=False)
            clients.append(client)
            stream_id = client.open_grpc(method) if method == "ModelStreamInfer" else 0
            for _ in range(80):
                number = stream_id or client.open_grpc(method)
                if client.send(number, message, end=not stream_id, within_s=2) < len(message):
                    break
                asked += 1
        time.sleep(HOLD_S)
        for client in clients:
            client.close()
        return f"{asked} asked"

    return run
