"""``/v1/models``, ``/v1/chat/completions``, ``/v1/completions`` and ``/v1/embeddings`` (docs/openai.md)."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import unquote

import numpy as np
import orjson

from ...engine.access.callers import Right
from ...engine.description import ModelDescription
from ...engine.errors import InternalError, TriremeError, UnavailableError
from ...engine.request import InferenceRequest
from ..http.bodies import read_json
from ..http.exchange import JSON, Answer, Context, Handler, HttpRequest, StreamedAnswer
from ..http.responses import NOT_READ, IncomingResponses
from ..pipeline import find_model
from .adapters import find_named, listed_models
from .answers import AnswerHead, model_entry
from .chat import render_prompt
from .errors import FieldError, refused
from .generating import TextAnswer
from .inference import admit_all, text_of, text_requests
from .models import EmbeddingModel, embedding_model, served_model, text_model
from .requests import (
    MOST_CHOICES,
    EmbeddingRequest,
    TextRequest,
    all_prompts,
    read_chat,
    read_completion,
    read_embeddings,
)

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


async def _read(context: Context, request: HttpRequest, read: Callable[[Any], T]) -> T:
    """What the body asks for. FieldError if it is no JSON, or not what it has to be."""
    try:
        document = await read_json(context, request)
    except TriremeError as error:
        raise FieldError("body", f"The body is no JSON that can be read: {error.message}", "invalid_json") from None
    return read(document)


async def _find(context: Context, request: HttpRequest, given: str) -> tuple[ModelDescription, str]:
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


def _created(context: Context) -> int:
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
    created = _created(context)
    rows = [model_entry(name, created, parent) for name, parent in listed_models(descriptions)]
    return Answer(200, JSON, orjson.dumps({"object": "list", "data": rows}))


async def show_model(context: Context, request: HttpRequest) -> Answer:
    """``GET /v1/models/M``."""
    name = unquote(request.match.name)
    described, adapter = await _find(context, request, name)
    served_model(described)
    parent = described.name if adapter else None
    return Answer(200, JSON, orjson.dumps(model_entry(name, _created(context), parent)))


# Text.


async def chat_completions(context: Context, request: HttpRequest) -> StreamedAnswer:
    """``POST /v1/chat/completions``."""
    asked = await _read(context, request, read_chat)
    assert asked.messages is not None, "it is a chat"
    model, adapter = await _find(context, request, asked.model)
    text_model(model)  # which is said before what templates say
    values = asked.template_values or {}
    wall_ms = context.server.tracer.clock.wall_ms()
    render = partial(render_prompt, model.chat, asked.messages, asked.tools, values, wall_ms)
    return await _generate(context, request, asked, model, adapter, await context.server.offload(render))


async def completions(context: Context, request: HttpRequest) -> StreamedAnswer:
    """``POST /v1/completions``."""
    asked = await _read(context, request, read_completion)
    return await _generate(context, request, asked, *await _find(context, request, asked.model), "")


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
    replies = await admit_all(context, request, described, text_requests(model, asked, prompts, request_id, adapter))
    request.accepted = True
    head = AnswerHead(request_id, _created(context), asked.model, chat, asked.usage)
    return TextAnswer(context, request, model, asked, head, prompts, replies).send


# Embeddings.


async def embeddings(context: Context, request: HttpRequest) -> Answer:
    """``POST /v1/embeddings``."""
    asked = await _read(context, request, lambda body: read_embeddings(body, MOST_CHOICES))
    described, _ = await _find(context, request, asked.model)
    model = embedding_model(described)
    requests = []
    for text in asked.texts:
        made = InferenceRequest(described.name, described.version, requested_outputs=(model.output,))
        made.inputs.append(text_of(model.text_input, model.shape, text))
        requests.append(made)
    replies = await admit_all(context, request, described, requests)
    request.accepted = True
    incoming = IncomingResponses(replies, context.server, request.exchange.address)
    try:
        return Answer(200, JSON, await context.server.offload(_document, asked, await _vectors(model, incoming)))
    finally:
        incoming.close()


async def _vectors(model: EmbeddingModel, incoming: IncomingResponses) -> dict[int, np.ndarray]:
    """The vector of each text. TriremeError if one fails, or has none or several."""
    vectors: dict[int, np.ndarray] = {}
    async with aclosing(incoming.each()) as responses:
        async for number, outcome in responses:
            if isinstance(outcome, TriremeError):
                raise copy(outcome)
            if number in vectors:
                raise InternalError(f"the model has given several embeddings of text {number}")
            try:
                vectors[number] = outcome.output(model.output).array.reshape(-1).astype("<f4")
            except KeyError:
                raise InternalError(f"the model's response has no output '{model.output}'") from None
    if incoming.given_up:
        raise UnavailableError(NOT_READ)
    return vectors


def _document(asked: EmbeddingRequest, vectors: Mapping[int, np.ndarray]) -> bytes:
    """The answer. InternalError if a text has no vector."""
    rows = []
    for number in range(len(asked.texts)):
        vector = vectors.get(number)
        if vector is None:
            raise InternalError(f"the model has given no embedding of text {number}")
        shown = base64.b64encode(vector.tobytes()).decode() if asked.base64 else vector.tolist()
        rows.append({"object": "embedding", "index": number, "embedding": shown})
    usage = {"prompt_tokens": 0, "total_tokens": 0}
    return orjson.dumps({"object": "list", "data": rows, "model": asked.model, "usage": usage})
