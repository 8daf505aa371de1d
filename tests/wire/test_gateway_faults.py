"""Servers of a fleet that are replaced, killed and added, while clients ask their gateway all the time."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from fleet_clients import FLAGS, asking, write_identity
from serve_process import GatewayProcess, ServeProcess, serve_process, write_fleet


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    write_identity(path)
    return path


def started(stack: ExitStack, repository: Path, port: int = 0) -> ServeProcess:
    return stack.enter_context(serve_process(repository, *FLAGS, "--grpc-port", str(port), wait=False))


def test_servers_are_replaced_killed_and_added(repository: Path, tmp_path: Path) -> None:
    """No request fails but those that a killed server had."""
    fleet = tmp_path / "fleet.toml"
    with ExitStack() as stack:
        servers = {name: started(stack, repository) for name in "ab"}
        ports = {name: server.grpc_port for name, server in servers.items()}
        write_fleet(fleet, **ports)
        gateway = GatewayProcess(fleet)
        stack.callback(gateway.end)
        gateway.wait_for("replica b at .*: ready")
        with asking(gateway) as clients:
            # One is replaced.
            servers["a"].process.send_signal(signal.SIGTERM)
            assert servers["a"].wait() == 0
            clients.more()
            servers["a"] = started(stack, repository, ports["a"])
            gateway.wait_for(r"(?s)(replica a at \S+ is connected.*){2}")
            clients.more()
            assert clients.errors == []
            # The other one is killed.
            servers["b"].process.kill()
            while 'state="lost"} 1' not in gateway.metrics():
                clients.more(1)
            clients.more()
            assert len(clients.errors) <= len(clients.threads)
            assert all("replica at 127.0.0.1" in error or "connection" in error for error in clients.errors)
            killed = len(clients.errors)
            # Another one is added, and the killed one leaves.
            added = started(stack, repository)
            write_fleet(fleet, a=ports["a"], c=added.grpc_port)
            gateway.wait_for("replica c at .* is connected")
            servers["a"].process.send_signal(signal.SIGTERM)
            assert servers["a"].wait() == 0
            clients.more()
            assert len(clients.errors) == killed
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.wait() == 0
