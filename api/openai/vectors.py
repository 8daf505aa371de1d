"""``/v1/embeddings`` and ``/v1/rerank``: what encoders say of texts (docs/openai.md). Each text, or pair of texts, is a
request of its own to the model, whose scheduler computes them together."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import numpy as np
import orjson

from ...engine.description import ModelDescription
from ...engine.errors import CONTEXT_LENGTH, InternalError, TriremeError, UnavailableError
from ...engine.request import InferenceRequest
from ...engine.tensor import Tensor
from ..http.exchange import JSON, Answer, Context, HttpRequest
from ..http.responses import NOT_READ, IncomingResponses
from .errors import FieldError, of_request
from .handlers import find_served, read_body
from .inference import admit_all, prompt_of, text_of
from .models import COUNT, PAIR, SCORE, TEXT, TOKENS, embedding_model, ranking_model
from .requests import MOST_CHOICES, EmbeddingRequest, RankingRequest, read_embeddings, read_ranking


class _Found(NamedTuple):
    """What a model gives for a text: float32 [width], and how many tokens that was; 0 if it does not say."""

    values: np.ndarray
    tokens: int


async def embeddings(context: Context, request: HttpRequest) -> Answer:
    """``POST /v1/embeddings``."""
    asked = await read_body(context, request, lambda body: read_embeddings(body, MOST_CHOICES))
    described, _ = await find_served(context, request, asked.model)
    model = embedding_model(described)
    _check_dimensions(asked, model.width)
    outputs = (model.output, COUNT) if model.counts else (model.output,)
    requests = []
    for text in asked.texts:
        made = InferenceRequest(described.name, described.version, requested_outputs=outputs)
        made.inputs.append(prompt_of(model, model.shape, text, "input"))
        requests.append(made)
    found = await _ask(context, request, described, requests, model.output, "input")
    return Answer(200, JSON, await context.server.offload(_embeddings_document, asked, found))


def _check_dimensions(asked: EmbeddingRequest, width: int) -> None:
    """FieldError if more dimensions are wanted than there are; a width that is not known yet is -1."""
    if asked.dimensions is not None and 0 <= width < asked.dimensions:
        raise FieldError(
            "dimensions",
            f"Invalid 'dimensions': expected at most {width}, which the model '{asked.model}' has, but got "
            f"{asked.dimensions}.",
        )


def _shortened(vector: np.ndarray, dimensions: int | None) -> np.ndarray:
    """The first dimensions of a vector, with the length 1, if there are more of them; else the vector as it is."""
    if dimensions is None or dimensions == vector.size:
        return vector
    first = vector[:dimensions]
    length = np.linalg.norm(first)
    return first / length if length > 0 else first


async def rerank(context: Context, request: HttpRequest) -> Answer:
    """``POST /v1/rerank``."""
    asked = await read_body(context, request, lambda body: read_ranking(body, MOST_CHOICES))
    described, _ = await find_served(context, request, asked.model)
    model = ranking_model(described)
    requests = []
    for document in asked.documents:
        made = InferenceRequest(described.name, described.version, requested_outputs=(SCORE, COUNT))
        made.inputs += [text_of(TEXT, model.shape, asked.query), text_of(PAIR, model.shape, document)]
        requests.append(made)
    found = await _ask(context, request, described, requests, SCORE, "documents")
    return Answer(200, JSON, _ranking_document(asked, found))


async def _ask(
    context: Context,
    request: HttpRequest,
    described: ModelDescription,
    requests: Sequence[InferenceRequest],
    output: str,
    param: str,
) -> list[_Found]:
    """What a model gives for each request.

    Args:
        param: what the texts are called in what the client has sent.

    Raises:
        TriremeError: one fails, or has no result or several.
    """
    replies = await admit_all(context, request, described, requests)
    request.accepted = True
    found: dict[int, _Found] = {}
    incoming = IncomingResponses(replies, context.server, request.exchange.address)
    try:
        async with aclosing(incoming.each()) as responses:
            async for number, outcome in responses:
                if isinstance(outcome, TriremeError):
                    raise of_request(outcome, {CONTEXT_LENGTH: param, TEXT: param, TOKENS: param})
                if number in found:
                    raise InternalError(f"the model has given several results for text {number}")
                outputs: Mapping[str, Tensor] = {tensor.name: tensor for tensor in outcome.outputs}
                if output not in outputs:
                    raise InternalError(f"the model's response has no output '{output}'")
                count = int(outputs[COUNT].array.sum()) if COUNT in outputs else 0
                found[number] = _Found(outputs[output].array.reshape(-1).astype("<f4"), count)
    finally:
        incoming.close()
    if incoming.given_up:
        raise UnavailableError(NOT_READ)
    for number in range(len(requests)):
        if number not in found:
            raise InternalError(f"the model has given no result for text {number}")
    return [found[number] for number in range(len(requests))]


def _embeddings_document(asked: EmbeddingRequest, found: Sequence[_Found]) -> bytes:
    rows = []
    for number, (whole, _) in enumerate(found):
        _check_dimensions(asked, whole.size)
        vector = _shortened(whole, asked.dimensions)
        shown = base64.b64encode(vector.tobytes()).decode() if asked.base64 else vector.tolist()
        rows.append({"object": "embedding", "index": number, "embedding": shown})
    count = sum(each.tokens for each in found)
    usage = {"prompt_tokens": count, "total_tokens": count}
    return orjson.dumps({"object": "list", "data": rows, "model": asked.model, "usage": usage})


def _ranking_document(asked: RankingRequest, found: Sequence[_Found]) -> bytes:
    """The best first; of equal ones, that which came first."""
    scores = [float(each.values[0]) for each in found]
    rows: list[dict[str, Any]] = []
    for place in sorted(range(len(scores)), key=lambda place: -scores[place])[: asked.most]:
        row: dict[str, Any] = {"index": place, "relevance_score": scores[place]}
        rows.append(row | {"document": {"text": asked.documents[place]}} if asked.returns else row)
    usage = {"total_tokens": sum(each.tokens for each in found)}
    made = {"id": f"rerank-{secrets.token_hex(12)}", "model": asked.model, "results": rows, "usage": usage}
    return orjson.dumps(made)
