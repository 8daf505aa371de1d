"""``POST /v2/models/M[/versions/V]/infer``: the processing order of docs/reference/http-inference.md#processing-order,
line by line."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ...engine.description import ModelDescription
from ...engine.errors import TriremeError, UnsupportedError
from . import compression
from .errors import error_answer
from .exchange import JSON, TEXT, Answer, Context, HttpRequest
from .infer_parameters import forward_headers
from .infer_request import header_length
from .infer_response import encode_infer, takes_long
from .large_bodies import decode, expand
from .tracing import begin_trace, leave_trace

if TYPE_CHECKING:
    from ...actors import InferenceServer
    from .routes import Match

_LARGE_BYTES = 65_536
"""Answers from this size on are packed on a thread: zlib works without the interpreter's lock, so the other connections
go on meanwhile."""


def admit_infer(context: Context, match: Match) -> Answer | None:
    """What to answer to a request whose body has not come yet; None if it may come."""
    server = context.server
    media = TEXT
    try:
        version = match.model_version()
        describe(server, match.name, version)
        media = JSON
        server.check_room(match.name, version)
    except TriremeError as error:
        return error_answer(error, media)
    return None


async def infer(context: Context, request: HttpRequest) -> Answer:
    """Decode, submit, await, encode. Errors up to the header length are plain text, those up to the acceptance of the
    request are JSON, those of the execution are plain text again."""
    name = request.match.name
    version = request.match.model_version()
    server = context.server
    model = describe(server, name, version)
    headers = request.headers()
    body = request.body
    encoding = headers.get(b"content-encoding")
    if encoding is not None:
        try:
            body = await expand(context, request, encoding.decode("latin-1"))
        except UnsupportedError as error:
            return error_answer(error, request.error_media, [(b"Accept-Encoding", compression.SUPPORTED.encode())])
    json_length = header_length(headers.get(b"inference-header-content-length"), len(body))
    request.error_media = JSON
    trace = begin_trace(request.scope, name, headers) if server.tracer.active else None
    try:
        decoded = await decode(context, request, body, json_length, version)
        decoded.request.trace = trace
        if context.forward_pattern is not None:
            forward_headers(request.scope, context.forward_pattern, decoded.request)
        reply = await server.submit(decoded.request, request.lease)
    except TriremeError:
        leave_trace(request.scope)
        raise
    request.error_media = TEXT
    response = await reply.response()
    if takes_long(response, decoded):
        answer = await server.offload(encode_infer, response, decoded, model)
    else:
        answer = encode_infer(response, decoded, model)
    accepted = headers.get(b"accept-encoding")
    if accepted is not None:
        await _compress(server, answer, accepted.decode("latin-1"))
    return answer


def describe(server: InferenceServer, name: str, version: int) -> ModelDescription:
    """The model, if it is one that answers once.

    Raises:
        UnsupportedError: it is not.
        TriremeError: there is no such model.
    """
    model = server.describe(name, version)
    if model.config.decoupled:
        raise UnsupportedError("HTTP end point doesn't support models with decoupled transaction policy")
    return model


async def _compress(server: InferenceServer, answer: Answer, accept_encoding: str) -> None:
    encoding = compression.choose_encoding(accept_encoding)
    if encoding is not None:
        tail = answer.tail
        pack = partial(compression.compress, answer.body, encoding, b"" if tail is None else tail)
        small = tail is None and len(answer.body) < _LARGE_BYTES
        answer.body = pack() if small else await server.offload(pack)
        answer.tail = None
        answer.headers = [*answer.headers, (b"Content-Encoding", encoding.encode())]
