"""A replica of a fleet on Ray: a server on a thread of an actor's process, and what it tells of itself."""

# pyright: reportMissingImports=false
# Ray is in no environment of the tools.

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import ray
import trio
from ray import serve

from ..actors.server import InferenceServer
from ..engine.clock import SystemClock
from ..engine.description import ModelState
from ..engine.errors import TriremeError
from ..engine.fleet.placement import replicas_needed
from ..engine.fleet.roster import ReplicaTold, model_needs
from ..engine.repository.opening import open_repositories
from .load_meter import LoadMeter, write_readings
from .roster_actor import find_roster
from .settings import ClusterSettings

T = TypeVar("T")
logger = logging.getLogger("ray.serve")

_TELL_S = 1.0
_READY_S = 30.0
_RETRY_S = 30.0


class RunningServer(Protocol):
    """A server on a thread of its own (`api.cli.server_thread`)."""

    @property
    def listening(self) -> Sequence[tuple[str, str, int]]: ...
    @property
    def alive(self) -> bool: ...
    def start(self) -> None: ...
    def call(self, ask: Callable[[InferenceServer], Awaitable[T]]) -> T: ...
    def stop(self, timeout_s: float | None = None) -> bool: ...


MakeServer = Callable[[Sequence[str]], RunningServer]


class ServedReplica:
    """The deployment. Ray makes it in an actor's process, and has it end with `__del__`. It awaits the methods on an
    event loop that has nothing else to do, so they may wait for the server's thread.

    Args:
        release: see `ReplicaTold`.
        make_server: makes a server of a command line of `trireme serve`.
    """

    def __init__(self, settings: ClusterSettings, release: float, make_server: MakeServer) -> None:
        self._settings = settings
        self._release = release
        self._name = serve.get_replica_context().replica_id.unique_id
        self._roster = find_roster(settings)
        self._server = make_server(self._words())
        self._meter = LoadMeter()
        self._sizes: dict[str, int] = {}
        self._needed = 0
        self._rates: dict[str, float] = {}
        self._ended = threading.Event()
        self._draining = False
        self._server.start()
        host = ray.util.get_node_ip_address()
        port = next(port for title, _, port in self._server.listening if title.startswith("GRPC"))
        self._address = f"{host}:{port}"
        if settings.room is not None:
            self._sizes = self._server.call(_model_bytes)
            self._needed = replicas_needed(model_needs(self._sizes, settings.models, settings.copies), settings.room)
        self._wait_until_ready()
        self._loads = ThreadPoolExecutor(1, "trireme loads")  # one after the other: each needs all cores
        self._change_asked: tuple[frozenset[str], frozenset[str]] | None = None
        self._changes: list[tuple[Future[None], frozenset[str]]] = []  # those that are not done, and what they load
        self._failed: dict[str, str] = {}
        self._retry_s = math.inf
        self._teller = threading.Thread(target=self._keep_telling, name="trireme roster", daemon=True)
        self._teller.start()

    def _words(self) -> list[str]:
        settings = self._settings
        words = [f"--model-repository={each}" for each in settings.repositories]
        words += [
            "--http-port=0",
            "--grpc-port=0",
            "--metrics-port=0",
            f"--exit-timeout-secs={round(settings.drain_s)}",
        ]
        if settings.room is not None:
            words += ["--model-control-mode=explicit", "--strict-readiness=false"]  # it loads models while it serves
        return [*words, *settings.flags]

    def _wait_until_ready(self) -> None:
        """Ray asks for the health of a new replica once, and gives it up if it is not well."""
        end_s = time.monotonic() + _READY_S
        while not self._server.call(InferenceServer.check_ready) and time.monotonic() < end_s:
            time.sleep(0.05)

    async def check_health(self) -> None:
        """Ray asks this again and again, and replaces a replica that fails three times.

        Raises:
            RuntimeError: the server is not ready: strict readiness, as `/v2/health/ready` tells it.
        """
        if self._draining:
            return
        if not self._server.call(InferenceServer.check_ready):
            raise RuntimeError(f"the server at {self._address} is not ready")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What `policy` decides by."""
        records, instances = self._server.call(_statistics)
        readings = self._meter.read(records, instances, time.monotonic())
        self._rates = {name: reading.rate_hz for name, reading in readings.items()}
        return write_readings(readings, self._needed)

    def _keep_telling(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(ray.exceptions.RayError):  # the roster comes back
                self._tell()
            self._ended.wait(_TELL_S)

    def _tell(self) -> frozenset[str]:
        """Tell the roster, and do as it says; the models that are to be here."""
        self._changes = [change for change in self._changes if not change[0].done()]
        ready, changing = self._server.call(_models_in_memory)
        changing = changing.union(*(loads for _, loads in self._changes)) - ready
        told = ReplicaTold(
            self._address,
            self._sizes,
            ready,
            self._rates,
            self._draining,
            self._release,
            ray.get_runtime_context().get_node_id(),
            os.getpid(),
            self._failed,
            changing,
        )
        wanted = ray.get(self._roster.tell.remote(self._name, told, self._settings), timeout=10)
        if wanted is None:
            return frozenset()
        change = wanted, told.ready - wanted
        if (change != self._change_asked or time.monotonic() >= self._retry_s) and not self._draining:
            self._change_asked, self._retry_s = change, math.inf
            self._changes = [*self._changes, (self._loads.submit(self._hold, *change), wanted - told.ready)]
        return wanted

    def _hold(self, wanted: frozenset[str], leaving: frozenset[str]) -> None:
        """Have these models in memory, and those that leave no more. One that has become ready since stays until the
        roster has heard of it. Those that cannot be loaded are tried again later."""
        ready, _ = self._server.call(_models_in_memory)
        self._failed = {}
        for name in sorted(ready & leaving):
            self._change(name, loads=False)
        for name in sorted(wanted - ready):
            self._change(name, loads=True)

    def _change(self, name: str, loads: bool) -> None:
        async def change(server: InferenceServer) -> None:
            await (server.load_model(name, {}) if loads else server.unload_model(name))

        try:
            self._server.call(change)
        except TriremeError as error:
            self._failed = {**self._failed, name: error.message}
            self._retry_s = time.monotonic() + _RETRY_S
            logger.error("trireme: model '%s' was not %s: %s", name, "loaded" if loads else "unloaded", error.message)

    def _holds_on(self) -> bool:
        """Whether it has models that are not ready in their new places yet; or the roster is away, and it may be so."""
        try:
            return bool(self._tell())
        except ray.exceptions.RayError:
            return self._settings.room is not None

    async def __del__(self) -> None:
        """Drain: say so, serve until others have the models, answer what there is, and end."""
        if not hasattr(self, "_teller"):
            return  # it did not start
        self._draining = True
        end_s = time.monotonic() + self._settings.drain_s
        while self._holds_on() and time.monotonic() < end_s:
            self._ended.wait(0.2)
        self._loads.shutdown(wait=False, cancel_futures=True)
        self._server.stop(self._settings.drain_s + 10)
        self._ended.set()
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(self._roster.leave.remote(self._name), timeout=5)


async def _models_in_memory(server: InferenceServer) -> tuple[frozenset[str], frozenset[str]]:
    """Those that are ready, and those of which a version is being loaded or unloaded."""
    rows = server.repository_index()
    ready = frozenset(row.name for row in rows if row.state is ModelState.READY)
    return ready, frozenset(row.name for row in rows if row.state in (ModelState.LOADING, ModelState.UNLOADING))


async def _statistics(server: InferenceServer) -> tuple[list[dict[str, Any]], dict[str, int]]:
    records = (await server.management.model_statistics())["model_stats"]
    instances: dict[str, int] = {}
    for model in server.model_statistics():
        instances[model.name] = instances.get(model.name, 0) + model.instances_alive
    return records, instances


async def _model_bytes(server: InferenceServer) -> dict[str, int]:
    """What the models' files take, of all that there are in the repositories."""

    def look() -> dict[str, int]:
        source = open_repositories(server.options, os.environ, SystemClock())
        return {model.name: model.estimated_bytes() for model in source.scan().models}

    return await trio.to_thread.run_sync(look)
