"""What a handler gets and what it gives back: options, the route, the request, the server around it, the answer."""

from __future__ import annotations

import enum
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from ...engine.errors import ErrorKind, InvalidArgumentError, LimitExceededError, TriremeError
from ...engine.request import LATEST, InferenceRequest
from ...engine.tensor import Buffer
from ...engine.tracing import Tracer
from ...engine.tracing.record import Activity
from ..access import AccessChecks, Identity, identity_of
from ..pipeline import Pipeline, RequestTrace
from ..request_parameters import Restriction, compile_forward_pattern
from ..sockets.limits import shared_address
from .infer.decoder import InferDecoder
from .infer.request import LENGTH_HEADER, InferTerms
from .json import writer as json_writer
from .json.scan import DEFAULT_MAX_VALUES

if TYPE_CHECKING:
    from ...actors.budget import Lease
    from ...actors.facade import Facade
    from ...engine.access.callers import Caller
    from ..logging import LogFacade

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Options of an `HttpApplication`.

    Attributes:
        max_input_bytes: ``--http-max-input-size``, bound on bodies that are JSON, on one tensor given as JSON, on raw
            and compressed requests and what these unpack to, and on load requests. Binary tensors are not bounded by it
            (docs/reference/http.md#request-bodies).
        max_management_bytes: ``--http-max-management-size``, bound on the bodies of all other calls, and on load
            requests without files.
        header_forward_pattern: see `compile_forward_pattern`; empty: no header becomes a parameter.
        allow_client_shm: whether clients may register shared-memory regions (docs/reference/shared-memory.md#regions).
        max_json_values: most values that a JSON text may have, besides plain data of tensors in large arrays.
        max_compression_ratio: most bytes that one byte of a compressed body may become; 0 for any number.
        restrictions, allowed_origins, allowed_hosts: see `RequestGuard`.
    """

    max_input_bytes: int = 67_108_864
    max_management_bytes: int = 1 << 20
    header_forward_pattern: str = ""
    allow_client_shm: bool = False
    restrictions: tuple[Restriction, ...] = ()
    max_json_values: int = DEFAULT_MAX_VALUES
    max_compression_ratio: float = 1_000.0
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()


TEXT = b"text/plain"
JSON = b"application/json"
BINARY = b"application/octet-stream"


class BodyKind(enum.Enum):
    """What a route's bodies are."""

    TENSORS = "tensors"
    JSON = "JSON"
    FILES = "files"
    MANAGEMENT = "management"


class Context:
    """What all requests share.

    Attributes:
        access: finds out who makes a call; None if there are no access rules.
        log: whose settings clients may see and change; None where they may not.
        length_name: what errors call the number of bytes of JSON that a request announces (`header_length`).

    Raises:
        InvalidArgumentError: the header pattern is not a regular expression.
    """

    def __init__(self, server: Facade, options: HttpOptions, log: LogFacade | None = None) -> None:
        self.server = server
        self.options = options
        self.log = log
        self.access = AccessChecks.of(server, "http")
        self.length_name = LENGTH_HEADER
        self.decoder = InferDecoder(
            InferTerms(options.max_input_bytes, server.shared_memory, server.options.tensor_limits)
        )
        self.pipeline = Pipeline(server, compile_forward_pattern(options.header_forward_pattern))


class HttpTrace(RequestTrace):
    """What is noted of a request, from before its body is read to after its answer is sent
    (docs/reference/traces.md#trace-files)."""

    __slots__ = ("_generates", "_sends_ns")

    def __init__(self, tracer: Tracer) -> None:
        super().__init__(tracer)
        self._generates = False
        self._sends_ns = 0

    def begin(self, model_name: str, headers: Mapping[bytes, bytes], *, generates: bool = False) -> None:
        """The request is an inference for this model, and may be traced.

        Args:
            generates: it may have many responses: of none of them it is noted when it was sent, as in Triton.
        """
        self._generates = generates
        trace = self._begin(model_name, lambda name: headers.get(name.encode(), b"").decode("latin-1"))
        if trace is not None:
            trace.note(Activity.HTTP_RECV_START, self._came_ns)
            trace.note(Activity.HTTP_RECV_END, self._tracer.clock.now_ns())

    def _responded(self, ns: int, has_response: bool) -> None:
        if self.trace is not None:
            self.trace.note(Activity.INFER_RESPONSE_COMPLETE, ns)
            if self._generates and has_response:
                self.trace.note(Activity.HTTP_SEND_START, 0)
                self.trace.note(Activity.HTTP_SEND_END, 0)

    def decoded(self, request: InferenceRequest) -> None:
        request.trace = self.trace

    def sending(self) -> None:
        if self.trace is not None:
            self._sends_ns = self._tracer.clock.now_ns()

    def sent(self) -> None:
        if self.trace is not None and not self._generates:
            self.trace.note(Activity.HTTP_SEND_START, self._sends_ns)
            self.trace.note(Activity.HTTP_SEND_END, self._tracer.clock.now_ns())


@dataclass(slots=True, eq=False)
class Answer:
    """One complete answer.

    Attributes:
        media: Content-Type.
        headers: further headers, all of the server's own making; Content-Length is added when the answer is sent.
        tail: what follows `body`, if it is too large to be copied behind it.
    """

    status: int
    media: bytes
    body: bytes = b""
    headers: Headers = ()
    tail: Buffer | None = None


# ---- which HTTP status an error becomes, and how its body looks (docs/reference/errors.md#error-kinds) ----

_STATUS = {
    ErrorKind.INVALID_ARGUMENT: 400,
    ErrorKind.UNKNOWN: 400,
    ErrorKind.ALREADY_EXISTS: 400,
    ErrorKind.CANCELLED: 400,
    ErrorKind.NOT_FOUND: 404,
    ErrorKind.INTERNAL: 500,
    ErrorKind.UNSUPPORTED: 501,
    ErrorKind.UNAVAILABLE: 503,
    # Triton has no such class: a request that ran out of time is one that the server was not available for.
    ErrorKind.DEADLINE: 503,
    ErrorKind.UNAUTHENTICATED: 401,
    ErrorKind.PERMISSION_DENIED: 403,
    ErrorKind.LIMIT_EXCEEDED: 429,
}


def error_answer(error: TriremeError, media: bytes, headers: Headers = ()) -> Answer:
    """The answer to a request that ended with `error`."""
    if error.kind is ErrorKind.UNAUTHENTICATED:
        headers = (*headers, (b"WWW-Authenticate", b"Bearer"))
    elif isinstance(error, LimitExceededError):
        headers = (*headers, (b"Retry-After", b"%d" % max(1, math.ceil(error.retry_after_s))))
    return Answer(_STATUS[error.kind], media, error_body(error.message), headers)


def error_body(message: str) -> bytes:
    """``{"error":"<message>"}``. Under overload many requests get the same; what a model says may be long, and is not
    kept."""
    return _kept_error_body(message) if len(message) <= _KEPT_CHARACTERS else _make_error_body(message)


def _make_error_body(message: str) -> bytes:
    return b'{"error":' + json_writer.string(message) + b"}"


_KEPT_CHARACTERS = 1024
_kept_error_body = lru_cache(maxsize=256)(_make_error_body)


def json_refusal(status: int, message: str) -> Answer:
    """The answer to a request that is refused, in JSON whatever media its route has for errors."""
    return Answer(status, JSON, error_body(message))


def method_not_allowed(media: bytes) -> Answer:
    """The path has a route, but not for this method."""
    return Answer(405, media, error_body("Method Not Allowed"))


def unexpected_failure(media: bytes) -> Answer:
    """A defect of the server. What it was stands in the log, not in the answer."""
    return Answer(500, media, error_body("unexpected failure inside the server, see its log"))


@dataclass(eq=False, repr=False)
class Exchange(ABC):
    """One request and its answer, between a connection and the application, which is called with it.

    If the client leaves, or resets its stream, the application is cancelled.

    Attributes:
        http_version: ``1.0``, ``1.1`` or ``2``.
        path: as received, without the query.
        headers: (lower-case name, value), in order.
        header_names: the names as received, in the same order; None if they came in lower case.
        client: (address, port).
        certificate: the names in the client's certificate (`certificate_names`); empty if it has shown none.
        caller: who makes the request; None if that was not asked.
        begun: something of the answer has been sent.
        done: all of it has been.
        trace: None while no request could be traced.
    """

    http_version: str
    method: str
    path: bytes
    headers: Headers
    header_names: Sequence[bytes] | None
    client: tuple[str, int] | None
    certificate: bytes = field(default=b"", init=False)
    caller: Caller | None = field(default=None, init=False)
    begun: bool = field(default=False, init=False)
    done: bool = field(default=False, init=False)
    trace: HttpTrace | None = field(default=None, init=False)

    @property
    def address(self) -> str:
        """Of the client, as far as shares are concerned; empty if it has none."""
        return shared_address(self.client[0]) if self.client else ""

    def call_name(self, match: Match) -> str:
        """What the audit log calls the call."""
        return f"{self.method} {match.route.template}"

    def identity(self) -> Identity:
        """Who the request says it is from."""
        return identity_of(self.headers, self.certificate)

    @abstractmethod
    async def read(self) -> tuple[Buffer, bool]:
        """The next piece of the body, and whether more follows. After the last one it waits until it is cancelled."""

    @abstractmethod
    async def respond(self, answer: Answer) -> None:
        """Send all of the answer; to HEAD without its body. Returns when the client has let it through."""

    @abstractmethod
    async def begin(self, answer: Answer) -> None:
        """Begin an answer of unknown length, with this head, which is sent with the first piece; not to HEAD."""

    @abstractmethod
    async def send(self, piece: Buffer, last: bool = False) -> None:
        """Send the next piece of it, which may be empty."""


Application = Callable[[Exchange], Awaitable[None]]


@dataclass(slots=True, eq=False)
class HttpRequest:
    """One request as handlers see it, its body complete.

    Attributes:
        body: the whole body, as received.
        lease: what it holds of the server-wide budget; None while that is nothing.
        accepted: its model has accepted the request: what it is answered with is no refusal any more.
        error_media: Content-Type of an error answer from here on. It changes while a request is processed, because
            clients see which stage refused them (docs/reference/http-inference.md#processing-order).
    """

    server: Facade
    match: Match
    exchange: Exchange
    body: Buffer = field(default=b"", init=False)
    lease: Lease | None = field(default=None, init=False)
    accepted: bool = field(default=False, init=False)
    error_media: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.error_media = self.match.route.error_media

    def open_lease(self, client: str = "") -> Lease:
        """Begin to hold something: of the model's share, if the request is for inference; of that of the client's
        address, if a body is to arrive from one."""
        match = self.match
        if match.route.category == "inference" and match.version is not None:
            self.lease = self.server.lease(match.name, match.version, client)
        else:
            self.lease = self.server.lease(client=client)
        return self.lease

    async def hold(self, nbytes: int) -> None:
        """Take `nbytes` more of the server-wide budget, waiting for them if need be: for what the body expands to."""
        await (self.lease or self.open_lease()).grow(nbytes)

    def release(self) -> None:
        """Give back what was taken, unless it has become the share of a request in flight."""
        if self.lease is not None and not self.lease.admitted:
            self.lease.close()

    def headers(self) -> dict[bytes, bytes]:
        """Values by lower-case name; of a repeated header, the first."""
        return dict(reversed(self.exchange.headers))


StreamedAnswer = Callable[[Exchange], Awaitable[None]]
"""Sends an answer while it comes about: at once, or not at all. Cancelling it cancels what the answer tells about."""

Handler = Callable[[Context, HttpRequest], Awaitable[Answer | StreamedAnswer]]


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """One row of the table in docs/reference/http.md#routes.

    Attributes:
        template: its paths, with parts in braces, and what may be missing in brackets.
        pattern: what the whole path must match; its named groups fill a `Match`.
        handlers: by method; any other method is refused.
        category: what a restricted-API setting calls this route (docs/reference/http.md#restricted-apis).
        error_media: Content-Type of its errors: some routes announce JSON before they look at the request.
        body: what its bodies are.
        admit: says what to answer to a request whose large body has not come yet; None if it may come.
        names_late: no path names a model, or more than one may be meant: the handler finds out whether the caller may
            have what is asked for, and before it looks at the body that is not known.
        form: makes of a refusal what the route's clients read; None to leave it as it is.
    """

    template: str
    pattern: re.Pattern[bytes]
    handlers: Mapping[str, Handler]
    category: str
    error_media: bytes
    body: BodyKind = BodyKind.MANAGEMENT
    admit: Callable[[Context, Match], Awaitable[Answer | None]] | None = None
    names_late: bool = False
    form: Callable[[Answer], Answer] | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """A path that belongs to a route; what it does not name is empty.

    Attributes:
        name: of the model, the route, or the shared-memory region.
        version_text: the digits in the path.
        kind: ``system`` or ``cuda``, for shared memory.
        version: `LATEST` when the path names none; None when it is too large for 64 bits.
    """

    route: Route
    name: str = ""
    version_text: str = ""
    repository: str = ""
    kind: str = ""
    version: int | None = LATEST

    def model_version(self) -> int:
        """The version asked for, or `LATEST`.

        Raises:
            InvalidArgumentError: it does not fit into 64 bits.
        """
        if self.version is None:
            raise InvalidArgumentError(
                f"failed to get model version from specified version string '{self.version_text}' (details: stol), "
                "version should be an integral value > 0"
            )
        return self.version
