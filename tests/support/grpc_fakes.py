"""Calls of the gRPC application without a connection under them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from grpclib.stream import StreamIterator
from http_fakes import FakeServer
from multidict import MultiDict, MultiDictProxy

from trireme.api.grpc.application import GrpcApplication
from trireme.api.grpc.call_head import CallHead
from trireme.api.grpc.codec import RawMessage
from trireme.api.grpc.options import GrpcOptions

if TYPE_CHECKING:
    from trireme.actors import InferenceServer
    from trireme.api.logging import Log

Pairs = Iterable[tuple[str, str | bytes]]


class FakeStream(StreamIterator[Any]):
    """grpclib's server stream over two lists: what the client says, and what it is told."""

    def __init__(self, received: Sequence[Any] = (), metadata: Pairs = (), user_agent: str | None = None) -> None:
        self._received = list(received)
        self.metadata = MultiDict(metadata)
        self.user_agent = user_agent
        self.sent: list[Any] = []

    async def recv_message(self) -> Any:
        return self._received.pop(0) if self._received else None

    async def send_message(self, message: Any) -> None:
        self.sent.append(message)


def head_of(path: str = "", metadata: Pairs = (), user_agent: str | None = None) -> CallHead:
    return CallHead(path, MultiDictProxy(MultiDict(metadata)), user_agent=user_agent)


class GrpcClient:
    """Calls the application's handlers as the dispatcher does."""

    def __init__(self, server: FakeServer | InferenceServer, log: Log | None = None, **options: Any) -> None:
        self.server = server
        self.application = GrpcApplication(cast("InferenceServer", server), GrpcOptions(**options), log)
        self.handlers = {
            path: handler for service in self.application.services for path, handler in service.__mapping__().items()
        }

    async def ask(self, path: str, message: Any, metadata: Pairs = ()) -> Any:
        """One call with one message; the answer."""
        handler = self.handlers[path]
        if handler.request_type is RawMessage and not isinstance(message, bytes):
            message = bytes(message)
        stream = FakeStream([message], metadata)
        await handler.func(stream)
        (answer,) = stream.sent
        assert isinstance(answer, handler.reply_type)
        return answer

    async def inference(self, method: str, message: Any) -> Any:
        """A call of the inference service."""
        return await self.ask(f"/inference.GRPCInferenceService/{method}", message)
