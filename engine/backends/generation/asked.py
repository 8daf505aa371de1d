"""What a request to a generating model asks for: tensors as those of Triton's vLLM backend, and sampling parameters.

`sampling_parameters` is a JSON object with the names that vLLM uses. Values may be numbers or, as in vLLM's clients,
texts of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...datatypes import BOOL, BYTES, INT64, UINT32
from ...errors import InvalidArgumentError
from ...generation.sampling import Sampling
from ...job import Job
from ...tensor import Tensor
from .asked_constraints import CONSTRAINT, Constraint, read_constraint

TEXT, TOKENS = "text_input", "input_ids"
STREAM, PARAMETERS, EXCLUDE = "stream", "sampling_parameters", "exclude_input_in_output"
RETURN_REASON = "return_finish_reason"
RETURN_INPUT_COUNT, RETURN_OUTPUT_COUNT = "return_num_input_tokens", "return_num_output_tokens"
RETURN_LOGPROBS = "return_logprobs"
TEXT_OUT, TOKENS_OUT, REASON, LOGPROBS = "text_output", "output_ids", "finish_reason", "logprobs"
INPUT_COUNT, OUTPUT_COUNT = "num_input_tokens", "num_output_tokens"

INPUTS = {
    TEXT: (BYTES, (1,)),
    TOKENS: (INT64, (-1,)),
    STREAM: (BOOL, (1,)),
    PARAMETERS: (BYTES, (1,)),
    EXCLUDE: (BOOL, (1,)),
    RETURN_REASON: (BOOL, (1,)),
    RETURN_INPUT_COUNT: (BOOL, (1,)),
    RETURN_OUTPUT_COUNT: (BOOL, (1,)),
    RETURN_LOGPROBS: (BOOL, (1,)),
}
"""All of them optional: by name, element type and dimensions."""

OUTPUTS = {
    TEXT_OUT: (BYTES, (-1,)),
    TOKENS_OUT: (INT64, (-1,)),
    REASON: (BYTES, (-1,)),
    LOGPROBS: (BYTES, (-1,)),
    INPUT_COUNT: (UINT32, (1,)),
    OUTPUT_COUNT: (UINT32, (-1,)),
}

_CONSTRAINTS = (CONSTRAINT, "guided_decoding")
"""What vLLM calls constraints, and what it called them before."""

_MOST_CHOICES = 64
_MOST_STOPS = 16


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for.

    Attributes:
        text, tokens: the prompt; one of them.
        stream: answers as they come, else one in the end.
        with_prompt: the prompt's text comes first in the output.
        returned: the outputs that are wanted beside the text.
        most_new: tokens; None for as many as there is room for.
        adapter: that computes it; empty for none.
        special: tokens are part of the text.
        ignores_end: the model's own token for the end does not end the text.
        constraint: what the text has to be.
    """

    text: str | None
    tokens: list[int] | None
    stream: bool
    with_prompt: bool
    returned: frozenset[str]
    sampling: Sampling
    choices: int
    most_new: int | None
    stops: tuple[str, ...]
    stop_tokens: frozenset[int]
    ignores_end: bool
    adapter: str
    constraint: Constraint | None
    special: bool


def asked(job: Job) -> Asked:
    """What a job's request asks for.

    Raises:
        InvalidArgumentError: something in it is wrong.
    """
    inputs = job.inputs
    text = _text(inputs, TEXT)
    tokens = None if TOKENS not in inputs else [int(token) for token in inputs[TOKENS].array.ravel()]
    if (text is None) == (tokens is None):
        raise InvalidArgumentError(f"expected one of '{TEXT}' and '{TOKENS}', got {'none' if text is None else 'both'}")
    stream = _flag(inputs, STREAM)
    excludes = _flag(inputs, EXCLUDE, default=stream)
    if stream and not excludes:
        raise InvalidArgumentError(f"'{EXCLUDE}' must be true where '{STREAM}' is: the prompt is no answer")
    flags = {
        RETURN_REASON: REASON,
        RETURN_INPUT_COUNT: INPUT_COUNT,
        RETURN_OUTPUT_COUNT: OUTPUT_COUNT,
        RETURN_LOGPROBS: LOGPROBS,
    }
    returned = {output for flag, output in flags.items() if _flag(inputs, flag)}
    if tokens is not None or TOKENS_OUT in job.requested_outputs:
        returned.add(TOKENS_OUT)
    given = _Parameters(_text(inputs, PARAMETERS) or "{}")
    logprobs = given.integer("logprobs", -1)
    if LOGPROBS in returned:
        logprobs = max(logprobs, 0)
    result = Asked(
        text,
        tokens,
        stream,
        with_prompt=not excludes and text is not None,
        returned=frozenset(returned),
        sampling=Sampling(
            temperature=given.number("temperature", 1.0),
            top_k=max(given.integer("top_k", 0), 0),  # -1 is vLLM's word for all
            top_p=given.number("top_p", 1.0),
            min_p=given.number("min_p", 0.0),
            repetition=given.number("repetition_penalty", 1.0),
            presence=given.number("presence_penalty", 0.0),
            frequency=given.number("frequency_penalty", 0.0),
            bias=given.bias(),
            seed=given.integer("seed", _seed_of_its_own(job)),
            logprobs=None if logprobs < 0 else logprobs,
        ),
        choices=given.integer("n", 1, 1, _MOST_CHOICES),
        most_new=given.integer("max_tokens", 0, 1) if given.has("max_tokens") else None,
        stops=given.texts("stop"),
        stop_tokens=frozenset(given.integers("stop_token_ids")),
        ignores_end=given.flag("ignore_eos"),
        adapter=given.text("lora_name"),
        constraint=given.constraint(),
        special=not given.flag("skip_special_tokens", default=True),
    )
    given.finish()
    return result


def _seed_of_its_own(job: Job) -> int:
    """Another one for each request, also of servers that have just begun and have had as many."""
    return (job.received_ns << 32) + job.arrival


class _Parameters:
    """The parameters of a request, taken one by one; what is left in the end is unknown."""

    def __init__(self, text: str) -> None:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"'{PARAMETERS}' is no JSON: {error}") from None
        if not isinstance(found, dict):
            raise InvalidArgumentError(f"'{PARAMETERS}' is {_kind(found)}; expected a JSON object")
        self._left: dict[str, Any] = found

    def has(self, name: str) -> bool:
        return self._left.get(name) is not None

    def number(self, name: str, default: float) -> float:
        return self._taken(name, default, float, "a number")

    def integer(self, name: str, default: int, least: int | None = None, most: int | None = None) -> int:
        value = self._taken(name, default, _integer, "an integer")
        if (least is not None and value < least) or (most is not None and value > most):
            expected = f"{least} or more" if most is None else f"{least} to {most}"
            raise InvalidArgumentError(f"{name} is {value}; expected {expected}")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        return self._taken(name, default, _boolean, "true or false")

    def text(self, name: str) -> str:
        """Empty if it is not there."""
        value = self._left.pop(name, None)
        if value is not None and (not isinstance(value, str) or not value):
            raise InvalidArgumentError(f"{name} is {json.dumps(value)}; expected a text that is not empty")
        return value or ""

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._left.pop(name, None)
        texts = [value] if isinstance(value, str) else [] if value is None else value
        if not isinstance(texts, list) or not all(isinstance(each, str) and each for each in texts):
            raise InvalidArgumentError(f"{name} is {_kind(value)}; expected a text or an array of texts, none empty")
        if len(texts) > _MOST_STOPS:
            raise InvalidArgumentError(f"{name} has {len(texts)} texts; expected {_MOST_STOPS} or fewer")
        return tuple(texts)

    def integers(self, name: str) -> list[int]:
        value = self._left.pop(name, None)
        if value is None:
            return []
        if not isinstance(value, list) or not all(type(each) is int for each in value):
            raise InvalidArgumentError(f"{name} is {_kind(value)}; expected an array of integers")
        return value

    def bias(self) -> dict[int, float]:
        value = self._left.pop("logit_bias", None)
        if value is None:
            return {}
        try:
            return {int(token): float(each) for token, each in value.items()}
        except (AttributeError, TypeError, ValueError):
            raise InvalidArgumentError(
                f"logit_bias is {_kind(value)}; expected an object of numbers by token"
            ) from None

    def constraint(self) -> Constraint | None:
        given = {name: value for name in _CONSTRAINTS if (value := self._left.pop(name, None)) is not None}
        if len(given) > 1:
            raise InvalidArgumentError(f"{' and '.join(given)} are given; expected one of them")
        try:
            return next((read_constraint(*each) for each in given.items()), None)
        except InvalidArgumentError as error:
            error.about = CONSTRAINT
            raise

    def finish(self) -> None:
        if self._left:
            raise InvalidArgumentError(f"'{PARAMETERS}' has '{next(iter(self._left))}', which is not known here")

    def _taken(self, name: str, default: Any, convert: Callable[[Any], Any], expected: str) -> Any:
        value = self._left.pop(name, None)
        if value is None:
            return default
        try:
            if isinstance(value, bool) and convert is not _boolean:
                raise ValueError
            return convert(value)
        except (TypeError, ValueError, OverflowError):
            raise InvalidArgumentError(f"{name} is {json.dumps(value)}; expected {expected}") from None


def _integer(value: Any) -> int:
    number = int(value)
    if isinstance(value, float) and value != number:
        raise ValueError
    return number


def _boolean(value: Any) -> bool:
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.lower())
    if not isinstance(value, bool):
        raise ValueError
    return value


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "an array", str: "a text", bool: "a truth value", type(None): "null"}
    return kinds.get(type(value), "a number")


def _flag(inputs: Mapping[str, Tensor], name: str, *, default: bool = False) -> bool:
    return bool(inputs[name].array.ravel()[0]) if name in inputs else default


def _text(inputs: Mapping[str, Tensor], name: str) -> str | None:
    if name not in inputs:
        return None
    try:
        return bytes(inputs[name].array.ravel()[0]).decode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"'{name}' is not UTF-8: {error.reason} at byte {error.start}") from None


def of_texts(name: str, texts: list[str]) -> Tensor:
    """A tensor of these texts."""
    return Tensor(name, BYTES, (len(texts),), array=np.array([text.encode() for text in texts], object))


def of_numbers(name: str, numbers: list[int]) -> Tensor:
    """A tensor of these numbers, of the output's type."""
    datatype, _ = OUTPUTS[name]
    return Tensor(name, datatype, (len(numbers),), array=np.array(numbers, datatype.storage))
