"""``POST /v2/models/M[/versions/V]/infer``: the processing order of docs/reference/http-inference.md#processing-order,
line by line."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ...actors import InferenceServer
from ...engine.errors import TriremeError, UnsupportedError
from ...engine.tracing import Tracer
from . import compression
from .asgi import HEADER_NAMES
from .errors import error_answer
from .exchange import JSON, TEXT, Answer, Context, HttpRequest, Match
from .infer_adapter import HttpInfer
from .infer_request import header_length
from .large_bodies import decode, expand
from .tracing import trace_of

_LARGE_BYTES = 65_536
"""Answers from this size on are packed on a thread: zlib works without the interpreter's lock, so the other connections
go on meanwhile."""


def admit_infer(context: Context, match: Match) -> Answer | None:
    """What to answer to a request whose body has not come yet; None if it may come."""
    media = TEXT
    try:
        version = match.model_version()
        HttpInfer(context, match.name, {}, (), None).look_up(version)
        media = JSON
        context.server.check_room(match.name, version)
    except TriremeError as error:
        return error_answer(error, media)
    return None


async def infer(context: Context, request: HttpRequest) -> Answer:
    """Decode, admit, await, encode. Errors up to the header length are plain text, those up to the acceptance of the
    request are JSON, those of the execution are plain text again."""
    headers = request.headers()
    call = _InferTask(context, request, headers)
    call.look_up(request.match.model_version())
    call.body = request.body
    encoding = headers.get(b"content-encoding")
    if encoding is not None:
        try:
            call.body = await expand(context, request, encoding.decode("latin-1"))
        except UnsupportedError as error:
            return error_answer(error, request.error_media, [(b"Accept-Encoding", compression.SUPPORTED.encode())])
    call.json_length = header_length(headers.get(b"inference-header-content-length"), len(call.body))
    call.lease = request.lease
    request.error_media = JSON
    reply = await context.pipeline.admit(call)
    request.error_media = TEXT
    answer = await call.encoded(await reply.response())
    accepted = headers.get(b"accept-encoding")
    if accepted is not None:
        await _compress(context.server, answer, accepted.decode("latin-1"))
    return answer


class _InferTask(HttpInfer):
    """An infer request that the ASGI application answers, in a task."""

    __slots__ = ("_http",)

    def __init__(self, context: Context, request: HttpRequest, values: Mapping[bytes, bytes]) -> None:
        scope = request.scope
        super().__init__(context, request.match.name, values, scope["headers"], scope.get(HEADER_NAMES))
        self._http = request

    def received(self, tracer: Tracer) -> None:
        trace = self.trace = trace_of(self._http.scope)
        if trace is not None:
            trace.begin(self.name, self._values)

    async def decode_slowly(self) -> None:
        decoded = self.decoded = await decode(self.context, self._http, self.body, self.json_length, self._version)
        decoded.model = self.model
        self.request = decoded.request
        self.lease = self._http.lease
        self.body = b""


async def _compress(server: InferenceServer, answer: Answer, accept_encoding: str) -> None:
    encoding = compression.choose_encoding(accept_encoding)
    if encoding is not None:
        tail = answer.tail
        pack = partial(compression.compress, answer.body, encoding, b"" if tail is None else tail)
        small = tail is None and len(answer.body) < _LARGE_BYTES
        answer.body = pack() if small else await server.offload(pack)
        answer.tail = None
        answer.headers = [*answer.headers, (b"Content-Encoding", encoding.encode())]
