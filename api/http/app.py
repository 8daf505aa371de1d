"""The HTTP service, an application behind listening sockets; and the application behind every HTTP connection, over
HTTP/1.1 or HTTP/2: requests in, facade calls, answers out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...actors.actor import Turn
from ...engine.access.callers import Right
from ...engine.admission.client_bytes import ClientAccounts
from ...engine.errors import RefusalReason, TriremeError
from ...engine.logs.request_lines import about
from ..access import needed
from ..http2.connection import Http2Group
from ..http2.limits import Http2Limits, KeepaliveOptions, Rate
from ..sockets.limits import Limits
from ..sockets.roster import Roster
from ..sockets.service import Service, ServiceOptions
from ..sockets.transport import Transport
from .bodies import UNCOUNTED_BYTES, UNCOUNTED_BYTES_OF_STREAM, BodyReader, BodyRefusedError, BodyTerms, body_terms
from .exchange import (
    JSON,
    TEXT,
    Answer,
    Application,
    Context,
    Exchange,
    HttpOptions,
    HttpRequest,
    HttpTrace,
    Match,
    Route,
    error_answer,
    error_body,
    method_not_allowed,
    unexpected_failure,
)
from .guards import RequestGuard
from .h1.connection import H1Connection
from .h1.messages import HeadMemory
from .infer.handler import ImmediateInfer
from .routes import ROUTES, Router

if TYPE_CHECKING:
    from ...actors.facade import Facade
    from ..logging import LogFacade

_log = logging.getLogger(__name__)


class HttpApplication:
    """The KServe/Triton HTTP interface of a server (docs/reference/http.md).

    Args:
        log: whose settings clients may see and change; None where they may not.
        routes: what paths lead to.

    Attributes:
        immediate: takes requests that it answers without a task; None if there are none.

    Raises:
        InvalidArgumentError: the options name a header pattern that is none.
    """

    def __init__(
        self, server: Facade, options: HttpOptions, log: LogFacade | None = None, routes: Sequence[Route] = ROUTES
    ) -> None:
        self.server = server
        self._context = Context(server, options, log)
        self._router = Router(routes)
        self._tracer = server.tracer
        self._guard = RequestGuard(options.restrictions, options.allowed_origins, options.allowed_hosts)
        self.immediate: ImmediateInfer | None = ImmediateInfer(self._context, self._router.match, self._guard)

    def find(self, exchange: Exchange) -> Match | Answer:
        """The route of a request; or, if it has none, what to answer. The request may become another one."""
        match = self._router.match(exchange.path)
        return Answer(404, TEXT, error_body("Not Found")) if match is None else match

    async def __call__(self, exchange: Exchange) -> None:
        """Answer a request."""
        if self._tracer.active:
            exchange.trace = HttpTrace(self._tracer)
        try:
            answer = await self._answer(exchange)
            if isinstance(answer, Answer):
                if exchange.trace is not None:
                    exchange.trace.sending()
                await exchange.respond(answer)
                if exchange.trace is not None:
                    exchange.trace.sent()
        finally:
            if exchange.trace is not None:
                exchange.trace.finish()

    async def _answer(self, exchange: Exchange) -> Answer | None:
        """The answer to send; None if it has been sent."""
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("HTTP request: %s %s", exchange.method, exchange.path.decode("utf-8", "replace"))
        match = self.find(exchange)
        if isinstance(match, Answer):
            self.server.note_refusal(RefusalReason.INVALID)
            return match
        answer = await self._follow(exchange, match)
        form = match.route.form
        return answer if answer is None or form is None else form(answer)

    async def _follow(self, exchange: Exchange, match: Match) -> Answer | None:
        """The same for a request whose route is known."""
        method, route = exchange.method, match.route
        if refusal := self._guard.refusal(route.category, method, exchange.headers):
            self._note_refusal(RefusalReason.RESTRICTED, match)
            return refusal
        if method not in route.handlers:
            self._note_refusal(RefusalReason.INVALID, match)
            return method_not_allowed(route.error_media)
        if self._context.access is not None and (refusal := await self._authorise(exchange, match)):
            return refusal
        options = self._context.options
        terms = body_terms(route.body, exchange.headers, options, self.server.options.max_inflight_bytes)
        if refusal := terms.refusal():
            self._note_refusal(RefusalReason.TOO_LARGE, match)
            return refusal
        if terms.arrives and route.admit is not None and (refusal := await route.admit(self._context, match)):
            return refusal
        return await self._serve(HttpRequest(self.server, match, exchange), terms)

    def needs(self, match: Match, method: str) -> tuple[Right, str, bool]:
        """See `access.needed`."""
        route = match.route
        model = "" if route.category == "shared-memory" else match.name
        return needed(route.category, model, changes=method != "GET" and not route.template.endswith("/index"))

    async def _authorise(self, exchange: Exchange, match: Match) -> Answer | None:
        """Find out who makes the call, and what to answer if that is refused."""
        access = self._context.access
        assert access is not None, "there are access rules"
        route, identity, address = match.route, exchange.identity(), exchange.address
        name = exchange.call_name(match)
        try:
            if route.names_late:
                exchange.caller = await access.identify(identity, name, address)
            else:
                need = self.needs(match, exchange.method)
                exchange.caller = await access.authorise(identity, route.category, need, name, address)
        except TriremeError as error:
            return error_answer(error, JSON)
        return None

    def _note_refusal(self, why: TriremeError | RefusalReason, match: Match) -> None:
        """Count a refusal, for the model that it is for."""
        if match.route.category == "inference":
            self.server.note_refusal(why, match.name, match.version)
        elif isinstance(why, RefusalReason):
            self.server.note_refusal(why)

    async def _serve(self, request: HttpRequest, terms: BodyTerms) -> Answer | None:
        """Read the body, and run the handler; whatever it raises becomes an answer."""
        match, exchange = request.match, request.exchange
        uncounted_bytes = UNCOUNTED_BYTES_OF_STREAM if exchange.http_version == "2" else UNCOUNTED_BYTES
        reader = BodyReader(exchange.read, terms, lambda: request.open_lease(exchange.address), uncounted_bytes)
        try:
            request.body = await reader.read()
            answer = await match.route.handlers[exchange.method](self._context, request)
        except BodyRefusedError as error:
            self._note_refusal(error.reason, match)
            return error.answer
        except TriremeError as error:
            if not request.accepted:
                self._note_refusal(error, request.match)
            return error_answer(error, request.error_media)
        except Exception:  # noqa: BLE001 - the one place: a defect must cost its own request, not the connection
            text = "unexpected failure while handling %s %s"
            _log.exception(text, exchange.method, exchange.path, extra=about(match.name))
            return unexpected_failure(request.error_media)
        finally:
            request.release()
        if isinstance(answer, Answer):
            return answer
        await answer(exchange)
        return None


_SMALLEST_WINDOW_BYTES = 65_535
_CONNECTION_WINDOW_BYTES = 1 << 18
_SMALLEST_FRAME_BYTES = 16_384


def http2_limits(limits: Limits) -> Http2Limits:
    """Bounds of an HTTP/2 connection that carries HTTP requests.

    Windows are small, because what fills them has been received and is in no budget yet. Clients may ask as often as
    `Http2Limits.pings` allows whether the server is still there: that rule of gRPC's is not HTTP's.
    """
    return Http2Limits(
        max_concurrent_streams=limits.streams,
        header_list_bytes=limits.head_bytes,
        header_block_bytes=limits.head_bytes,
        max_frame_bytes=_SMALLEST_FRAME_BYTES,
        stream_window_bytes=_SMALLEST_WINDOW_BYTES,
        connection_window_bytes=_CONNECTION_WINDOW_BYTES,
        resets=Rate(1024, 100.0),
        tiny_data=Rate(1024, 100.0),
        keepalive=KeepaliveOptions(time_s=float("inf"), permit_without_calls=True, max_ping_strikes=0),
    )


class HttpService(Service):
    """Serves an application over HTTP/1.1 and HTTP/2, with the accounts of the application's server, if it has one."""

    protocols = ("h2", "http/1.1")

    def __init__(self, app: Application, options: ServiceOptions, accounts: ClientAccounts | None = None) -> None:
        readiness, self._immediate, refusals = None, None, None
        if isinstance(app, HttpApplication):
            readiness, self._immediate, accounts = app.server.readiness, app.immediate, app.server.client_accounts
            refusals = app.server.refusals
        super().__init__(options, readiness, accounts, refusals)
        self._app = app
        self._heads = HeadMemory()
        self._http2 = Http2Group(http2_limits(options.limits), watches_calls=True)

    def connection(self, transport: Transport, client: tuple[str, int] | None, roster: Roster) -> H1Connection:
        return H1Connection(self._app, transport, roster, client, self._http2, self._immediate, self._heads)

    def open(self, turn: Turn) -> None:
        self._http2.turn = turn

    async def accompany(self) -> None:
        await self._http2.accompany(self._roster)
