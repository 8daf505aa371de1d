"""An echo service that is free of trio and asyncio, and three hosts for it: our service, grpclib's own server, both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import grpclib.server
import trio
from grpclib.const import Cardinality, Handler, Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError
from http_sockets import PATIENCE_S

from trireme.api.grpc.call import UnaryCall
from trireme.api.grpc.options import GrpcServiceOptions
from trireme.api.grpc.service import GrpcService

SERVICE = "/test.Echo/"


class BytesCodec(CodecBase):
    """Messages are bytes."""

    @property
    def __content_subtype__(self) -> str:
        return "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        if not isinstance(message, bytes):
            raise TypeError(f"bytes expected, not {type(message).__name__}")
        return message

    def decode(self, data: Any, message_type: Any) -> bytes:
        return bytes(data)


class Echo:
    """What a method does is said by its name; what else, by the metadata `do`."""

    def __mapping__(self) -> dict[str, Handler]:
        methods = [
            ("Unary", self.unary, Cardinality.UNARY_UNARY),
            ("Split", self.split, Cardinality.UNARY_STREAM),
            ("Join", self.join, Cardinality.STREAM_UNARY),
            ("Each", self.each, Cardinality.STREAM_STREAM),
        ]
        return {SERVICE + name: Handler(function, cardinality, bytes, bytes) for name, function, cardinality in methods}

    async def _obey(self, stream: Any) -> None:
        """Does what the metadata asks for before anything is sent."""
        wish = stream.metadata.get("do")
        if wish == "fail":
            raise GRPCError(Status.FAILED_PRECONDITION, stream.metadata["text"])
        if wish == "crash":
            raise KeyError("a defect")

    async def _finish(self, stream: Any) -> None:
        if stream.metadata.get("do") == "fail late":
            raise GRPCError(Status.DATA_LOSS, stream.metadata["text"])

    async def unary(self, stream: Any) -> None:
        await self._obey(stream)
        message = await stream.recv_message()
        await stream.send_message(message)
        await self._finish(stream)

    async def split(self, stream: Any) -> None:
        """One message for each byte."""
        await self._obey(stream)
        message = await stream.recv_message()
        for byte in message:
            await stream.send_message(bytes([byte]))
        await self._finish(stream)

    async def join(self, stream: Any) -> None:
        await self._obey(stream)
        await stream.send_message(b"".join([message async for message in stream]))
        await self._finish(stream)

    async def each(self, stream: Any) -> None:
        await self._obey(stream)
        async for message in stream:
            await stream.send_message(message)
        await self._finish(stream)


class ImmediateEcho(Echo):
    """`Unary` is answered without a task, unless the metadata asks for something.

    Attributes:
        begun: calls that were taken over and not answered at once: those with the metadata `hold`.
    """

    def __init__(self) -> None:
        self.begun: list[UnaryCall] = []
        self.cancelled = 0
        self.immediate: dict[str, Callable[[UnaryCall], bool]] = {SERVICE + "Unary": self.begin}

    def begin(self, call: UnaryCall) -> bool:
        if "do" in call.head.metadata:
            return False
        if "hold" in call.head.metadata:
            call.on_cancel = partial(self._count, call)  # a circle, as long as the call is not over
            self.begun.append(call)
        else:
            call.answer([call.message])
        return True

    def _count(self, call: UnaryCall) -> None:
        assert call.over
        self.cancelled += 1


@asynccontextmanager
async def serving(services: Sequence[Any], *, guards: Sequence[Any] = (), **options: Any) -> AsyncIterator[GrpcService]:
    """Our service on a free port of the loopback interface."""
    settings = GrpcServiceOptions(bind=("127.0.0.1:0",), **options)
    service = GrpcService(services, settings, codec=BytesCodec(), guards=guards)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(service.serve)
            yield service
            service.close()


@contextmanager
def serving_in_thread(services: Sequence[Any], **options: Any) -> Iterator[int]:
    """The same, from a thread; gives the port."""
    started = threading.Event()
    opened: list[tuple[int, trio.lowlevel.TrioToken, trio.Event]] = []

    async def main() -> None:
        async with serving(services, **options) as service:
            stop = trio.Event()
            opened.append((service.ports[0], trio.lowlevel.current_trio_token(), stop))
            started.set()
            await stop.wait()

    def run() -> None:
        try:
            trio.run(main)
        finally:
            started.set()

    thread = threading.Thread(target=run, name="gRPC service")
    thread.start()
    started.wait(PATIENCE_S)
    port, token, stop = opened[0]
    try:
        yield port
    finally:
        token.run_sync_soon(stop.set)
        thread.join(PATIENCE_S)


@contextmanager
def grpclib_serving(services: Sequence[Any]) -> Iterator[int]:
    """grpclib's own server, on asyncio, in a thread; gives the port."""
    started = threading.Event()
    opened: list[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def main() -> None:
        server = grpclib.server.Server(services, codec=BytesCodec())
        await server.start("127.0.0.1", 0)
        assert isinstance(server._server, asyncio.Server)
        port = server._server.sockets[0].getsockname()[1]
        stop = asyncio.Event()
        opened.append((port, asyncio.get_running_loop(), stop))
        started.set()
        await stop.wait()
        server.close()
        await server.wait_closed()

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="grpclib server")
    thread.start()
    started.wait(PATIENCE_S)
    port, loop, stop = opened[0]
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE_S)
