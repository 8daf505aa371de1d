"""Which models can be asked in OpenAI's way, and what their tensors mean for it (docs/openai.md#models).

Rules:
 1. A model that has the parameter ``openai_text_input`` or ``openai_embeddings_output`` is what its parameters say.
 2. Any other model generates text if it has the tensors of Triton's vLLM backend: inputs ``text_input`` and
    ``sampling_parameters``, and output ``text_output``, all of strings.
 3. A model of rule 2 is told what its text has to be (`formats`) if its backend is `generation`, or if it has the
    parameter ``openai_formats``, which is the name that this has among its sampling parameters.
 4. One that has the tensors of an encoder of the backend ``generation`` is for embeddings, with the input
    ``text_input`` and the output ``embedding``, or ranks texts, with the inputs ``text_input`` and ``text_pair`` and
    the output ``score``.
 5. Every input that a model needs has to be one of those that are known here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...engine.config.model import ModelConfig, ModelInput
from ...engine.datatypes import BOOL, BYTES, FP16, FP32, FP64, INT64, DataType
from ...engine.description import ModelDescription
from ...engine.errors import InvalidArgumentError, NotFoundError
from .tool_calls import FORMAT_PARAMETER, CallFormat, shown_format

TEXT_INPUT = "openai_text_input"
TEXT_OUTPUT = "openai_text_output"
PARAMETERS = "openai_parameters"
EMBEDDINGS_OUTPUT = "openai_embeddings_output"
FORMATS = "openai_formats"

SAMPLING = "sampling_parameters"
STREAM = "stream"
BIAS = "logit_bias"
LOGPROBS, RETURN_LOGPROBS = "logprobs", "return_logprobs"
FLAGS = (
    "exclude_input_in_output",
    "return_finish_reason",
    "return_num_input_tokens",
    "return_num_output_tokens",
)
"""Inputs of the vLLM backend that are always asked for, where a model has them."""

EMBEDDING, SCORE = "embedding", "score"
TEXT, PAIR, TOKENS, COUNT = "text_input", "text_pair", "input_ids", "num_tokens"
"""Tensors of encoders of the backend ``generation`` (`engine.backends.generation.encoding.asked`)."""

_KNOWN = ("text_input", SAMPLING, STREAM, RETURN_LOGPROBS, *FLAGS)

NAMES = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_tokens",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "user",
)
"""What a request may say that can become a parameter of the model's request (`PARAMETERS`)."""


@dataclass(frozen=True, slots=True)
class TextModel:
    """A model that makes text of text.

    Attributes:
        shapes: of the inputs, by name.
        parameters: names of request parameters by OpenAI's names; None for a model with the tensors of the vLLM
            backend.
        logprobs: it gives log-probabilities.
        formats: the sampling parameter that says what its text has to be; empty if it has none.
        token_dims: see `EmbeddingModel`.
    """

    description: ModelDescription
    text_input: str
    text_output: str
    shapes: Mapping[str, tuple[int, ...]]
    parameters: Mapping[str, str] | None = None
    logprobs: bool = False
    formats: str = ""
    token_dims: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class EmbeddingModel:
    """A model that makes vectors of texts.

    Attributes:
        shape: of the input for one text.
        token_dims: dimensions of the input ``input_ids`` before that of a text's tokens; None if tokens are not taken.
        counts: it says how many tokens a text has.
    """

    description: ModelDescription
    text_input: str
    output: str
    shape: tuple[int, ...] = field(default=(1,))
    token_dims: tuple[int, ...] | None = None
    counts: bool = False

    @property
    def width(self) -> int:
        """Of a vector; -1 if that is not known before there is one."""
        output = self.description.config.find_output(self.output)
        return -1 if output is None or not output.dims else output.dims[-1]


@dataclass(frozen=True, slots=True)
class RankingModel:
    """A model that says how well two texts go together.

    Attributes:
        shape: of each input.
    """

    description: ModelDescription
    shape: tuple[int, ...]


ServedModel = TextModel | EmbeddingModel | RankingModel


def served_model(description: ModelDescription) -> ServedModel:
    """What a model is for OpenAI's clients.

    Raises:
        NotFoundError: it is nothing for them; the text says why.
    """
    try:
        return _served_model(description)
    except InvalidArgumentError as error:
        raise NotFoundError(
            f"The model '{description.name}' cannot be used by this interface: {error.message}"
        ) from None


def text_model(description: ModelDescription) -> TextModel:
    """A model that generates text. NotFoundError if it is none."""
    found = served_model(description)
    if isinstance(found, TextModel):
        return found
    raise NotFoundError(f"The model '{description.name}' generates no text: {_purpose(found)}")


def embedding_model(description: ModelDescription) -> EmbeddingModel:
    """A model for embeddings. NotFoundError if it is none."""
    found = served_model(description)
    if isinstance(found, EmbeddingModel):
        return found
    raise NotFoundError(
        f"The model '{description.name}' gives no embeddings: it has no output '{EMBEDDING}', and its configuration "
        f"names no parameter '{EMBEDDINGS_OUTPUT}'"
    )


def ranking_model(description: ModelDescription) -> RankingModel:
    """A model that ranks texts. NotFoundError if it is none."""
    found = served_model(description)
    if isinstance(found, RankingModel):
        return found
    raise NotFoundError(f"The model '{description.name}' ranks no texts: {_purpose(found)}")


def _purpose(model: ServedModel) -> str:
    match model:
        case TextModel():
            return "it generates text"
        case EmbeddingModel():
            return "it is for embeddings"
        case RankingModel():
            return "it ranks texts"


def call_format(description: ModelDescription) -> CallFormat | None:
    """How a model writes calls of tools: as its parameter says, else as its chat template shows.

    Raises:
        InvalidArgumentError: there is no such format.
    """
    named = description.config.parameters.get(FORMAT_PARAMETER)
    if named is None:
        return None if description.chat is None else shown_format(description.chat.text)
    known = {"none": None, **{each.value: each for each in CallFormat}}
    if named not in known:
        raise InvalidArgumentError(f"parameter '{FORMAT_PARAMETER}' is '{named}', expected one of: {', '.join(known)}")
    return known[named]


def _served_model(description: ModelDescription) -> ServedModel:
    config = description.config
    given = config.parameters
    call_format(description)
    if EMBEDDINGS_OUTPUT in given:
        text_input = given.get(TEXT_INPUT, "text_input")
        _check_output(config, given[EMBEDDINGS_OUTPUT], EMBEDDINGS_OUTPUT, (FP32, FP16, FP64))
        shapes = _shapes(description, (text_input,), (text_input,))
        counts = config.find_output(COUNT) is not None
        return EmbeddingModel(description, text_input, given[EMBEDDINGS_OUTPUT], shapes[text_input], counts=counts)
    if TEXT_INPUT in given:
        text_input, text_output = given[TEXT_INPUT], given.get(TEXT_OUTPUT, "text_output")
        _check_output(config, text_output, TEXT_OUTPUT, (BYTES,))
        shapes = _shapes(description, (text_input,), (text_input,))
        return TextModel(description, text_input, text_output, shapes, _read_parameters(given.get(PARAMETERS, "")))
    encoder = _encoder(description)
    if encoder is not None:
        return encoder
    if config.find_input("text_input") is None or config.find_input(SAMPLING) is None:
        raise InvalidArgumentError(
            f"it has no inputs 'text_input' and '{SAMPLING}', and its configuration no parameter '{TEXT_INPUT}'"
        )
    _check_output(config, "text_output", TEXT_OUTPUT, (BYTES,))
    shapes = _shapes(description, _KNOWN, ("text_input", SAMPLING))
    logprobs = RETURN_LOGPROBS in shapes and config.find_output(LOGPROBS) is not None
    formats = given.get(FORMATS, "structured_outputs" if config.backend == "generation" else "")
    tokens = _token_dims(description)
    return TextModel(description, "text_input", "text_output", shapes, None, logprobs, formats, tokens)


def _encoder(description: ModelDescription) -> EmbeddingModel | RankingModel | None:
    """Rule 4."""
    config = description.config
    counts = config.find_output(COUNT) is not None
    if config.find_output(EMBEDDING) is not None and config.find_input(TEXT) is not None:
        _check_output(config, EMBEDDING, EMBEDDINGS_OUTPUT, (FP32, FP16, FP64))
        shapes = _shapes(description, (TEXT,), (TEXT,))
        return EmbeddingModel(description, TEXT, EMBEDDING, shapes[TEXT], _token_dims(description), counts)
    if config.find_output(SCORE) is not None and config.find_input(PAIR) is not None and counts:
        shapes = _shapes(description, (TEXT, PAIR), (TEXT, PAIR))
        return RankingModel(description, shapes[TEXT])
    return None


def _token_dims(description: ModelDescription) -> tuple[int, ...] | None:
    """Of the input for tokens instead of a text; None if there is none."""
    tokens = description.config.find_input(TOKENS)
    if tokens is None or tokens.datatype is not INT64:
        return None
    return (1,) * (len(description.client_shape(tokens)) - 1)


def _check_output(config: ModelConfig, name: str, parameter: str, datatypes: Sequence[DataType]) -> None:
    output = config.find_output(name)
    if output is None or output.datatype not in datatypes:
        kinds = " or ".join(each.name for each in datatypes)
        raise InvalidArgumentError(f"it has no output '{name}' of type {kinds} (parameter '{parameter}')")


def _shapes(description: ModelDescription, known: Sequence[str], of_text: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The shape that each known input gets, of one element."""
    shapes = {}
    for tensor in description.config.input:
        if tensor.name not in known:
            if not tensor.optional:
                raise InvalidArgumentError(f"it needs an input '{tensor.name}', which OpenAI's requests do not have")
            continue
        expected = BYTES if tensor.name in of_text else BOOL
        shape = _shape_of_one(description, tensor)
        if tensor.datatype is not expected or shape is None:
            raise InvalidArgumentError(f"its input '{tensor.name}' is not one element of type {expected.name}")
        shapes[tensor.name] = shape
    for name in of_text:
        if name not in shapes:
            raise InvalidArgumentError(f"it has no input '{name}' (parameter '{TEXT_INPUT}')")
    return shapes


def _shape_of_one(description: ModelDescription, tensor: ModelInput) -> tuple[int, ...] | None:
    shape = tuple(1 if dim < 0 else dim for dim in description.client_shape(tensor))
    return shape if math.prod(shape) == 1 else None


def _read_parameters(text: str) -> dict[str, str]:
    """Names of request parameters, by OpenAI's names."""
    if not text:
        return {}
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict) or not all(isinstance(each, str) and each for each in given.values()):
        raise InvalidArgumentError(f"parameter '{PARAMETERS}' is no JSON object whose values are names")
    if unknown := sorted(given.keys() - set(NAMES)):
        raise InvalidArgumentError(f"parameter '{PARAMETERS}' names '{unknown[0]}', expected of: {', '.join(NAMES)}")
    return given
