"""What the front ends of cloud platforms have in common: other paths to the handlers of `api.http`, and another way to
say how much of a body is JSON (docs/reference/cloud-front-ends.md)."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from ...actors.facade import Facade
from ...engine.errors import InvalidArgumentError
from ...engine.request import LATEST
from ..http.app import HttpApplication
from ..http.exchange import (
    TEXT,
    Answer,
    BodyKind,
    Context,
    Exchange,
    Handler,
    Headers,
    HttpOptions,
    Match,
    Route,
    error_answer,
    method_not_allowed,
)
from ..http.guards import RequestGuard
from ..http.h1.messages import Request
from ..http.handlers.management import server_ready
from ..http.infer.handler import ImmediateCall, ImmediateInfer, admit_infer
from ..http.infer.request import LENGTH_HEADER

REDIRECT = b"x-vertex-ai-triton-redirect"
"""The header by which Vertex AI's clients ask for other calls than predictions."""

_LENGTH = LENGTH_HEADER.lower().encode()
_NOT_TAKEN = frozenset((b"content-encoding", b"accept-encoding", _LENGTH))


def binary_media(platform: str) -> bytes:
    """The Content-Type of bodies in which tensors follow the JSON, up to the number of bytes that it has."""
    return b"application/vnd.%b-triton.binary+json;json-header-size=" % platform.encode()


def kserve_headers(headers: Headers, media: bytes) -> Headers:
    """The headers, with the length of the JSON as `api.http` expects it: from the Content-Type, and from nowhere else.
    What asks for compression is left out.

    Raises:
        InvalidArgumentError: the Content-Type has `media` in it, but does not begin with it.
    """
    kept = [each for each in headers if each[0] not in _NOT_TAKEN]
    given = next((value for name, value in kept if name == b"content-type"), b"")
    at = given.find(media)
    if at > 0:
        raise InvalidArgumentError(
            f"expect MIME type for binary data starts with '{media.decode()}', got: {given.decode('latin-1')}"
        )
    if at == 0:
        kept.append((_LENGTH, given[len(media) :]))
    return kept


def route_to(handler: Handler, path: str, category: str = "inference", body: BodyKind = BodyKind.TENSORS) -> Route:
    """A route for POST."""
    admit = admit_infer if category == "inference" else None
    return Route(path, re.compile(re.escape(path.encode())), {"POST": handler}, category, TEXT, body, admit)


def health_route(path: str, handler: Handler = server_ready) -> Route:
    """A route for GET."""
    return Route(path, re.compile(re.escape(path.encode())), {"GET": handler}, "health", TEXT)


class CloudInfer(ImmediateInfer):
    """Answers inferences of the default model without a task (see `ImmediateInfer`).

    Args:
        find: the route and the model, by a path with its query.
        form: makes of an answer what the platform's clients read; None to leave it as it is.
    """

    def __init__(
        self,
        context: Context,
        find: Callable[[bytes], Match | None],
        guard: RequestGuard,
        translate: Callable[[Headers], Headers | None],
        form: Callable[[Answer], Answer] | None,
    ) -> None:
        super().__init__(context, find, guard, translate)
        self._form = form

    def begin(self, request: Request, respond: Callable[[Answer], None]) -> ImmediateCall | None:
        form = self._form
        return super().begin(request, respond if form is None else lambda answer: respond(form(answer)))


class CloudApplication(HttpApplication):
    """A platform's paths to the handlers of `api.http`, with the limits, restrictions, traces and statistics that these
    have. Headers are not forwarded, and bodies not compressed.

    Args:
        media: see `binary_media`.
        find_default: see `CloudInfer`.
        form: see `CloudInfer`.
    """

    def __init__(
        self,
        server: Facade,
        options: HttpOptions,
        media: bytes,
        find_default: Callable[[bytes], Match | None],
        form: Callable[[Answer], Answer] | None = None,
    ) -> None:
        super().__init__(server, replace(options, header_forward_pattern=""))
        self._context.length_name = "inference header size"
        self._media = media
        self.immediate = CloudInfer(self._context, find_default, self._guard, self._translated, form)

    def _translated(self, headers: Headers) -> Headers | None:
        """For requests without a task; None for those that are refused, or are for something else."""
        if any(name == REDIRECT for name, _ in headers):
            return None
        with suppress(InvalidArgumentError):
            return kserve_headers(headers, self._media)
        return None

    def matched(self, exchange: Exchange, route: Route, name: str = "", group: str = "") -> Match | Answer:
        """The request belongs to this route; its headers become those that the handlers expect.

        Args:
            name: of the model.
            group: under which the platform knows it.
        """
        if exchange.method not in route.handlers:
            return method_not_allowed(TEXT)
        if route.category == "inference":
            try:
                exchange.headers = kserve_headers(exchange.headers, self._media)
            except InvalidArgumentError as error:
                return error_answer(error, TEXT)
            exchange.header_names = None
        return Match(route, name, repository=group, version=LATEST)


def no_such_path() -> Answer:
    """What platforms are told of a path, or a method, that leads nowhere."""
    return Answer(400, TEXT)
