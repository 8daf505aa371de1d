"""The ASGI application: requests in, facade calls, answers out.

It is what every HTTP connection of the server runs, over HTTP/1.1 or HTTP/2. Of a client that leaves, or resets its
stream, it is told by cancellation. Otherwise it needs nothing but ASGI; two things that it says beyond ASGI are ignored
where they are not understood: the key ``reason`` (bytes) of ``http.response.start``, and header names that are not all
lower case.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ...engine.errors import TriremeError
from ...engine.logs.request_lines import about
from .asgi import Message, Receive, Scope, Send
from .bodies import UNCOUNTED_BYTES, UNCOUNTED_BYTES_OF_STREAM, BodyLimits, BodyReader, BodyRefusedError
from .errors import error_answer, method_not_allowed, not_found, unexpected_failure
from .exchange import Answer, Context, HttpOptions, HttpRequest, Match, StreamedAnswer, address_of, open_lease
from .guards import RequestGuard
from .infer.handler import ImmediateInfer
from .routes import Router
from .tracing import is_watched, watched_send

if TYPE_CHECKING:
    from ...actors import InferenceServer
    from ...actors.budget import Lease
    from ..logging import Log

_log = logging.getLogger(__name__)


class HttpApplication:
    """The KServe/Triton HTTP interface of an `InferenceServer` (docs/reference/http.md), as an ASGI 3 application on
    trio.

    Args:
        server: the facade that does the work.
        options: of this front end.
        log: whose settings clients may see and change; None where they may not.

    Attributes:
        server: see above.
        immediate: takes requests that it answers without a task.

    Raises:
        InvalidArgumentError: the options name a header pattern that is none.
    """

    def __init__(self, server: InferenceServer, options: HttpOptions, log: Log | None = None) -> None:
        self.server = server
        self._context = Context(server, options, log)
        self._router = Router()
        self._tracer = server.tracer
        self._guard = RequestGuard(options.restrictions, options.allowed_origins, options.allowed_hosts)
        self._body_limits = BodyLimits(
            options.max_input_bytes, options.max_management_bytes, server.options.max_inflight_bytes
        )
        self.immediate = ImmediateInfer(self._context, self._router.match, self._guard)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection scope: an HTTP request, or the lifespan of the application."""
        if scope["type"] != "http":
            await _serve_other(scope, receive, send)
            return
        if self._tracer.active and not is_watched(scope):
            with watched_send(self._tracer, scope, send) as watched:
                await self(scope, receive, watched)
            return
        method = scope["method"]
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("HTTP request: %s %s", method, scope["raw_path"].decode("utf-8", "replace"))
        match = self._router.match(scope["raw_path"])
        if match is None:
            answer = not_found()
        elif refusal := self._guard.refusal(match.route.category, method, scope["headers"]):
            answer = refusal
        else:
            answer = await self._serve(match, scope, receive, send)
        if answer is not None:
            await _send(send, answer, with_body=method != "HEAD")

    async def _serve(self, match: Match, scope: Scope, receive: Receive, send: Send) -> Answer | None:
        """Serve a request that is allowed, if its head says nothing against it; None if there is no answer to send."""
        route = match.route
        if scope["method"] not in route.handlers:
            return method_not_allowed(route.error_media)
        terms = self._body_limits.terms(route.body, scope["headers"])
        if refusal := terms.refusal():
            return refusal
        if terms.arrives and route.admit is not None and (refusal := route.admit(self._context, match)):
            return refusal
        uncounted_bytes = UNCOUNTED_BYTES_OF_STREAM if scope["http_version"] == "2" else UNCOUNTED_BYTES
        reader = BodyReader(receive, terms, lambda: self._lease(match, scope), uncounted_bytes)
        request = None
        try:
            body = await reader.read()
            if body is None:
                return None
            request = HttpRequest(match, scope, body, reader.lease)
            answer = await self._answer(request)
            if isinstance(answer, StreamedAnswer):
                await answer.send(send)
                return None
            return answer
        except BodyRefusedError as error:
            return error.answer
        finally:
            if request is not None:
                request.release()
            elif reader.lease is not None:
                reader.lease.close()

    def _lease(self, match: Match, scope: Scope) -> Lease:
        return open_lease(self.server, match, address_of(scope))

    async def _answer(self, request: HttpRequest) -> Answer | StreamedAnswer:
        """Run the handler; whatever it raises becomes an answer."""
        match, scope = request.match, request.scope
        try:
            return await match.route.handlers[scope["method"]](self._context, request)
        except TriremeError as error:
            return error_answer(error, request.error_media)
        except Exception:  # noqa: BLE001 - the one place: a defect must cost its own request, not the connection
            text = "unexpected failure while handling %s %s"
            _log.exception(text, scope["method"], scope["raw_path"], extra=about(match.name))
            return unexpected_failure(request.error_media)
        finally:
            request.release()


async def _send(send: Send, answer: Answer, with_body: bool) -> None:
    body = answer.body
    tail = answer.tail
    size = len(body) if tail is None else len(body) + len(tail)
    headers = [(b"Content-Type", answer.media), (b"Content-Length", b"%d" % size), *answer.headers]
    start: Message = {"type": "http.response.start", "status": answer.status, "headers": headers}
    if answer.reason is not None:
        start["reason"] = answer.reason
    await send(start)
    if tail is not None and with_body:
        await send({"type": "http.response.body", "body": body, "more_body": True})
        body = tail
    await send({"type": "http.response.body", "body": body if with_body else b"", "more_body": False})


async def _serve_other(scope: Scope, receive: Receive, send: Send) -> None:
    """Nothing to start or stop here: the server that the application speaks for is opened and closed by its owner."""
    if scope["type"] != "lifespan":
        raise ValueError(f"an ASGI scope of type 'http' or 'lifespan' was expected, got '{scope['type']}'")
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
