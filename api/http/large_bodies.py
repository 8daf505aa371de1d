"""What may take long with a body that has come: unpacking it, and reading JSON. Off the event loop, once it is large.

Everything that a body becomes counts in the server-wide budget before it is made: what it unpacks to, step by step, and
what the values of its JSON take.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ...engine.tensor import Buffer
from . import json_reader
from .compression import Expansion, needs_expansion
from .generate_request import read_generate
from .infer_request import DecodedInfer
from .json_access import members_of
from .json_large import (
    MOST_PLAIN_VALUES,
    ON_LOOP_BYTES,
    LargeText,
    generate_places,
    load_places,
    read_text,
)
from .json_limits import refuse_parts

if TYPE_CHECKING:
    from ...engine.description import ModelDescription
    from ...engine.request import InferenceRequest
    from .exchange import Context, HttpRequest

T = TypeVar("T")

_FIRST_BYTES = 65_536
_STEP_BYTES = 1 << 20


async def expand(context: Context, request: HttpRequest, encoding: str) -> Buffer:
    """The body as it was before ``Content-Encoding``; see `Expansion`.

    Raises:
        UnsupportedError: an unknown encoding.
        InvalidArgumentError: nothing to decompress; too much comes out, or too much of so little.
    """
    body = request.body
    if not needs_expansion(encoding, len(body)):
        return body
    options = context.options
    expansion = Expansion(memoryview(body), options.max_input_bytes, options.max_compression_ratio)
    if len(body) < _FIRST_BYTES:
        expansion.step(_FIRST_BYTES)
    while not expansion.over:
        await request.hold(context.server, _STEP_BYTES)
        await context.server.offload(expansion.step, _STEP_BYTES)
    return expansion.plain


async def decode(context: Context, request: HttpRequest, body: Buffer, json_length: int, version: int) -> DecodedInfer:
    """The infer request that a body with a large text holds; see `infer_request.decode_infer`.

    Args:
        body: unpacked.

    Raises:
        TriremeError: it holds none, or too much.
    """
    decoder, offload = context.decoder, context.server.offload
    text = await offload(decoder.large, body, json_length, context.options.max_json_values)
    await request.hold(context.server, text.cost_bytes)
    return await offload(decoder.decode_large, text, body, json_length, request.match.name, version)


async def decode_generate(
    context: Context, request: HttpRequest, model: ModelDescription, version: int
) -> InferenceRequest:
    """The generate request that a large body holds; see `generate_request.read_generate`.

    Raises:
        TriremeError: it holds none, or too much.
    """
    limit_bytes, limits = context.options.max_input_bytes, context.server.options.tensor_limits
    text = await context.server.offload(LargeText, memoryview(request.body), context.options.max_json_values)
    await request.hold(context.server, text.cost_bytes)

    def decode(document: Any) -> InferenceRequest:
        members = members_of(document)
        refuse_parts(len(members) + len(members_of(members.get("parameters"))))
        return read_generate(document, model, version, limit_bytes, limits)

    return await context.server.offload(text.read, generate_places, decode)


async def read_load(context: Context, request: HttpRequest, read: Callable[[Any], T]) -> T | None:
    """What `read` makes of the load request that the body holds; None if there is no body.

    Args:
        read: may be called on a thread, and twice; long files are `LargeString`.

    Raises:
        TriremeError: it holds none, or too much.
    """
    body = memoryview(request.body)
    if len(body) <= ON_LOOP_BYTES:
        return read(await read_json(context, request)) if body else None
    most = min(context.options.max_json_values, MOST_PLAIN_VALUES)
    text = await context.server.offload(partial(LargeText, body, most, with_files=True))
    await request.hold(context.server, text.cost_bytes)
    return await context.server.offload(text.read, load_places, read)


async def read_json(context: Context, request: HttpRequest) -> Any:
    """The value that the body holds.

    Raises:
        InternalError: it is not JSON.
        InvalidArgumentError: it is nested too deeply, or has too many values.
    """
    body = memoryview(request.body)
    max_values = context.options.max_json_values
    if len(body) <= min(ON_LOOP_BYTES, max_values):
        return json_reader.parse(body)
    return await context.server.offload(read_text, body, max_values)


async def read_optional_json(context: Context, request: HttpRequest) -> dict[str, Any]:
    """The object that the body holds; empty for an empty body, or for a value of another type, which has no members.

    Raises:
        InternalError, InvalidArgumentError: see `read_json`.
    """
    if not request.body:
        return {}
    value = await read_json(context, request)
    return value if type(value) is dict else {}
