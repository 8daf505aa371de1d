"""Requests for generated text, as bytes: prompts of as many tokens as the log says, made up.

A prompt begins with the tokens that it has in common with others (`LoggedRequest.found_tokens`), which are the same in
all requests to a model; the rest is its own. As many tokens are asked for as were generated, and the end of a text is
not heeded, so that the server does as much as it did.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random

import numpy as np

from ..engine.datatypes import BOOL, BYTES, INT64
from ..engine.logs.request_log import LoggedRequest
from .model_inputs import MadeInput

TOKENS, STREAM, PARAMETERS = "input_ids", "stream", "sampling_parameters"
_LEAST_TOKEN, _MOST_TOKEN = 1, 96
"""Every vocabulary has these."""


def prompt_of(request: LoggedRequest, number: int) -> list[int]:
    """Tokens for a request; those of another `number` are others, but for the common beginning."""
    common = Random(f"common {request.model}")
    shared = min(request.found_tokens, request.prompt_tokens - 1)
    own = Random(f"own {request.model} {number}")
    tokens = [common.randint(_LEAST_TOKEN, _MOST_TOKEN) for _ in range(shared)]
    return tokens + [own.randint(_LEAST_TOKEN, _MOST_TOKEN) for _ in range(request.prompt_tokens - shared)]


def sampling_of(request: LoggedRequest) -> dict[str, object]:
    """Sampling parameters for a request."""
    each = -(-request.generated_tokens // request.choices) or request.max_tokens
    asked: dict[str, object] = {"ignore_eos": True}
    if each:
        asked["max_tokens"] = each
    if request.choices > 1:
        asked["n"] = request.choices
    return asked


def stream_document(request: LoggedRequest, number: int) -> bytes:
    """The body of a request to `generate_stream`."""
    document: dict[str, object] = {
        TOKENS: prompt_of(request, number),
        STREAM: True,
        PARAMETERS: json.dumps(sampling_of(request)),
    }
    if request.timeout_us:
        document["timeout"] = request.timeout_us
    if request.priority:
        document["priority"] = request.priority
    return json.dumps(document, separators=(",", ":")).encode()


def generation_inputs(request: LoggedRequest, number: int) -> Sequence[MadeInput]:
    """The tensors of a request."""
    text = json.dumps(sampling_of(request)).encode()
    prompt = np.array(prompt_of(request, number), np.int64)
    return [
        MadeInput(TOKENS, INT64.name, (len(prompt),), prompt.tobytes()),
        MadeInput(STREAM, BOOL.name, (1,), b"\1"),
        MadeInput(PARAMETERS, BYTES.name, (1,), len(text).to_bytes(4, "little") + text),
    ]
