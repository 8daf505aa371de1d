"""Requests for generated text, as the protocols carry them (`engine.logs.made_prompts`)."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from ..engine.datatypes import BOOL, BYTES, INT64
from ..engine.logs.made_prompts import prompt_of, sampling_of
from ..engine.logs.request_log import LoggedRequest
from .model_inputs import MadeInput

TOKENS, STREAM, PARAMETERS = "input_ids", "stream", "sampling_parameters"


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
