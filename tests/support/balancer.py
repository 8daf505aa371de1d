"""A small balancer of TCP connections between servers, for tests: it follows their readiness, as real ones do."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count

import trio
from http_sockets import PATIENCE_S, until

_PIECE_BYTES = 65_536
_POLL_S = 0.02


@dataclass(eq=False)
class Backend:
    """One server.

    Attributes:
        ports: where it listens, in the order of the balancer's own; the first is HTTP's.
        ready: what it has said last.
        connections: those that were given to it, and which it has not closed.
    """

    ports: Sequence[int]
    ready: bool = False
    connections: int = 0

    def is_ready(self) -> bool:
        """Ask it, on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[0], timeout=PATIENCE_S)
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


class Balancer:
    """Passes each connection to one of the servers that were ready when last asked, in turn. It waits while none is.

    Attributes:
        failures: what went wrong with servers that were thought to be ready.
    """

    def __init__(self, services: int) -> None:
        self.failures: list[str] = []
        self._backends: list[Backend] = []
        self._listening = [trio.socket.socket() for _ in range(services)]
        self._numbers = count()

    @property
    def ports(self) -> list[int]:
        """Where clients connect, one port for each service."""
        return [each.getsockname()[1] for each in self._listening]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._nursery:
            listeners = []
            for each in self._listening:
                await each.bind(("127.0.0.1", 0))
                each.listen(256)
                listeners.append(trio.SocketListener(each))
            for service, listener in enumerate(listeners):
                self._nursery.start_soon(trio.serve_listeners, partial(self._pass_on, service), [listener])
            task_status.started()

    async def add(self, backend: Backend) -> None:
        """Begin to follow a server; returns when it is ready."""
        self._backends.append(backend)
        self._nursery.start_soon(self._follow, backend)
        await until(lambda: backend.ready)

    async def emptied(self, backend: Backend) -> None:
        """Wait until it gets no more connections, because it is not ready, and those that it had are over."""
        await until(lambda: not backend.ready)
        await until(lambda: backend.connections == 0)

    def remove(self, backend: Backend) -> None:
        self._backends.remove(backend)

    async def _follow(self, backend: Backend) -> None:
        while backend in self._backends:
            backend.ready = await trio.to_thread.run_sync(backend.is_ready)
            await trio.sleep(_POLL_S)

    async def _pass_on(self, service: int, client: trio.SocketStream) -> None:
        await until(lambda: any(each.ready for each in self._backends))
        ready = [each for each in self._backends if each.ready]
        backend = ready[next(self._numbers) % len(ready)]
        backend.connections += 1
        closed = False  # by the server
        try:
            server = await trio.open_tcp_stream("127.0.0.1", backend.ports[service])
            async with client, server, trio.open_nursery() as nursery:
                nursery.start_soon(_pump, client, server, nursery.cancel_scope.cancel)
                await _pump(server, client, lambda: None)
                backend.connections -= 1
                closed = True
        except OSError as error:
            self.failures.append(f"a server that is ready does not listen: {error}")
        finally:
            if not closed:
                backend.connections -= 1


async def _pump(source: trio.SocketStream, sink: trio.SocketStream, over: Callable[[], None]) -> None:
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        while data := await source.receive_some(_PIECE_BYTES):
            await sink.send_all(data)
        await sink.send_eof()
    over()
