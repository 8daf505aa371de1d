"""Requests for texts in swarm runs of generating models, and what must come of each: the text that it gets alone.

A network is a rule here: the logits of the next token are a function of the tokens before it. So the texts of a request
are known beforehand, from that rule and the sampler alone, without any scheduling.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.backends.generation import asked as names
from ..engine.backends.generation.tokenizer import Tokenizer
from ..engine.datatypes import BOOL, BYTES, INT64
from ..engine.generation.sampling import Sampler, Sampling
from ..engine.request import InferenceRequest, InferenceResponse
from ..engine.tensor import Tensor

LETTERS = 64
"""Tokens that there are: the first one ends a text, the last few are halves of a character, the rest are letters."""

END_OF_TEXT = 0
_HALVES = 60
_FIRST_LETTER = 0x100
_WHOLE = "\N{SNOWMAN}"
_AMID = "\N{REPLACEMENT CHARACTER}"


def scripted_logits(tokens: Sequence[int]) -> np.ndarray:
    """Logits of what follows these tokens, float32 [LETTERS]."""
    digest = blake2b(bytes(tokens), digest_size=LETTERS).digest()
    return np.frombuffer(digest, np.uint8).astype(np.float32) / 16


class ScriptedTokenizer(Tokenizer):
    """A letter for each token, and one for two halves in a row."""

    def __init__(self) -> None:
        super().__init__(Path("scripted"))

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - _FIRST_LETTER for letter in text]

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        del special  # the end of a text is no part of it
        text, half = "", False
        for token in tokens:
            if token >= _HALVES:
                text += _WHOLE * half
                half = not half
            elif token != END_OF_TEXT:
                text += _AMID * half + chr(_FIRST_LETTER + token)
                half = False
        return text + _AMID * half


SPELLING = ScriptedTokenizer()


@dataclass(frozen=True, slots=True)
class ExpectedText:
    """What a choice must come to."""

    tokens: tuple[int, ...]
    text: str
    reason: str


@dataclass(eq=False)
class ScriptedRequest:
    """A request, and what its client has heard.

    Attributes:
        number: unique.
        as_text: the prompt is sent as text, not as tokens.
        fault: the request is wrong: what is to be said of it; empty if it is not.
        pause_s: for which its client does nothing after each answer.
        leaves_s: after which its client gives up; None for never.
        texts, tokens: heard so far, by choice.
        at: the instances that it has been at, by name.
        left_s: when its client gave up.
    """

    number: int
    model: str
    prompt: list[int]
    as_text: bool = False
    stream: bool = False
    choices: int = 1
    sampling: dict[str, Any] = field(default_factory=dict)
    priority: int = 0
    timeout_us: int = 0
    fault: str = ""
    pause_s: float = 0.0
    leaves_s: float | None = None
    sent_s: float = 0.0
    left_s: float | None = None
    at: list[Any] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.texts = [""] * self.choices
        self.tokens = [[] for _ in range(self.choices)]
        self.reasons = [""] * self.choices

    def made(self) -> InferenceRequest:
        """The request as it is sent."""
        flags = [names.RETURN_REASON, names.RETURN_OUTPUT_COUNT, *([names.STREAM] if self.stream else [])]
        inputs = [Tensor(flag, BOOL, (1,), array=np.array([True])) for flag in flags]
        given = json.dumps({"n": self.choices, **self.sampling})
        inputs.append(Tensor(names.PARAMETERS, BYTES, (1,), array=np.array([given.encode()], object)))
        if self.as_text:
            text = SPELLING.decode(self.prompt).encode()
            inputs.append(Tensor(names.TEXT, BYTES, (1,), array=np.array([text], object)))
        else:
            inputs.append(Tensor(names.TOKENS, INT64, (len(self.prompt),), array=np.array(self.prompt, np.int64)))
        return InferenceRequest(
            self.model,
            inputs=inputs,
            priority=self.priority,
            timeout_us=self.timeout_us,
            parameters={"number": self.number},
        )

    # ---- what it comes to ----

    def hear(self, response: InferenceResponse) -> str:
        """An answer has come; what is wrong with it, or nothing."""
        found = {tensor.name: tensor.array.ravel().tolist() for tensor in response.outputs}
        texts = [text.decode() for text in found[names.TEXT_OUT]]
        counts, tokens = found[names.OUTPUT_COUNT], found.get(names.TOKENS_OUT, [])
        if not len(texts) == len(counts) == len(found[names.REASON]) == self.choices:
            return f"request {self.number} has {self.choices} choices, and {len(texts)} texts in an answer"
        if not self.as_text and sum(counts) != len(tokens):
            return f"request {self.number} is told of {counts} tokens, and got {len(tokens)}"
        for choice, (text, count) in enumerate(zip(texts, counts, strict=True)):
            self.texts[choice] += text
            new, tokens = (tokens[:count], tokens[count:]) if not self.as_text else ([-1] * count, [])
            self.tokens[choice] += new
        self.reasons = [reason.decode() for reason in found[names.REASON]]
        return ""

    def judged(self, room: int, *, whole: bool) -> str:
        """What is wrong with what was heard, or nothing.

        Args:
            room: tokens that a text may have, its prompt included.
            whole: it should be all; else it has ended early.
        """
        for choice in range(self.choices):
            due = self.expected(choice, room)
            if self.as_text and not self.stream:
                due = ExpectedText(due.tokens, SPELLING.decode(self.prompt) + due.text, due.reason)
            heard = self.tokens[choice]
            if self.as_text:
                right = len(heard) <= len(due.tokens)
                complete = len(heard) == len(due.tokens)
            else:
                right = tuple(heard) == due.tokens[: len(heard)]
                complete = tuple(heard) == due.tokens
            if not right or not due.text.startswith(self.texts[choice]):
                return f"choice {choice} of request {self.number} is {self.texts[choice]!r} {heard}, alone it is {due}"
            if whole and not (complete and self.texts[choice] == due.text and self.reasons[choice] == due.reason):
                said = f"{self.texts[choice]!r} {heard} ({self.reasons[choice]})"
                return f"choice {choice} of request {self.number} ends as {said}, alone as {due}"
        return ""

    def expected(self, choice: int, room: int) -> ExpectedText:
        """What a choice comes to alone."""
        given = self.sampling
        sampler = Sampler(
            Sampling(
                temperature=given.get("temperature", 1.0),
                top_k=given.get("top_k", 0),
                repetition=given.get("repetition_penalty", 1.0),
                seed=given["seed"],
            ),
            self.prompt,
            LETTERS,
            choice,
        )
        most_new = given.get("max_tokens") or max(room - len(self.prompt), 1)
        drawn: list[int] = []
        while len(drawn) < most_new:
            drawn.append(sampler.draw(scripted_logits([*self.prompt, *drawn])).token)
            if drawn[-1] == END_OF_TEXT and not given.get("ignore_eos"):
                return ExpectedText(tuple(drawn), SPELLING.decode(drawn), "stop")
            text = SPELLING.decode(drawn)
            places = [at for stop in given.get("stop", ()) if (at := text.find(stop)) >= 0]
            if places:
                return ExpectedText(tuple(drawn), text[: min(places)], "stop")
        return ExpectedText(tuple(drawn), SPELLING.decode(drawn), "length")
