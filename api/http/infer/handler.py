"""``POST /v2/models/M[/versions/V]/infer``: the processing order of docs/reference/http-inference.md#processing-order,
line by line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import ClassVar

from ....actors import InferenceServer
from ....actors.budget import Lease
from ....engine.description import ModelDescription
from ....engine.errors import TriremeError, UnsupportedError
from ....engine.request import LATEST, InferenceRequest
from ....engine.tensor import Buffer
from ....engine.tracing import Tracer
from ...pipeline import Encoder
from ...request_parameters import HeaderPattern
from .. import compression
from ..asgi import HEADER_NAMES, Headers
from ..errors import error_answer
from ..exchange import JSON, TEXT, Answer, Context, HttpRequest, Match
from ..json.large import ON_LOOP_BYTES
from ..tracing import trace_of
from .request import DecodedInfer, forward_headers, header_length
from .response import encode_infer, takes_long

_FIRST_BYTES = 65_536
_EXPANSION_BYTES = 1 << 20
_LARGE_BYTES = 65_536
"""Answers from this size on are packed on a thread: zlib works without the interpreter's lock, so the other connections
go on meanwhile."""


class HttpInfer(Encoder[Answer]):
    """One infer request whose body has come.

    Args:
        name: of the model, as its path says.
        values: of its headers, by lower-case name.
        headers: all of them; their names as received, in the same order, or None.

    Attributes:
        body: unpacked; empty once it has been decoded.
        json_length: how much of it is JSON (`infer_request.header_length`).
    """

    __slots__ = (
        "_headers",
        "_names",
        "_values",
        "_version",
        "body",
        "context",
        "decoded",
        "json_length",
        "lease",
        "model",
        "name",
        "offload",
        "request",
        "trace",
    )
    encode = staticmethod(encode_infer)
    takes_long = staticmethod(takes_long)
    prompt: ClassVar[bool] = False

    def __init__(
        self,
        context: Context,
        name: str,
        values: Mapping[bytes, bytes],
        headers: Headers,
        names: Sequence[bytes] | None,
    ) -> None:
        self.body: Buffer = b""
        self.context = context
        self.decoded: DecodedInfer | None = None
        self.json_length = 0
        self.lease: Lease | None = None
        self.model: ModelDescription | None = None
        self.name = name
        self.offload = context.server.offload
        self.request: InferenceRequest | None = None
        self.trace = None
        self._headers = headers
        self._names = names
        self._values = values
        self._version = LATEST

    def look_up(self, version: int) -> None:
        """Find the model, in the version that the path says; it must be one that answers once.

        Raises:
            TriremeError: there is no such model.
            UnsupportedError: it may answer any number of times.
        """
        model = self.model = self.context.server.describe(self.name, version)
        if model.config.decoupled:
            raise UnsupportedError("HTTP end point doesn't support models with decoupled transaction policy")
        self._version = version

    # See `pipeline.Adapter`.

    def decode(self) -> bool:
        json_length = self.json_length
        if json_length > ON_LOOP_BYTES:
            return False
        decoded = self.context.decoder.decode(self.body, json_length, self.name, self._version)
        decoded.model = self.model
        self.decoded = decoded
        self.request = decoded.request
        self.body = b""
        return True

    def forward(self, pattern: HeaderPattern, request: InferenceRequest) -> None:
        forward_headers(self._names, self._headers, pattern, request)

    def waiting(self) -> AbstractContextManager[None]:
        return nullcontext()


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
        context, http = self.context, self._http
        decoder, offload, body, json_length = context.decoder, self.offload, self.body, self.json_length
        text = await offload(decoder.large, body, json_length, context.options.max_json_values)
        await http.hold(context.server, text.cost_bytes)
        decoded = self.decoded = await offload(decoder.decode_large, text, body, json_length, self.name, self._version)
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
        await request.hold(context.server, _EXPANSION_BYTES)
        await context.server.offload(expansion.step, _EXPANSION_BYTES)
    return expansion.plain
