"""``POST /v2/models/M[/versions/V]/generate`` and ``…/generate_stream`` (docs/reference/generate.md).

Whatever is wrong before the model is asked is an ordinary error. After that the answer is sent as it comes about: its
status says how the model's first response was (200, or 400 if it was an error, of whatever class), its body the rest.

The connection holds the model back: responses are taken from the reply when those before them have gone to the client,
and a model whose responses are not taken waits (`engine.answer_window`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, ClassVar

import trio

from ...actors.offload import Offload
from ...actors.reply import Reply
from ...engine.description import ModelDescription
from ...engine.errors import InvalidArgumentError, TriremeError
from ...engine.request import InferenceRequest
from ...engine.response import InferenceResponse
from ...engine.tracing import Tracer
from ..pipeline import Traced
from ..request_parameters import HeaderPattern
from . import json_reader
from .asgi import Headers, Message, Send
from .errors import error_answer, error_body
from .exchange import JSON, Answer, Context, HttpRequest, StreamedAnswer
from .generate_request import read_generate
from .generate_response import encode_generate, takes_long
from .json_large import ON_LOOP_BYTES
from .large_bodies import decode_generate
from .load_metrics import FORMAT_HEADER, load_metrics_headers
from .tracing import trace_of

if TYPE_CHECKING:
    from .routes import Match

EVENTS = b"text/event-stream; charset=utf-8"

_WRONG_COUNT = error_body(
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)


def admit_generate(context: Context, match: Match) -> Answer | None:
    """What to answer to a request whose body has not come yet; None if it may come."""
    try:
        version = match.model_version()
        context.server.describe(match.name, version)
        context.server.check_room(match.name, version)
    except TriremeError as error:
        return error_answer(error, match.route.error_media)
    return None


async def generate(context: Context, request: HttpRequest) -> StreamedAnswer:
    """The only response of a model."""
    return _Whole(await _submit(context, request), _load_headers(context, request), context.server.offload)


async def generate_stream(context: Context, request: HttpRequest) -> StreamedAnswer:
    """All responses of a model, each an event."""
    return _Events(await _submit(context, request), _load_headers(context, request), context.server.offload)


async def _submit(context: Context, request: HttpRequest) -> Reply:
    version = request.match.model_version()
    model = context.server.describe(request.match.name, version)
    headers = request.headers()
    if headers.get(b"content-encoding", b"identity") != b"identity":
        raise InvalidArgumentError("Unsupported content-encoding, only 'identity' is supported.")
    return await context.pipeline.submit(_GenerateTask(context, request, model, version, headers))


class _GenerateTask(Traced):
    """A generate request as the pipeline sees it (`pipeline.Adapter`). No headers become parameters of it."""

    __slots__ = ("_context", "_headers", "_http", "_version", "lease", "model", "request", "trace")
    attended: ClassVar[bool] = False
    prompt: ClassVar[bool] = False

    def __init__(
        self,
        context: Context,
        request: HttpRequest,
        model: ModelDescription,
        version: int,
        headers: Mapping[bytes, bytes],
    ) -> None:
        self.lease = request.lease
        self.model = model
        self.request: InferenceRequest | None = None
        self.trace = None
        self._context = context
        self._headers = headers
        self._http = request
        self._version = version

    def received(self, tracer: Tracer) -> None:
        trace = self.trace = trace_of(self._http.scope)
        if trace is not None:
            trace.begin(self.model.name, self._headers, generates=True)

    def decode(self) -> bool:
        body = self._http.body
        if len(body) > ON_LOOP_BYTES:
            return False
        context = self._context
        limit_bytes, limits = context.options.max_input_bytes, context.server.options.tensor_limits
        document = json_reader.parse(memoryview(body))
        self.request = read_generate(document, self.model, self._version, limit_bytes, limits)
        return True

    async def decode_slowly(self) -> None:
        self.request = await decode_generate(self._context, self._http, self.model, self._version)
        self.lease = self._http.lease

    def forward(self, pattern: HeaderPattern, request: InferenceRequest) -> None:
        """As in Triton."""

    def waiting(self) -> AbstractContextManager[None]:
        return nullcontext()


def _load_headers(context: Context, request: HttpRequest) -> Callable[[], Headers]:
    """Makes the ORCA header, when the answer begins."""
    wanted = request.headers().get(FORMAT_HEADER)
    return lambda: load_metrics_headers(wanted, context.server.custom_metrics)


class _Generation(StreamedAnswer):
    """What a model responds. If sending stops before its end, the request is cancelled.

    Args:
        more_headers: those that the answer is to begin with, besides its own.
        offload: for what takes long to encode.

    Attributes:
        over: the final response has been taken.
    """

    media = JSON

    def __init__(self, reply: Reply, more_headers: Callable[[], Headers], offload: Offload) -> None:
        self._more_headers = more_headers
        self._offload = offload
        self.over = False
        self._reply = reply
        self._news = trio.lowlevel.ParkingLot()
        reply.notify_each(self._hear)

    async def send(self, send: Send) -> None:
        try:
            await self._send(send)
        finally:
            if not self._reply.final:
                self._reply.cancel()

    async def _send(self, send: Send) -> None:
        raise AssertionError("every kind says how")

    def _hear(self, _reply: Reply) -> None:
        self._news.unpark_all()

    async def _take(self) -> list[InferenceResponse | TriremeError]:
        """The responses since the last call, as soon as there is one, or the request is over."""
        while not (answers := self._reply.take()) and not self._reply.final:
            await self._news.park()
        self.over = not answers or answers[-1][1]
        return [outcome for outcome, _ in answers if outcome is not None]

    async def _encode(self, response: InferenceResponse | TriremeError) -> tuple[bytes, bool]:
        if isinstance(response, InferenceResponse) and takes_long(response):
            return await self._offload(_encode, response)
        return _encode(response)

    def _head(self, failed: bool) -> Message:
        headers = [(b"Content-Type", self.media), *self._more_headers()]
        return {"type": "http.response.start", "status": 400 if failed else 200, "headers": headers}


class _Whole(_Generation):
    """One JSON object, when the request is over: the response if there was exactly one."""

    async def _send(self, send: Send) -> None:
        count = 0
        body, failed = _WRONG_COUNT, False
        while not self.over:
            responses = await self._take()
            if responses and not count:
                body, failed = await self._encode(responses[0])
            count += len(responses)
        await send(self._head(failed))
        await send(_piece(body if count == 1 else _WRONG_COUNT))
        await send(_piece(b"", last=True))


class _Events(_Generation):
    """An event for each response, errors among them."""

    media = EVENTS

    async def _send(self, send: Send) -> None:
        begun = False
        while not self.over:
            for response in await self._take():
                body, failed = await self._encode(response)
                if not begun:
                    begun = True
                    await send(self._head(failed))
                await send(_piece(b"data: %b\n\n" % body))
        if not begun:
            await send(self._head(failed=False))
            await send(_piece(b""))
        await send(_piece(b"", last=True))


def _encode(response: InferenceResponse | TriremeError) -> tuple[bytes, bool]:
    """A response as a JSON object, and whether it is an error."""
    try:
        if isinstance(response, InferenceResponse):
            return encode_generate(response), False
        error = response
    except TriremeError as unfit:
        error = unfit
    return error_body(error.message), True


def _piece(body: bytes, last: bool = False) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": not last}
