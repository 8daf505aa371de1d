"""``POST /v2/models/M[/versions/V]/generate`` and ``…/generate_stream`` (docs/reference/generate.md).

Whatever is wrong before the model is asked is an ordinary error. After that the answer is sent as it comes about: its
status says how the model's first response was (200, or 400 if it was an error, of whatever class), its body the rest.

The connection holds the model back: responses are taken from the reply when those before them have gone to the client,
and a model whose responses are not taken waits (`engine.answer_window`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import trio

from ...actors.reply import Reply
from ...engine.description import ModelDescription
from ...engine.errors import InvalidArgumentError, TriremeError
from ...engine.request import InferenceRequest
from ...engine.response import InferenceResponse
from ...engine.tracing import Tracer
from ..pipeline import Traced
from ..request_parameters import HeaderPattern
from ..unread import UnreadAnswers, answer_bytes
from . import json_reader
from .asgi import Headers, Message, Send
from .errors import error_answer, error_body
from .exchange import JSON, Answer, Context, HttpRequest, Match, StreamedAnswer
from .generate_request import read_generate
from .generate_response import encode_generate, takes_long
from .json_large import ON_LOOP_BYTES
from .large_bodies import decode_generate
from .load_metrics import FORMAT_HEADER, load_metrics_headers
from .tracing import trace_of

EVENTS = b"text/event-stream; charset=utf-8"

_WRONG_COUNT = error_body(
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)

_NOT_READ = error_body("the answers were not read, and too many wait to be; the rest of them is given up")


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
    return _Whole(await _submit(context, request), context, request)


async def generate_stream(context: Context, request: HttpRequest) -> StreamedAnswer:
    """All responses of a model, each an event."""
    return _Events(await _submit(context, request), context, request)


async def _submit(context: Context, request: HttpRequest) -> Reply:
    version = request.match.model_version()
    model = context.server.describe(request.match.name, version)
    headers = request.headers()
    if headers.get(b"content-encoding", b"identity") != b"identity":
        raise InvalidArgumentError("Unsupported content-encoding, only 'identity' is supported.")
    return await context.pipeline.admit(_GenerateTask(context, request, model, version, headers))


class _GenerateTask(Traced):
    """A generate request as the pipeline sees it (`pipeline.Adapter`). No headers become parameters of it."""

    __slots__ = ("_context", "_headers", "_http", "_version", "lease", "model", "request", "trace")
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
        reply: to the request.
        context, request: around it.

    Attributes:
        over: the final response has been taken, or the rest is given up.
        given_up: the client has read too little, while others needed the memory.
    """

    media = JSON

    def __init__(self, reply: Reply, context: Context, request: HttpRequest) -> None:
        self._more_headers = _load_headers(context, request)
        self._offload = context.server.offload
        self.over = False
        self.given_up = False
        self._reply = reply
        self._taken: list[InferenceResponse | TriremeError] = []
        self._news = trio.lowlevel.ParkingLot()
        self._unread = UnreadAnswers(context.server.client_accounts.unread, request.address, self._give_up)
        reply.notify_each(self._hear)

    async def send(self, send: Send) -> None:
        try:
            await self._send(send)
        finally:
            self._unread.close()
            if not self._reply.final:
                self._reply.cancel()

    async def _send(self, send: Send) -> None:
        raise AssertionError("every kind says how")

    def _hear(self, reply: Reply) -> None:
        if len(self._news):
            self._news.unpark_all()
        else:  # the client is being waited for
            self._unread.change(sum(map(answer_bytes, reply.newest())))

    def _give_up(self) -> None:
        self.given_up = self.over = True
        self._taken.clear()
        self._reply.cancel()
        self._reply.take()

    async def _take(self) -> list[InferenceResponse | TriremeError]:
        """The responses since the last call, the newest first, as soon as there is one, or the request is over; to be
        taken away, one by one, as they are sent."""
        while not (answers := self._reply.take()) and not self._reply.final:
            await self._news.park()
        self.over = self.given_up or not answers or answers[-1][1]
        self._taken = [outcome for outcome, _ in reversed(answers) if outcome is not None]
        self._unread.change(sum(map(answer_bytes, self._taken)) - self._unread.nbytes)
        return self._taken

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
        complete = False
        body, failed = _WRONG_COUNT, False
        while not self.over:
            responses = await self._take()
            complete = self.over and not self.given_up
            first = responses[-1] if responses and not count else None
            count += len(responses)
            if first is not None:
                body, failed = await self._encode(first)
            responses.clear()
            self._unread.change(-self._unread.nbytes)
        if not complete:
            body, failed = _NOT_READ, True
        elif count != 1:
            body = _WRONG_COUNT
        await send(self._head(failed))
        await send(_piece(body))
        await send(_piece(b"", last=True))


class _Events(_Generation):
    """An event for each response, errors among them."""

    media = EVENTS

    async def _send(self, send: Send) -> None:
        begun = False
        while not self.over:
            responses = await self._take()
            while responses:
                response = responses.pop()
                body, failed = await self._encode(response)
                if not begun:
                    begun = True
                    await send(self._head(failed))
                await send(_piece(b"data: %b\n\n" % body))
                self._unread.change(-answer_bytes(response))
        if self.given_up:
            if not begun:
                begun = True
                await send(self._head(failed=True))
            await send(_piece(b"data: %b\n\n" % _NOT_READ))
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
