"""The choices of a request: what each is drawn with, what has not been told of it, and how that is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...generation.requests import Generation
from ...generation.sampling import DrawnToken, Sampler
from ...generation.text import GeneratedText
from ...tensor import Tensor
from . import asked as names
from .asked import Asked, of_numbers, of_texts
from .constraints import ConstrainedText


@dataclass(slots=True, eq=False)
class DrawnChoice:
    """One text of a request.

    Attributes:
        sampler, text, constrained, count: the thread's; of tokens that were drawn.
        ready: text that has not been sent.
        untold: tokens that have not been sent.
        stopped: it is at its end with the last token.
        ended: why; empty if it goes on.
    """

    sampler: Sampler
    text: GeneratedText
    constrained: ConstrainedText | None = None
    count: int = 0
    generation: Generation | None = None
    ready: str = ""
    untold: list[DrawnToken] = field(default_factory=list)
    stopped: bool = False
    ended: str = ""


def take_outputs(
    of: Asked, prompt: Sequence[int], choices: Sequence[DrawnChoice], decode: Callable[[Sequence[int]], str]
) -> list[Tensor]:
    """What is new of the choices of a request; it is told with that.

    Args:
        decode: the text of tokens.
    """
    texts, found = [], []
    for choice in choices:
        texts.append((of.text or "") + choice.ready if of.with_prompt else choice.ready)
        choice.ready = ""
    found.append(of_texts(names.TEXT_OUT, texts))
    if names.TOKENS_OUT in of.returned:
        found.append(of_numbers(names.TOKENS_OUT, [each.token for choice in choices for each in choice.untold]))
    if names.REASON in of.returned:
        found.append(of_texts(names.REASON, [choice.ended for choice in choices]))
    if names.INPUT_COUNT in of.returned:
        found.append(of_numbers(names.INPUT_COUNT, [len(prompt)]))
    if names.OUTPUT_COUNT in of.returned:
        found.append(of_numbers(names.OUTPUT_COUNT, [len(choice.untold) for choice in choices]))
    if names.LOGPROBS in of.returned:
        found.append(of_texts(names.LOGPROBS, [json.dumps(_logprobs(choice, decode)) for choice in choices]))
    for choice in choices:
        choice.untold = []
    return found


def _logprobs(choice: DrawnChoice, decode: Callable[[Sequence[int]], str]) -> list[dict[str, Any]]:
    """For each token its log-probability, and the most probable ones."""
    return [
        {
            "token": decode([each.token]),
            "id": each.token,
            "logprob": each.logprob,
            "top": [
                {"token": decode([token]), "id": token, "logprob": logprob} for token, logprob in each.most_probable
            ],
        }
        for each in choice.untold
    ]
