"""`--max-address-share` over several front ends: what one address may hold of the server, whichever of them it asks."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from beside_one_process import Caller, callers, inflight, wait_until
from python_models import CONFIG, IDENTITY, write_model
from serve_process import PATIENCE_S, ServeProcess, serve_process

COUNT = 2
OPEN_FILES = 256
CONNECTIONS = OPEN_FILES // 2
"""That each front end takes on a port."""

BUDGET_BYTES = 64 << 20
FEW, OTHER = "127.0.0.1", "127.0.0.2"
IN_PROCESS = 'parameters { key: "EXECUTION" value { string_value: "in_process" } }'
INFER = "/v2/models/identity/infer"
TENSOR = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write_model(tmp_path, "identity", IDENTITY, CONFIG + IN_PROCESS)
    return tmp_path


@pytest.fixture
def server(repository: Path) -> Iterator[ServeProcess]:
    flags = ("--front-ends", str(COUNT), "--max-address-share", "10", "--max-inflight-bytes", str(BUDGET_BYTES))
    with serve_process(repository, *flags, open_files=OPEN_FILES) as served:
        yield served


def refused(server: ServeProcess, reason: str) -> int:
    found = re.search(rf'^trireme_refused_total{{reason="{reason}"}} (\S+)', server.metrics(), re.MULTILINE)
    return int(float(found[1])) if found else 0


def is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


def test_connections_of_one_address(server: ServeProcess) -> None:
    """Each front end has places of its own, of which an address gets its share: so it gets that of all of them, and
    can fill none. What it opens beyond that costs its own idle connections."""
    share = CONNECTIONS // 10
    asked = 8 * COUNT * share
    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection((FEW, server.http_port), PATIENCE_S)) for _ in range(asked)
        ]
        wait_until(lambda: sum(map(is_open, clients)) <= COUNT * share)
        assert sum(map(is_open, clients)) == COUNT * share
        wait_until(lambda: refused(server, "connection_limit") == asked - COUNT * share)
        with callers(server, OTHER) as others:
            assert len(others) == COUNT
            for caller in others:
                status, _ = caller.ask("POST", INFER, {"inputs": [TENSOR]})
                assert status == 200
        assert sum(map(is_open, clients)) == COUNT * share


def request(elements: int) -> tuple[bytes, bytes]:
    """Head, and body, of one with so many elements, FP32."""
    data = {"name": "INPUT0", "datatype": "FP32", "shape": [1, elements]}
    size = {"parameters": {"binary_data_size": 4 * elements}}
    output = {"name": "OUTPUT0", "parameters": {"binary_data": True}}
    text = json.dumps({"inputs": [data | size], "outputs": [output]}).encode()
    lengths = f"Inference-Header-Content-Length: {len(text)}\r\nContent-Length: {len(text) + 4 * elements}\r\n\r\n"
    return f"POST {INFER} HTTP/1.1\r\nHost: x\r\n{lengths}".encode(), text + bytes(4 * elements)


def test_bodies_of_one_address_are_counted_together(server: ServeProcess) -> None:
    """One body at a time may be larger than the share. Another one waits for it, at any other front end; but not that
    of another address."""
    head, large = request(3 << 20)
    with callers(server) as (first, second), closing(Caller(server, OTHER)) as other:
        assert first.pid != second.pid
        begun, asked = first.sock, second.sock
        begun.sendall(head + large[: 1 << 20])
        wait_until(lambda: inflight(server)[1] == len(large))
        asked.sendall(head)
        asked.setblocking(False)
        other.sock.sendall(head + large)
        assert other.sock.recv(15) == b"HTTP/1.1 200 OK"
        wait_until(lambda: inflight(server)[1] == len(large))
        with pytest.raises(BlockingIOError):
            asked.recv(1)
        assert inflight(server)[1] == len(large), "it has nothing of the budget"
        begun.sendall(large[1 << 20 :])
        assert begun.recv(15) == b"HTTP/1.1 200 OK"
        asked.setblocking(True)
        asked.sendall(large)
        assert asked.recv(15) == b"HTTP/1.1 200 OK"
    wait_until(lambda: inflight(server) == (0, 0))
