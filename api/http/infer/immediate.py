"""Inference requests that are answered without a task: decoded, admitted and answered by callbacks.

A small request spends most of its time on changes of tasks if it has one. So the connection offers every request that
came whole to `ImmediateInfer`, in the task that noticed its data; the reply calls back when it has the answer, on the
event loop, and the answer is sent from there. Nothing else is different: what is not the usual case (other routes,
compressed bodies, a missing key, a server without room) goes the long way, through the ASGI application.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import ClassVar

from ....actors.reply import Reply
from ....engine.errors import TriremeError
from ....engine.logs.context import about
from ....engine.tracing import Tracer
from ...pipeline import CallbackAnswer
from ..asgi import Headers
from ..errors import error_answer, unexpected_failure
from ..exchange import JSON, TEXT, Answer, Context, Match
from ..h1.parser import Request
from ..json.large import ON_LOOP_BYTES
from ..routes import Router
from ..tracing import HttpTrace
from .handler import HttpInfer, infer
from .request import header_length

_log = logging.getLogger(__name__)


class ImmediateCall(HttpInfer, CallbackAnswer[Answer, Answer]):
    """One request that was taken over.

    Args:
        request: it has come whole.
        send: gets the answer, from wherever it comes; does not raise.

    Attributes:
        over: it is answered, or the answer is not needed any more.
        media: content type of a refusal.
    """

    __slots__ = ("_respond", "media", "over", "reply")
    prompt: ClassVar[bool] = True

    def __init__(
        self,
        context: Context,
        name: str,
        values: Mapping[bytes, bytes],
        request: Request,
        respond: Callable[[Answer], None],
    ) -> None:
        super().__init__(context, name, values, request.headers, request.header_names)
        self.media = TEXT
        self.over = False
        self.reply: Reply | None = None
        self._respond = respond

    def received(self, tracer: Tracer) -> None:
        trace = self.trace = HttpTrace(tracer)
        trace.begin(self.name, self._values)

    async def decode_slowly(self) -> None:
        raise AssertionError("such a request has a task")

    # See `pipeline.CallbackAnswer`.

    def send(self, answer: Answer) -> None:
        self.over = True
        self._respond(answer)

    def fail(self, failure: Answer) -> None:
        self.send(failure)

    def failure(self, error: TriremeError) -> Answer:
        return error_answer(error, TEXT)

    def refusal(self, error: TriremeError) -> Answer:
        return error_answer(error, JSON)

    def unexpected(self) -> Answer:
        request_id = "" if self.request is None else self.request.id
        _log.exception("unexpected failure while answering a request", extra=about(self.name, request_id))
        return unexpected_failure(TEXT)


class ImmediateInfer:
    """Answers ``POST /v2/models/M[/versions/V]/infer``.

    Args:
        router: finds out which requests those are.
        refusal: says what to answer to a request that is not allowed, by its headers; None if all are.
    """

    __slots__ = ("_context", "_limit_bytes", "_refusal", "_router")

    def __init__(
        self, context: Context, router: Router, refusal: Callable[[Headers], Answer | None] | None = None
    ) -> None:
        self._context = context
        self._limit_bytes = context.options.max_input_bytes
        self._refusal = refusal
        self._router = router

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
        match = self._match(request)
        if match is None or (self._refusal is not None and self._refusal(request.headers) is not None):
            return None
        values = dict(reversed(request.headers))
        if b"content-encoding" in values or b"accept-encoding" in values:
            return None
        context = self._context
        call = ImmediateCall(context, match.name, values, request, respond)
        try:
            version = match.version
            call.look_up(match.model_version() if version is None else version)
            pieces = request.pieces
            body = call.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            if len(body) > self._limit_bytes:
                return None
            json_length = header_length(values.get(b"inference-header-content-length"), len(body))
            if json_length > ON_LOOP_BYTES:
                return None  # that is read off the event loop
            call.json_length = json_length
            call.media = JSON
            reply = context.pipeline.begin(call)
        except TriremeError as error:
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

    def _match(self, request: Request) -> Match | None:
        if request.method != "POST" or request.http_version != "1.1" or not request.keep_alive:
            return None
        match = self._router.match(request.target)
        return match if match is not None and match.route.handlers.get("POST") is infer else None

    def __repr__(self) -> str:
        return f"<ImmediateInfer of {self._context.server}>"


def _tell_of(request: Request) -> None:
    _log.debug("HTTP request: %s %s", request.method, request.target.decode("utf-8", "replace"))
