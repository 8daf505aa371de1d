"""Prompts for requests of which a log tells numbers of tokens, and no contents.

A prompt begins with the tokens that it has in common with others (`LoggedRequest.found_tokens`), which are the same in
all requests to a model; the rest is its own. As many tokens are asked for as were generated, and the end of a text is
not heeded, so that the server does as much as it did.
"""

from __future__ import annotations

from random import Random

from .request_log import LoggedRequest

LEAST_TOKEN, MOST_TOKEN = 1, 96
"""Every vocabulary has these."""

_TOKENS = range(LEAST_TOKEN, MOST_TOKEN + 1)


def prompt_of(request: LoggedRequest, number: int) -> list[int]:
    """Tokens for a request; those of another `number` are others, but for the common beginning."""
    shared = min(request.found_tokens, request.prompt_tokens - 1)
    own = _drawn(f"{request.model} {number}", request.prompt_tokens - shared)
    return [*_drawn(f"{request.model} common", shared), *own]


def _drawn(seed: str, count: int) -> list[int]:
    return Random(seed).choices(_TOKENS, k=count) if count else []


def sampling_of(request: LoggedRequest) -> dict[str, object]:
    """Sampling parameters for a request."""
    each = -(-request.generated_tokens // request.choices) or request.max_tokens
    asked: dict[str, object] = {"ignore_eos": True}
    if each:
        asked["max_tokens"] = each
    if request.choices > 1:
        asked["n"] = request.choices
    return asked
