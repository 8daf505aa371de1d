"""``POST /v2/models/M[/versions/V]/infer``: the processing order of docs/reference/http-inference.md#processing-order,
line by line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import orjson

from ....actors.facade import Facade
from ....actors.reply import Reply
from ....engine.access.callers import Caller, Right
from ....engine.description import ModelDescription
from ....engine.errors import ColdModelError, TriremeError, UnsupportedError
from ....engine.logs.request_lines import about
from ....engine.request import InferenceRequest
from ....engine.tensor import Buffer
from ....engine.tracing import Tracer
from ...access import Identity, identity_of
from ...pipeline import CallbackAnswer, Encoder, find_model
from ...request_parameters import HeaderPattern, check_forwarded_name
from .. import compression
from ..exchange import (
    JSON,
    TEXT,
    Answer,
    BodyKind,
    Context,
    Headers,
    HttpRequest,
    HttpTrace,
    Match,
    error_answer,
    unexpected_failure,
)
from ..guards import RequestGuard
from ..h1.messages import Request
from ..json.reader import ON_LOOP_BYTES, LargeText
from .request import DecodedInfer, header_length
from .response import encode_infer, takes_long

_log = logging.getLogger(__name__)

_FIRST_BYTES = 65_536
_EXPANSION_BYTES = 1 << 20
_LARGE_BYTES = 65_536
_INFER = Right.INFER  # found faster here than in its class
"""Answers from this size on are packed on a thread: zlib works without the interpreter's lock, so the other connections
go on meanwhile."""


class HttpInfer(Encoder[Answer]):
    """One infer request whose body has come, as the pipeline sees it (`api.pipeline`), with a task or without one.

    Args:
        values: of its headers, by lower-case name.
        headers: all of them; their names as received, in the same order, or None.

    Attributes:
        body: unpacked; empty once it has been decoded.
        json_length: how much of it is JSON (`header_length`).
    """

    encode = staticmethod(encode_infer)
    takes_long = staticmethod(takes_long)
    in_pieces = True
    body: Buffer = b""
    decoded: DecodedInfer | None = None
    json_length = 0

    def __init__(
        self,
        context: Context,
        match: Match,
        values: Mapping[bytes, bytes],
        headers: Headers,
        names: Sequence[bytes] | None,
    ) -> None:
        self.context = context
        self.match = match
        self.offload = context.server.offload
        self.lease = self.trace = None  # what every request asks for is found faster in it than in its class
        self._headers = headers
        self._names = names
        self._values = values

    # See `pipeline.Adapter`.

    def decode(self) -> bool:
        json_length = self.json_length
        if json_length > ON_LOOP_BYTES:
            return False
        match = self.match
        version = match.version
        assert version is not None, "its model has been looked up"
        decoded = self.decoded = self.context.decoder.decode(self.body, json_length, match.name, version)
        decoded.model = self.model
        self.request = decoded.request
        self.body = b""
        return True

    def forward(self, pattern: HeaderPattern, request: InferenceRequest) -> None:
        names = self._names or [name for name, _ in self._headers]
        for raw_name, (_, raw_value) in zip(names, self._headers, strict=True):
            name = raw_name.decode("utf-8", "surrogateescape")
            if pattern(name):
                check_forwarded_name(name)
                request.parameters[name] = raw_value.decode("utf-8", "surrogateescape")

    def header(self, name: str) -> str:
        return self._values.get(name.encode(), b"").decode("utf-8", "surrogateescape")


def _look_up(context: Context, match: Match) -> ModelDescription:
    """The model, in the version that the path says; it must be one that answers once."""
    version = match.version
    model = context.server.describe(match.name, match.model_version() if version is None else version)
    if model.config.decoupled:
        raise UnsupportedError("HTTP end point doesn't support models with decoupled transaction policy")
    return model


async def admit_infer(context: Context, match: Match) -> Answer | None:
    """What to answer to a request whose body has not come yet; None if it may come. Also for generate requests. A model
    that is loaded on demand is waited for here, while the body takes no room."""
    media = match.route.error_media
    try:
        await find_model(context.server, match.name, match.model_version())
        if match.route.body is BodyKind.TENSORS:
            _look_up(context, match)
        media = JSON
        context.server.check_room(match.name, match.model_version())
    except TriremeError as error:
        context.server.note_refusal(error, match.name, match.version)
        return error_answer(error, media)
    return None


async def infer(context: Context, request: HttpRequest) -> Answer:
    """Decode, admit, await, encode. Errors up to the header length are plain text, those up to the acceptance of the
    request are JSON, those of the execution are plain text again."""
    headers, exchange = request.headers(), request.exchange
    call = _InferTask(context, request.match, headers, exchange.headers, exchange.header_names)
    call.http = request
    call.caller = request.exchange.caller
    call.body = request.body
    announced = headers.get(b"inference-header-content-length")
    try:
        call.model = _look_up(context, request.match)
    except ColdModelError:
        match = request.match
        await find_model(context.server, match.name, match.model_version(), _own_timeout_us(call.body, announced))
        call.model = _look_up(context, match)
    encoding = headers.get(b"content-encoding")
    if encoding is not None:
        try:
            call.body = await expand(context, request, encoding.decode("latin-1"))
        except UnsupportedError as error:
            context.server.note_refusal(error, request.match.name, request.match.version)
            return error_answer(error, request.error_media, [(b"Accept-Encoding", compression.SUPPORTED.encode())])
    call.json_length = header_length(announced, len(call.body), context.length_name)
    call.lease = request.lease
    request.error_media = JSON
    reply = await context.pipeline.admit(call)
    request.accepted = True
    request.error_media = TEXT
    answer = await call.encoded(await reply.response())
    accepted = headers.get(b"accept-encoding")
    if accepted is not None:
        await _compress(context.server, answer, accepted.decode("latin-1"))
    return answer


def _own_timeout_us(body: Buffer, announced: bytes | None) -> int:
    """How long a request wants to wait at most, as far as that is easily told; microseconds, 0 for no limit. Whether
    the request is right is found out later."""
    length = int(announced) if announced is not None and announced.isdigit() else len(body)
    if length > ON_LOOP_BYTES:
        return 0
    try:
        timeout = orjson.loads(memoryview(body)[:length])["parameters"]["timeout"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return 0
    return timeout if isinstance(timeout, int) else 0


class _InferTask(HttpInfer):
    """An infer request that the application answers, in a task."""

    http: HttpRequest

    def received(self, tracer: Tracer) -> None:
        trace = self.trace = self.http.exchange.trace
        if trace is not None:
            trace.begin(self.match.name, self._values)

    async def decode_slowly(self) -> None:
        context, http = self.context, self.http
        in_pieces, body, json_length, match = self.offload.in_pieces, self.body, self.json_length, self.match
        text = await in_pieces(LargeText, memoryview(body)[:json_length], context.options.max_json_values)
        await http.hold(text.cost_bytes)
        blobs = memoryview(body)[json_length:]
        decoded = self.decoded = await in_pieces(
            context.decoder.decode_large, text, blobs, match.name, match.model_version()
        )
        decoded.model = self.model
        self.request = decoded.request
        self.body = b""
        self.lease = http.lease


async def _compress(server: Facade, answer: Answer, accept_encoding: str) -> None:
    encoding = compression.choose_encoding(accept_encoding)
    if encoding is not None:
        tail = answer.tail
        pack = partial(compression.compress, answer.body, encoding, b"" if tail is None else tail)
        small = tail is None and len(answer.body) < _LARGE_BYTES
        answer.body = pack() if small else await server.offload(pack)
        answer.tail = None
        answer.headers = [*answer.headers, (b"Content-Encoding", encoding.encode())]


async def expand(context: Context, request: HttpRequest, encoding: str) -> Buffer:
    """The body as it was before ``Content-Encoding``; see `Expansion`.

    Raises:
        UnsupportedError: an unknown encoding.
        InvalidArgumentError: nothing to decompress; too much comes out, or too much of so little.
    """
    body = request.body
    if not compression.needs_expansion(encoding, len(body)):
        return body
    options = context.options
    expansion = compression.Expansion(memoryview(body), options.max_input_bytes, options.max_compression_ratio)
    if len(body) < _FIRST_BYTES:
        expansion.step(_FIRST_BYTES)
    while not expansion.over:
        await request.hold(_EXPANSION_BYTES)
        await context.server.offload(expansion.step, _EXPANSION_BYTES)
    return expansion.plain


class ImmediateCall(HttpInfer, CallbackAnswer[Answer]):
    """An infer request without a task: decoded, admitted and answered by callbacks.

    Attributes:
        media: content type of a refusal.
        respond: gets the answer, from wherever it comes; does not raise.
    """

    prompt: ClassVar[bool] = True
    media = TEXT
    reply: Reply | None = None

    def __init__(self, context: Context, head: _InferHead, request: Request, respond: Callable[[Answer], None]) -> None:
        self.context = context  # all of `HttpInfer`: a constructor that calls another takes longer
        self.match = head.match
        self.offload = context.server.offload
        self.lease = self.trace = None
        self._headers = request.headers
        self._names = request.header_names
        self._values = head.values
        self._head = head
        self.over = False
        self.respond = respond

    def received(self, tracer: Tracer) -> None:
        trace = self.trace = HttpTrace(tracer)
        trace.begin(self.match.name, self._values)

    def trace_context(self) -> tuple[tuple[str, str], ...]:
        found = self._head.trace_context
        if found is None:
            found = self._head.trace_context = super().trace_context()
        return found

    async def decode_slowly(self) -> None:
        raise AssertionError("such a request has a task")

    # See `pipeline.CallbackAnswer`.

    def send(self, answer: Answer) -> None:
        self.over = True
        self.respond(answer)

    def fail(self, error: TriremeError | None, refused: bool = False) -> None:
        self.send(unexpected_failure(TEXT) if error is None else error_answer(error, JSON if refused else TEXT))

    def log_defect(self) -> None:
        request_id = "" if self.request is None else self.request.id
        _log.exception("unexpected failure while answering a request", extra=about(self.match.name, request_id))


@dataclass(slots=True, eq=False)
class _InferHead:
    """What the head of a request says: the values of its headers, by lower-case name, and, once that has been asked,
    what `header_length` and `Adapter.trace_context` say."""

    match: Match
    values: Mapping[bytes, bytes]
    identity: Identity
    json_length: int | None = None
    trace_context: tuple[tuple[str, str], ...] | None = None


class ImmediateInfer:
    """Answers ``POST /v2/models/M[/versions/V]/infer`` without a task.

    A small request spends most of its time on changes of tasks if it has one. So the connection offers every request
    that came whole, in the task that noticed its data; the reply calls back when it has the answer, on the event loop,
    and the answer is sent from there. Nothing else is different: what is not the usual case (other routes, compressed
    bodies, a missing key, a caller that is not known or may not, a server without room) goes the long way, through the
    application.

    Args:
        translate: makes of a request's headers those that the others expect; None if it is to go the long way.
    """

    def __init__(
        self,
        context: Context,
        find: Callable[[bytes], Match | None],
        guard: RequestGuard,
        translate: Callable[[Headers], Headers | None] | None = None,
    ) -> None:
        self._translate = translate
        self._context = context
        self._limit_bytes = context.options.max_input_bytes
        self._guard = guard if guard.guards_inference else None
        self._find = find

    def wants(self, request: Request) -> bool:
        """Whether it is worth waiting for the rest of a request, of which the head has come."""
        return self._match(request) is not None

    def begin(self, request: Request, respond: Callable[[Answer], None]) -> ImmediateCall | None:
        """Take over a request that came whole. The answer may be given before this returns.

        Args:
            respond: sends an answer; does not raise.

        Returns:
            None if it is to go the long way: then nothing has happened yet.
        """
        first = request.first
        head: _InferHead | None = (None if first is None else first.found) or self._read_head(request)
        if head is None:
            return None
        if first is not None:
            first.found = head
        context, match = self._context, head.match
        caller: Caller | None = None
        if context.access is not None:
            caller = context.access.known(head.identity)
            if caller is None or not caller.may(_INFER, match.name):
                return None
        call = ImmediateCall(context, head, request, respond)
        if caller is not None:
            call.caller = caller
        try:
            call.model = _look_up(context, match)
            pieces = request.pieces
            body = call.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            if len(body) > self._limit_bytes:
                return None
            json_length = head.json_length
            if json_length is None:
                text = head.values.get(b"inference-header-content-length")
                json_length = head.json_length = header_length(text, len(body), context.length_name)
            if json_length > ON_LOOP_BYTES:
                return None  # that is read off the event loop
            call.json_length = json_length
            call.media = JSON
            reply = context.pipeline.begin(call)
        except ColdModelError:
            return None  # the application waits for it
        except TriremeError as error:
            context.server.note_refusal(error, match.name, match.version)
            _tell_of(request)
            call.send(error_answer(error, call.media))
            return call
        except Exception:  # noqa: BLE001 - as in `app`: a defect must cost its own request, not the connection
            _tell_of(request)
            _log.exception("unexpected failure while handling %s", request.target, extra=about(match.name))
            call.send(unexpected_failure(call.media))
            return call
        if reply is None:  # there is no room; the application waits for some, and tells of the request
            if call.trace is not None:
                call.trace.forget()
            return None
        if _log.isEnabledFor(logging.DEBUG):
            _tell_of(request)
        call.reply = reply
        reply.notify(call.complete)
        return call

    def _read_head(self, request: Request) -> _InferHead | None:
        """None if the request is to go the long way."""
        match = self._match(request)
        if match is None:
            return None
        if self._guard is not None and self._guard.refusal("inference", "POST", request.headers) is not None:
            return None
        headers = request.headers if self._translate is None else self._translate(request.headers)
        if headers is None:
            return None
        values = dict(reversed(headers))
        if b"content-encoding" in values or b"accept-encoding" in values:
            return None
        return _InferHead(match, values, identity_of(headers))

    def _match(self, request: Request) -> Match | None:
        if request.method != "POST" or request.http_version != "1.1" or not request.keep_alive:
            return None
        match = self._find(request.target)
        return match if match is not None and match.route.body is BodyKind.TENSORS else None


def _tell_of(request: Request) -> None:
    _log.debug("HTTP request: %s %s", request.method, request.target.decode("utf-8", "replace"))
