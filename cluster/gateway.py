"""A gateway of a fleet on Ray: `trireme gateway` on a thread of an actor's process, with the roster's members."""

# pyright: reportMissingImports=false
# Ray is in no environment of the tools.

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import ray
from ray import serve

from ..engine.fleet.roster import GatewayTold
from ..gateway.fleet_file import fleet_text
from ..gateway.server import FleetServer
from .roster_actor import find_roster
from .settings import ClusterSettings

T = TypeVar("T")

_LOOK_S = 0.5


class RunningGateway(Protocol):
    """A gateway on a thread of its own."""

    @property
    def listening(self) -> Sequence[tuple[str, str, int]]: ...
    @property
    def alive(self) -> bool: ...
    def start(self) -> None: ...
    def call(self, ask: Callable[[FleetServer], Awaitable[T]]) -> T: ...
    def stop(self, timeout_s: float | None = None) -> bool: ...


MakeGateway = Callable[[Sequence[str]], RunningGateway]


class ServedGateway:
    """The deployment; see `ServedReplica` for how Ray makes and ends it.

    Args:
        make_gateway: makes a gateway of a command line of `trireme gateway`.
    """

    def __init__(self, settings: ClusterSettings, make_gateway: MakeGateway) -> None:
        self._settings = settings
        self._roster = find_roster(settings)
        self._directory = tempfile.TemporaryDirectory(prefix="trireme-gateway-")
        self._path = Path(self._directory.name) / "fleet.toml"
        self._written: str | None = None
        self._ended = threading.Event()
        self._name = serve.get_replica_context().replica_id.unique_id
        self._write({})
        self._gateway = make_gateway(self._words())
        self._gateway.start()
        host = ray.util.get_node_ip_address()
        self._listening = {title: f"{host}:{port}" for title, _, port in self._gateway.listening}
        self._looker = threading.Thread(target=self._keep_looking, name="trireme roster", daemon=True)
        self._looker.start()

    def _words(self) -> list[str]:
        settings = self._settings
        http, grpc = free_ports(settings.http_port, settings.grpc_port, settings.gateways)
        ports = [f"--http-port={http}", f"--grpc-port={grpc}", "--metrics-port=0"]
        return [f"--fleet={self._path}", *ports, *settings.gateway_flags]

    async def check_health(self) -> None:
        """Ray asks this again and again.

        Raises:
            RuntimeError: the gateway has ended.
        """
        if not self._gateway.alive and not self._ended.is_set():
            raise RuntimeError("the gateway has ended")

    def _keep_looking(self) -> None:
        while not self._ended.wait(_LOOK_S):
            with contextlib.suppress(ray.exceptions.RayError):  # who was there stays until the roster is back
                self._look()

    def _look(self) -> None:
        told = GatewayTold(self._listening, self._gateway.call(_linked))
        members, are_all = ray.get(self._roster.tell_gateway.remote(self._name, told), timeout=10)
        addresses = {name: each.address for name, each in members.items()}
        self._write(addresses if are_all else self._addresses | addresses)

    def _write(self, addresses: dict[str, str]) -> None:
        self._addresses = addresses
        text = fleet_text(addresses, self._settings.connection)
        if text != self._written:
            new = self._path.with_suffix(".new")
            new.write_text(text, encoding="utf-8")
            new.replace(self._path)
            self._written = text

    async def __del__(self) -> None:
        """Answer what there is, and end."""
        if not hasattr(self, "_looker"):
            return  # it did not start
        self._ended.set()
        self._gateway.stop(self._settings.drain_s + 10)
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(self._roster.leave.remote(self._name), timeout=5)
        self._directory.cleanup()


async def _linked(server: FleetServer) -> frozenset[str]:
    return frozenset(name for name, member in server.members.items() if member.serves)


def free_ports(http_port: int, grpc_port: int, gateways: int) -> tuple[int, int]:
    """The first pair of ports of this node that is free, of as many pairs as there are gateways, in steps of ten.

    Gateways that start at the same moment may choose the same one: Ray starts the one that fails again.

    Raises:
        RuntimeError: there is none.
    """
    steps = range(0, 10 * gateways, 10)
    pairs = [(http_port and http_port + step, grpc_port and grpc_port + step) for step in steps]
    for pair in pairs:
        if all(port == 0 or _is_free(port) for port in pair):
            return pair
    raise RuntimeError(f"none of these pairs of ports is free on this node: {pairs}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
