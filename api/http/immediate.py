"""Inference requests that are answered without a task: decoded, submitted and answered by callbacks.

A small request spends most of its time on changes of tasks if it has one. So the connection offers every request that
came whole to `ImmediateInfer`, in the task that noticed its data; the reply calls back when it has the answer, on the
event loop, and the answer is sent from there. Nothing else is different: what is not the usual case (other routes,
compressed bodies, traces, a missing key, a server without room) goes the long way, through the ASGI application.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from ...actors.offload import Offload
from ...actors.reply import Reply
from ...engine.description import ModelDescription
from ...engine.errors import TriremeError
from ...engine.log_context import about
from ...engine.response import InferenceResponse
from ...engine.tensor import Buffer
from .asgi import Headers
from .errors import error_answer, unexpected_failure
from .exchange import JSON, TEXT, Answer, Context
from .h1_parser import Request
from .handlers_infer import describe, infer
from .infer_request import DecodedInfer, header_length
from .infer_response import encode_infer, takes_long
from .json_large import ON_LOOP_BYTES
from .routes import Match, Router

_log = logging.getLogger(__name__)


class ImmediateCall:
    """One request that was taken over.

    Args:
        send: gets the answer, from wherever it comes; does not raise.

    Attributes:
        over: it is answered, or nobody wants the answer any more.
        on_cancel: set by who answers.
    """

    __slots__ = ("_send", "on_cancel", "over")

    def __init__(self, send: Callable[[Answer], None]) -> None:
        self._send = send
        self.over = False
        self.on_cancel: Callable[[], None] | None = None

    def answer(self, answer: Answer) -> None:
        """Answer; once, and not after `cancel`."""
        self.over = True
        self.on_cancel = None
        self._send(answer)

    def cancel(self) -> None:
        """The client has gone."""
        self.over = True
        on_cancel, self.on_cancel = self.on_cancel, None
        if on_cancel is not None:
            on_cancel()


class ImmediateInfer:
    """Answers ``POST /v2/models/M[/versions/V]/infer``.

    Args:
        router: finds out which requests those are.
        refusal: says what to answer to a request that is not allowed, by its headers; None if all are.
    """

    __slots__ = ("_context", "_limit_bytes", "_refusal", "_router", "_tracer")

    def __init__(
        self, context: Context, router: Router, refusal: Callable[[Headers], Answer | None] | None = None
    ) -> None:
        self._context = context
        self._limit_bytes = context.options.max_input_bytes
        self._refusal = refusal
        self._router = router
        self._tracer = context.server.tracer

    def wants(self, request: Request) -> bool:
        """Whether it is worth waiting for the rest of a request, of which the head has come."""
        return self._match(request) is not None

    def begin(self, request: Request, call: ImmediateCall) -> bool:
        """Take over a request that came whole.

        Returns:
            False if it is to go the long way: then nothing has happened yet.
        """
        match = self._match(request)
        context = self._context
        if match is None or context.forward_pattern is not None or self._tracer.active:
            return False
        if self._refusal is not None and self._refusal(request.headers) is not None:
            return False
        headers = dict(reversed(request.headers))
        if b"content-encoding" in headers or b"accept-encoding" in headers:
            return False
        media = TEXT
        try:
            version = match.model_version()
            model = describe(context.server, match.name, version)
            pieces = request.pieces
            body: Buffer = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            if len(body) > self._limit_bytes:
                return False
            json_length = header_length(headers.get(b"inference-header-content-length"), len(body))
            if json_length > ON_LOOP_BYTES:
                return False  # that is read off the event loop
            media = JSON
            decoded = context.decoder.decode(body, json_length, match.name, version)
            reply = context.server.submit_nowait(decoded.request, attended=True)
        except TriremeError as error:
            _tell_of(request)
            call.answer(error_answer(error, media))
            return True
        except Exception:  # noqa: BLE001 - as in `app`: a defect must cost its own request, not the connection
            _tell_of(request)
            _log.exception("unexpected failure while handling %s", request.target, extra=about(match.name))
            call.answer(unexpected_failure(media))
            return True
        if reply is None:
            return False  # there is no room; the application waits for some, and tells of the request
        _tell_of(request)
        call.on_cancel = reply.cancel
        reply.notify(_Pending(call, decoded, model, context.server.offload).answer)
        return True

    def attend(self) -> None:
        """All has been begun that came at once."""
        try:
            self._context.server.attend()
        except Exception:  # noqa: BLE001 - this is called by the task that watches all sockets
            _log.exception("unexpected failure while attending to what has begun")

    def _match(self, request: Request) -> Match | None:
        if request.method != "POST" or request.http_version != "1.1" or not request.keep_alive:
            return None
        match = self._router.match(request.target)
        return match if match is not None and match.route.handlers.get("POST") is infer else None

    def __repr__(self) -> str:
        return f"<ImmediateInfer of {self._context.server}>"


def _tell_of(request: Request) -> None:
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("HTTP request: %s %s", request.method, request.target.decode("utf-8", "replace"))


class _Pending:
    """A call that waits for its reply."""

    __slots__ = ("_call", "_decoded", "_model", "_offload")

    def __init__(self, call: ImmediateCall, decoded: DecodedInfer, model: ModelDescription, offload: Offload) -> None:
        self._call = call
        self._offload = offload
        self._decoded = decoded
        self._model = model

    def answer(self, reply: Reply) -> None:
        """The reply is final."""
        call = self._call
        if call.over:
            return  # and the shared memory meant for the answer may be in use for something else
        try:
            response = reply.answer()
            if takes_long(response, self._decoded):
                self._offload.later(partial(self._encoded, response), self._send)
                return
            answer = encode_infer(response, self._decoded, self._model)
        except TriremeError as error:
            answer = error_answer(error, TEXT)
            error.__traceback__ = None  # leads here, and so to the reply that holds the error: a cycle
        except Exception:  # noqa: BLE001 - this runs inside the model's scheduler: a defect must cost its own request
            answer = self._unexpected()
        call.answer(answer)

    def _encoded(self, response: InferenceResponse) -> Answer:
        """On a thread, the answer to the client; whatever goes wrong is one, too."""
        try:
            return encode_infer(response, self._decoded, self._model)
        except TriremeError as error:
            return error_answer(error, TEXT)
        except Exception:  # noqa: BLE001 - as above
            return self._unexpected()

    def _send(self, answer: Answer) -> None:
        if not self._call.over:
            self._call.answer(answer)

    def _unexpected(self) -> Answer:
        asked = self._decoded.request
        _log.exception("unexpected failure while answering a request", extra=about(asked.model_name, asked.id))
        return unexpected_failure(TEXT)
