"""``/v1/models``, ``/v1/chat/completions`` and ``/v1/completions`` (docs/openai.md)."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import unquote

import orjson

from ...engine.access.callers import Right
from ...engine.description import ModelDescription
from ...engine.errors import TriremeError
from ..http.bodies import read_json
from ..http.exchange import JSON, Answer, Context, Handler, HttpRequest, StreamedAnswer
from ..pipeline import find_model
from .adapters import find_named, listed_models
from .answers import AnswerHead, model_entry
from .chat import render_prompt
from .errors import FieldError, refused
from .forced_calls import forced_format
from .generating import TextAnswer
from .inference import admit_all, text_requests
from .models import call_format, served_model, text_model
from .requests import TextRequest, all_prompts, read_chat, read_completion

T = TypeVar("T")


def answering(handler: Handler) -> Handler:
    """A handler whose errors are answered in OpenAI's form."""

    async def answer(context: Context, request: HttpRequest) -> Answer | StreamedAnswer:
        try:
            return await handler(context, request)
        except TriremeError as error:
            if not request.accepted:
                context.server.note_refusal(error, request.match.name)
            return refused(error)

    return answer


async def read_body(context: Context, request: HttpRequest, read: Callable[[Any], T]) -> T:
    """What the body asks for. FieldError if it is no JSON, or not what it has to be."""
    try:
        document = await read_json(context, request)
    except TriremeError as error:
        raise FieldError("body", f"The body is no JSON that can be read: {error.message}", "invalid_json") from None
    return read(document)


async def find_served(context: Context, request: HttpRequest, given: str) -> tuple[ModelDescription, str]:
    """The model that a request is for, and its adapter, if its caller may use it.

    Raises:
        TriremeError: it may not, or there is no such model.
    """
    exchange, access = request.exchange, context.access
    request.match = replace(request.match, name=given)
    name, adapter = await find_named(context.server, exchange.caller, given)
    request.match = replace(request.match, name=name)
    if access is not None and exchange.caller is not None:
        access.check(exchange.caller, Right.INFER, name, exchange.call_name(request.match), exchange.address)
    return await find_model(context.server, name, request.match.model_version()), adapter


def created_s(context: Context) -> int:
    """The time of an answer, in seconds since the Unix epoch."""
    return context.server.tracer.clock.wall_ms() // 1000


# Models.


async def list_models(context: Context, request: HttpRequest) -> Answer:
    """``GET /v1/models``: those that are ready, that can be used so, and that the caller may use."""
    caller = request.exchange.caller
    names = {row["name"] for row in await context.server.management.repository_index(ready_only=True)}
    descriptions = []
    for name in sorted(names):
        if caller is None or caller.may(Right.INFER, name):
            with suppress(TriremeError):  # it is not ready any more
                descriptions.append(context.server.describe(name))
    created = created_s(context)
    rows = [model_entry(name, created, parent) for name, parent in listed_models(descriptions)]
    return Answer(200, JSON, orjson.dumps({"object": "list", "data": rows}))


async def show_model(context: Context, request: HttpRequest) -> Answer:
    """``GET /v1/models/M``."""
    name = unquote(request.match.name)
    described, adapter = await find_served(context, request, name)
    served_model(described)
    parent = described.name if adapter else None
    return Answer(200, JSON, orjson.dumps(model_entry(name, created_s(context), parent)))


# Text.


async def chat_completions(context: Context, request: HttpRequest) -> StreamedAnswer:
    """``POST /v1/chat/completions``."""
    asked = await read_body(context, request, read_chat)
    assert asked.messages is not None, "it is a chat"
    model, adapter = await find_served(context, request, asked.model)
    text_model(model)  # which is said before what templates say
    values = asked.template_values or {}
    wall_ms = context.server.tracer.clock.wall_ms()
    render = partial(render_prompt, model.chat, asked.messages, asked.tools.offered, values, wall_ms)
    return await _generate(context, request, asked, model, adapter, await context.server.offload(render))


async def completions(context: Context, request: HttpRequest) -> StreamedAnswer:
    """``POST /v1/completions``."""
    asked = await read_body(context, request, read_completion)
    return await _generate(context, request, asked, *await find_served(context, request, asked.model), "")


async def _generate(
    context: Context,
    request: HttpRequest,
    asked: TextRequest,
    described: ModelDescription,
    adapter: str,
    chat_prompt: str,
) -> StreamedAnswer:
    model = text_model(described)
    chat = asked.messages is not None
    request_id = f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}"
    prompts = all_prompts(asked, chat_prompt)
    calls = call_format(described) if asked.tools.offered else None
    if asked.tools.forced:
        asked = replace(asked, sampling=replace(asked.sampling, format=forced_format(asked.tools, model, calls)))
    replies = await admit_all(context, request, described, text_requests(model, asked, prompts, request_id, adapter))
    request.accepted = True
    head = AnswerHead(request_id, created_s(context), asked.model, chat, asked.usage)
    return TextAnswer(context, request, model, asked, head, prompts, replies, calls).send
