"""Fixtures for every test: a whole server on a loopback port."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import trio
from logs import unheard_log
from loop_thread import Opened, call_from_thread, loop_thread
from trio.testing import MockClock

from trireme.actors import InferenceServer
from trireme.api.grpc.application import GrpcApplication
from trireme.api.grpc.options import GrpcOptions, GrpcServiceOptions
from trireme.api.grpc.service import GrpcService
from trireme.api.http.app import HttpApplication, HttpService
from trireme.api.http.exchange import HttpOptions
from trireme.api.logging import Log
from trireme.api.sockets.service import ServiceOptions
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.options import ServerOptions

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # tests mean the same on every machine; a test brings its own GPUs
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # hundreds of processes import numpy, whose threads spin for a while

# A machine that stands still for a moment is no defect of what is tested, so no example has a time limit. And what was
# right yesterday fails today only if something has changed: every run tries the same examples.
hypothesis.settings.register_profile(
    "search", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.register_profile("steady", hypothesis.settings.get_profile("search"), derandomize=True)
hypothesis.settings.load_profile("steady")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A worker's report is sent as UTF-8, so what a test has logged of names that are no text is escaped."""
    report = yield
    report.sections = [(title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """A test that has calls counted must end that: all tests after it would take many times as long."""
    before = sys.getprofile()
    try:
        return (yield)
    finally:
        left = sys.getprofile()
        sys.setprofile(before)
        assert left is before, f"the test has left {left} behind, which is told of all calls (sys.setprofile)"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores: tests that wait for processes and sockets leave a third of them idle."""
    return len(os.sched_getaffinity(0)) + 1


class RunningTests:
    """Ends a run of several processes when one of them dies, for xdist would wait for the rest of its files."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins, in whichever process."""
        self._names[nodeid] = None

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """It is over."""
        self._names.pop(nodeid, None)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object) -> None:
        """A process of the test run is over. If it has crashed it was in one of the tests that run."""
        if error:
            running = ", ".join(self._names)
            pytest.exit(f"a process of the test run has died: {error}; tests that ran: {running}", returncode=1)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """All test files are imported, with what they import: nothing of that is garbage, which would be looked for."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


class FrozenModules:
    """What was imported stays: no garbage collection, a test's own or another, has to look through all of it again.

    With the large packages that would be a quarter of the run's CPU time.
    """

    _MANY = 50

    def __init__(self) -> None:
        self._modules = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """A test begins."""
        if len(sys.modules) > self._modules + self._MANY:
            self._modules = len(sys.modules)
            gc.collect()
            gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Watch the processes of the run, and what they import, and let tests interrupt theirs.

    A run in the background ignores interrupts, and so would each process that a test starts.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(RunningTests())
    config.pluginmanager.register(FrozenModules())


@dataclass(frozen=True)
class LiveServer:
    """A server that listens for HTTP on ``host:port`` and for gRPC on ``host:grpc_port``.

    `run` calls a function on its event loop and gives back the result.
    """

    host: str
    port: int
    grpc_port: int
    server: InferenceServer
    run: Callable[..., Any]

    @property
    def url(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def grpc_url(self) -> str:
        return f"{self.host}:{self.grpc_port}"


@contextmanager
def serving(
    repository: Path, backends: BackendRegistry | None = None, *, allow_client_shm: bool = False, **options: Any
) -> Iterator[LiveServer]:
    """Serve a model repository from a thread of its own; `options` are those of the server."""

    async def serve(opened: Opened[LiveServer]) -> None:
        settings = ServerOptions(model_repository=(repository,), **options)
        with unheard_log() as log:
            async with InferenceServer(settings, backends=backends) as server:
                await listen(server, log, opened)

    async def listen(server: InferenceServer, log: Log, opened: Opened[LiveServer]) -> None:
        http = HttpService(
            HttpApplication(server, HttpOptions(allow_client_shm=allow_client_shm), log),
            ServiceOptions(("127.0.0.1:0",)),
        )
        application = GrpcApplication(server, GrpcOptions(allow_client_shm=allow_client_shm), log)
        grpc = GrpcService(application.services, GrpcServiceOptions(("127.0.0.1:0",)))
        async with trio.open_nursery() as nursery:
            (port,) = await nursery.start(http.serve)
            (grpc_port,) = await nursery.start(grpc.serve)
            await opened(LiveServer("127.0.0.1", port, grpc_port, server, call_from_thread()))
            http.close()
            grpc.close()

    with loop_thread(serve) as live:
        yield live


@pytest.fixture
def leaping_clock() -> MockClock:
    """trio's time for a test that meets a limit on purpose, and must not meet it by standing still for a moment: the
    limit is long, and `jump` lets it pass. Otherwise time goes as ever, so that sockets, threads and processes work."""
    return MockClock(rate=1.0)


@pytest.fixture(scope="session")
def serve() -> Callable[..., Any]:
    """The `serving` context manager."""
    return serving


@pytest.fixture(scope="session")
def repository_root() -> Path:
    return Path(__file__).parent.parent


@pytest.fixture(scope="session")
def live(repository_root: Path) -> Iterator[LiveServer]:
    """One server on the shipped models, for the whole test session."""
    with serving(repository_root / "model_repository") as server:
        yield server
