"""What a handler gets and what it gives back: the request, the server around it, the answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ...engine.tensor import Buffer
from ..pipeline import Pipeline
from ..request_parameters import compile_forward_pattern
from ..sockets.shares import shared_address
from .asgi import Headers, Scope, Send
from .infer_decoder import InferDecoder
from .options import HttpOptions

if TYPE_CHECKING:
    from ...actors import InferenceServer
    from ...actors.lease import Lease
    from ..logging import Log
    from .routes import Match

TEXT = b"text/plain"
JSON = b"application/json"
BINARY = b"application/octet-stream"


class Context:
    """What all requests share: the server, the options, the decoder of infer requests, the way of inference requests.

    Attributes:
        log: whose settings clients may see and change; None where they may not.

    Raises:
        InvalidArgumentError: the header pattern is not a regular expression.
    """

    __slots__ = ("decoder", "log", "options", "pipeline", "server")

    def __init__(self, server: InferenceServer, options: HttpOptions, log: Log | None = None) -> None:
        self.server = server
        self.options = options
        self.log = log
        self.decoder = InferDecoder(options.max_input_bytes, server.shared_memory, server.options.tensor_limits)
        self.pipeline = Pipeline(server, compile_forward_pattern(options.header_forward_pattern))


def open_lease(server: InferenceServer, match: Match, client: str = "") -> Lease:
    """What a request is to hold of the server-wide budget: of its model's share, if it is for inference.

    Args:
        client: the address that its body arrives from.
    """
    if match.route.category == "inference" and match.version is not None:
        return server.lease(match.name, match.version, client)
    return server.lease(client=client)


def address_of(scope: Scope) -> str:
    """Of the client, as far as shares are concerned; empty if it has none."""
    client = scope.get("client")
    return shared_address(client[0]) if client else ""


class HttpRequest:
    """One request, its body complete.

    Attributes:
        match: the route and what its path said.
        scope: the ASGI scope.
        body: the whole body, as received.
        lease: what it holds of the server-wide budget; None while that is nothing.
        error_media: Content-Type of an error answer from here on. It changes while a request is processed, because
            clients see which stage refused them (docs/reference/http-inference.md#processing-order).
    """

    __slots__ = ("body", "error_media", "lease", "match", "scope")

    def __init__(self, match: Match, scope: Scope, body: Buffer, lease: Lease | None = None) -> None:
        self.match = match
        self.scope = scope
        self.body = body
        self.lease = lease
        self.error_media = match.route.error_media

    async def hold(self, server: InferenceServer, nbytes: int) -> None:
        """Take `nbytes` more of the server-wide budget, waiting for them if need be: for what the body expands to."""
        if self.lease is None:
            self.lease = open_lease(server, self.match)
        await self.lease.grow(nbytes)

    def release(self) -> None:
        """Give back what was taken, unless it has become the share of a request in flight."""
        if self.lease is not None and not self.lease.submitted:
            self.lease.close()

    @property
    def address(self) -> str:
        """See `address_of`."""
        return address_of(self.scope)

    def headers(self) -> dict[bytes, bytes]:
        """Values by lower-case name; of a repeated header, the first."""
        return dict(reversed(self.scope["headers"]))


class Answer:
    """One complete answer.

    Attributes:
        status: HTTP status code.
        media: Content-Type.
        headers: further headers; Content-Length is added when the answer is sent.
        reason: reason phrase, where it differs from the status code's usual one.
        tail: what follows `body`, if it is too large to be copied behind it.
    """

    __slots__ = ("body", "headers", "media", "reason", "status", "tail")

    def __init__(
        self,
        status: int,
        media: bytes,
        body: bytes = b"",
        headers: Headers = (),
        reason: bytes | None = None,
        tail: Buffer | None = None,
    ) -> None:
        self.status = status
        self.media = media
        self.body = body
        self.headers = headers
        self.reason = reason
        self.tail = tail


class StreamedAnswer(ABC):
    """An answer that is sent while it comes about. It is to be sent at once, or not at all."""

    @abstractmethod
    async def send(self, send: Send) -> None:
        """Send all of it. Cancelling this cancels what it tells about."""
        ...


Handler = Callable[[Context, HttpRequest], Awaitable[Answer | StreamedAnswer]]
