"""Where the services listen, and whether others may listen there too: the flags, on real processes
(docs/reference/command-line.md#flags)."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from grpc_stub import MESSAGES, PATIENCE_S, stub_for
from serve_process import ServeProcess, serve_process


def address(server: ServeProcess, service: str) -> tuple[str, int]:
    """Where a service says that it listens; without the brackets of IPv6."""
    match = server.wait_for(rf"Started {service} at \[?([0-9a-f.:]+?)\]?:(\d+)\"")
    return match[1], int(match[2])


def get(host: str, port: int, path: str) -> int:
    with closing(http.client.HTTPConnection(host, port, timeout=PATIENCE_S)) as connection:
        connection.request("GET", path)
        return connection.getresponse().status


def grpc_live(host: str, port: int) -> bool:
    with stub_for(f"[{host}]:{port}" if ":" in host else f"{host}:{port}") as stub:
        return stub.ServerLive(MESSAGES.ServerLiveRequest(), timeout=PATIENCE_S).live


@contextmanager
def closed_port() -> Iterator[int]:
    """A port at which no server listens, nor can, of 127.0.0.1."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def refused(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), PATIENCE_S).close()
    except ConnectionRefusedError:
        return True
    return False


def test_every_service_listens_at_its_own_address(tmp_path: Path) -> None:
    addresses = ("--http-address=127.0.0.2", "--grpc-address=::1", "--metrics-address=127.0.0.3")
    with ExitStack() as stack:
        flags = ("--http-port", "--grpc-port", "--metrics-port")
        ports = [word for flag in flags for word in (flag, str(stack.enter_context(closed_port())))]
        server = stack.enter_context(serve_process(tmp_path, *ports, *addresses))
        http_at = address(server, "HTTPService")
        grpc_at = address(server, "GRPCInferenceService")
        metrics_at = address(server, "Metrics Service")
        assert [host for host, _ in (http_at, grpc_at, metrics_at)] == ["127.0.0.2", "::1", "127.0.0.3"]
        assert get(*http_at, "/v2/health/live") == 200
        assert grpc_live(*grpc_at)
        assert get(*metrics_at, "/metrics") == 200
        for _, port in (http_at, grpc_at, metrics_at):
            assert refused("127.0.0.1", port), "it listens there and nowhere else"


def test_metrics_follow_http_and_every_address_may_be_meant(tmp_path: Path) -> None:
    with serve_process(tmp_path, "--http-address=0.0.0.0", "--grpc-address=::") as server:
        for service in ("HTTPService", "Metrics Service"):
            host, port = address(server, service)
            assert host == "0.0.0.0"
            assert get("127.0.0.1", port, "/") in (200, 400, 404)
            assert get("127.0.0.4", port, "/") in (200, 400, 404)
        host, port = address(server, "GRPCInferenceService")
        assert (host, grpc_live("::1", port)) == ("::", True)


def test_ports_are_shared_if_both_say_so(tmp_path: Path) -> None:
    """Two servers at the same ports: whichever answers, one may go and the other goes on."""
    reuse = ("--reuse-http-port=true", "--reuse-grpc-port=1")
    with serve_process(tmp_path, *reuse) as first:
        http_at, grpc_at = address(first, "HTTPService"), address(first, "GRPCInferenceService")
        ports = (f"--http-port={http_at[1]}", f"--grpc-port={grpc_at[1]}")
        with serve_process(tmp_path, *ports, *reuse) as second:
            assert (address(second, "HTTPService"), address(second, "GRPCInferenceService")) == (http_at, grpc_at)
            for _ in range(8):
                assert get(*http_at, "/v2/health/live") == 200
                assert grpc_live(*grpc_at)
            first.end()
            for _ in range(4):
                assert get(*http_at, "/v2/health/live") == 200
                assert grpc_live(*grpc_at)


@pytest.mark.parametrize("service", ["HTTP", "GRPC"])
def test_one_alone_cannot_share_a_port(tmp_path: Path, service: str) -> None:
    """The other one's consent is needed: a port that one server has alone stays its own."""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        flags = (f"--{service.lower()}-port={port}", f"--reuse-{service.lower()}-port=true")
        with serve_process(tmp_path, *flags, wait=False) as server:
            assert server.wait() == 1
            text = f"failed to start {service} service: Unavailable - Socket '127.0.0.1:{port}' already in use "
            assert text in server.log


def test_an_address_that_is_not_this_machines(tmp_path: Path) -> None:
    with serve_process(tmp_path, "--http-address=192.0.2.1", wait=False) as server:
        assert server.wait() == 1
        assert "failed to start HTTP service: Unavailable - Socket '192.0.2.1:0' cannot be bound" in server.log
        assert "Traceback" not in server.log
