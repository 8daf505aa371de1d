"""What the metrics port answers under ``/console``: the page and its files, the stream of frames, and calls of the HTTP
API for clients that may make them (`guard`).

The page and its files hold nothing of this server, so anyone may have them; a browser could not send a key for a page.
The stream needs the right to the metrics, a call what it needs on the HTTP port.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from typing import TYPE_CHECKING

import orjson

from ...engine.description import ActorNode
from ...engine.errors import RefusalReason, TriremeError
from ...engine.timeline import timeline_part
from ...engine.version import VERSION
from ..access import AccessChecks, needed
from ..http.app import HttpApplication
from ..http.exchange import (
    JSON,
    TEXT,
    Answer,
    Exchange,
    Headers,
    HttpOptions,
    Match,
    error_answer,
    error_body,
    json_refusal,
    method_not_allowed,
)
from ..http.guards import ANY_ORIGIN
from .feed import Feed, about
from .guard import ConsoleGuard, ConsoleMode

if TYPE_CHECKING:
    from ...actors import InferenceServer
    from ..logging import LogFacade

PREFIX = b"/console"
_API = b"/console/v2"
_STREAM = b"/console/stream"
_EVENTS = b"text/event-stream; charset=utf-8"

_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_GUARDED: Headers = (
    (b"X-Content-Type-Options", b"nosniff"),
    (b"Referrer-Policy", b"no-referrer"),
    (b"Cross-Origin-Resource-Policy", b"same-origin"),
)
OF_PAGES: Headers = (
    (b"Content-Security-Policy", _POLICY),
    (b"Cache-Control", b"no-cache"),
    *_GUARDED,
)
OF_DATA: Headers = ((b"Cache-Control", b"no-store"), (b"X-Accel-Buffering", b"no"), *_GUARDED)

MEDIA = {
    "html": b"text/html; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}
_NOT_OFFERED = ("shared-memory",)
"""Categories of calls that the page does not make."""


class ConsoleCalls(HttpApplication):
    """The HTTP API under ``/console/v2``, of the calls that the page makes. The guard of the console stands before it,
    so that of origins, which knows of no page of this server's own, is not asked."""

    def __init__(self, server: InferenceServer, options: HttpOptions, log: LogFacade | None) -> None:
        super().__init__(server, replace(options, allowed_origins=(ANY_ORIGIN,)), log)
        self.immediate = None

    def find(self, exchange: Exchange) -> Match | Answer:
        exchange.path = exchange.path.removeprefix(PREFIX)
        match = super().find(exchange)
        if isinstance(match, Match) and match.route.category in _NOT_OFFERED:
            return _not_found()
        return match


class Console:
    """The console of one server.

    Args:
        options: of the HTTP port; None where there is none, so that the page can only look.
        log: whose settings may be changed.
        access: finds out who asks; None if anyone may.
        processes: what the tree of actors has besides the server's own.
    """

    def __init__(
        self,
        server: InferenceServer,
        mode: ConsoleMode,
        options: HttpOptions | None = None,
        log: LogFacade | None = None,
        access: AccessChecks | None = None,
        processes: Callable[[], Sequence[ActorNode]] = lambda: (),
    ) -> None:
        self.feed = Feed(server, processes)
        self._server = server
        self._access = access
        self._guard = ConsoleGuard(mode, access is not None, () if options is None else options.allowed_hosts)
        self._calls = None if options is None else ConsoleCalls(server, options, log)
        self._files = _read_files()

    def covers(self, path: bytes) -> bool:
        """Whether a path is the console's."""
        return path == PREFIX or path.startswith(PREFIX + b"/")

    async def __call__(self, exchange: Exchange) -> None:
        """Answer a request for one of its paths."""
        path = exchange.path
        if path == _API or path.startswith(_API + b"/"):
            await self._call(exchange)
            return
        answer = await self._stream(exchange) if path == _STREAM else self._file(exchange)
        if answer is not None:
            await exchange.respond(answer)

    def _file(self, exchange: Exchange) -> Answer:
        if exchange.path == PREFIX + b"/":
            return Answer(308, TEXT, headers=((b"Location", b"../console"), *_GUARDED))
        found = self._files.get(exchange.path)
        if found is None:
            return _not_found()
        if exchange.method not in ("GET", "HEAD"):
            return method_not_allowed(JSON)
        return found

    async def _stream(self, exchange: Exchange) -> Answer | None:
        """Events until the client leaves: first ``about``, then a ``frame`` again and again."""
        if exchange.method not in ("GET", "HEAD"):
            return method_not_allowed(JSON)
        if self._access is not None:
            need, name = needed("metrics"), "GET /console/stream"
            try:
                await self._access.authorise(exchange.identity(), "metrics", need, name, exchange.address)
            except TriremeError as error:
                return error_answer(error, JSON, OF_DATA)
        if exchange.method == "HEAD":
            return Answer(200, _EVENTS, headers=OF_DATA)
        if self.feed.full:
            refused = json_refusal(503, "too many consoles are open; close one")
            return replace(refused, headers=((b"Retry-After", b"5"), *OF_DATA))
        with self.feed.reader():
            await exchange.begin(Answer(200, _EVENTS, headers=OF_DATA))
            refusal = self._why_not(exchange)
            await exchange.send(_event(b"about", orjson.dumps(about(self._server, refusal, VERSION))))
            number = 0
            while True:
                number, made = await self.feed.next(number)
                await exchange.send(_event(b"frame", made))

    def _why_not(self, exchange: Exchange) -> str:
        """Why the client can only look; empty if it can do more."""
        if self._calls is None:
            return "the console only shows: this server serves no HTTP (--allow-http=false)"
        return self._guard.why_not(_address(exchange), exchange.headers)

    async def _call(self, exchange: Exchange) -> None:
        refused = None
        if self._calls is None:
            refused = json_refusal(403, self._why_not(exchange))
        else:
            refused = self._guard.refusal(_address(exchange), exchange.headers)
        if refused is None:
            assert self._calls is not None, "else it is refused"
            await self._calls(exchange)
            return
        self._server.note_refusal(RefusalReason.RESTRICTED)
        await exchange.respond(replace(refused, headers=OF_DATA))


def _event(name: bytes, data: bytes) -> bytes:
    """JSON has no line ends in it."""
    return b"event: %b\ndata: %b\n\n" % (name, data)


def _address(exchange: Exchange) -> str:
    return exchange.client[0] if exchange.client else ""


def _not_found() -> Answer:
    return Answer(404, JSON, error_body("Not Found"))


def _read_files() -> Mapping[bytes, Answer]:
    """The page and its files, by path."""
    static = resources.files(__package__ or "").joinpath("static")
    texts = {each.name: each.read_text(encoding="utf-8") for each in static.iterdir()}
    texts |= {name: timeline_part(name) for name in ("timeline.js", "timeline.css")}
    files = {PREFIX + b"/" + name.encode(): _page(name, text) for name, text in texts.items()}
    files[PREFIX] = files.pop(PREFIX + b"/console.html")
    return files


def _page(name: str, text: str) -> Answer:
    return Answer(200, MEDIA[name.rpartition(".")[2]], text.encode(), OF_PAGES)
