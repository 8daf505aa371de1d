"""The engine's end of a front end, over scripted models; its other end is the test."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import trio
import trio.testing
from scripted_models import Script, write_scripted_models

from trireme.actors import InferenceServer
from trireme.engine.datatypes import FP32
from trireme.engine.options import ServerOptions
from trireme.engine.request import LATEST, InferenceRequest
from trireme.engine.tensor import Tensor
from trireme.front_ends.announcer import Announcer
from trireme.front_ends.calls import EngineCalls
from trireme.front_ends.link import FrontEndLink, LinkError, LinkHead, map_rings, ring_memory
from trireme.front_ends.port import Port
from trireme.front_ends.requests import NO_DESCRIPTION, RequestWriter
from trireme.front_ends.trace_wishes import TraceWish

VALUES = np.arange(4, dtype=np.float32)


def request(
    script: str = "say!", model: str = "plain", values: np.ndarray = VALUES, name: str = ""
) -> InferenceRequest:
    tensor = Tensor("IN", FP32, values.shape, values.tobytes())
    return InferenceRequest(model, LATEST, name, [tensor], parameters={"script": script})


class World:
    """A server with a port, and the front end's end of the link.

    Attributes:
        said: what the front end has said of itself.
        error: that the port has ended with.
    """

    def __init__(self, server: InferenceServer, script: Script) -> None:
        self.server = server
        self.script = script
        self.said: list[Any] = []
        self.error: LinkError | None = None
        self.ended = trio.Event()
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setblocking(False)
        descriptor, nbytes = ring_memory()
        announcer = Announcer(server)
        calls = EngineCalls(server.management, None)
        rings = map_rings(descriptor, nbytes, first=True)
        self.port = Port(server, ours, rings, announcer.describe, calls.prepare, self.said.append)
        self.link = FrontEndLink(theirs, map_rings(descriptor, nbytes, first=False))
        self.writer = RequestWriter()
        self._socket = theirs

    async def run(self) -> None:
        try:
            await self.port.run()
        except LinkError as error:
            self.error = error
        self.ended.set()

    def send(self, *head: Any) -> None:
        assert self.link.send(head)
        self.link.flush()

    def admit(self, number: int, asked: InferenceRequest, lease: int = 0, wish: TraceWish | None = None) -> None:
        head, payload = self.writer.write(number, asked, NO_DESCRIPTION, lease, wish)
        assert self.link.send(head, payload)
        self.link.flush()

    async def next(self) -> tuple[LinkHead, memoryview]:
        """The next message from the port."""
        while (message := self.link.receive()) is None:
            await trio.lowlevel.wait_readable(self._socket)
            self.link.hear()
        self.link.release()
        return message

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            await trio.lowlevel.checkpoint()

    @property
    def budget(self) -> tuple[int, int, int]:
        """Requests, bytes and leases in flight."""
        counted = self.server.budget_statistics()
        return counted.requests, counted.bytes, counted.leases


@asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[World]:
    write_scripted_models(path)
    script = Script()
    told = ServerOptions(model_repository=(path,), exit_timeout_s=5, **options)
    async with InferenceServer(told, backends=script.backends()) as server:
        world = World(server, script)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.run)
            await trio.testing.wait_all_tasks_blocked()
            try:
                yield world
            finally:
                script.close()
                nursery.cancel_scope.cancel()
                world.link.close()
