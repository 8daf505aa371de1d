"""What a request to an encoder has: texts, pairs of texts, or their tokens; and what it gets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ....datatypes import BYTES, FP32, INT64, UINT32
from ....errors import CONTEXT_LENGTH, InvalidArgumentError
from ....job import Job
from ....tensor import Tensor
from ...hugging_face import Tensors
from ..tokenizer import Tokenizer, most_characters
from .layout import EncoderKind, EncoderLayout
from .packed import TokenRow

TEXT, PAIR = "text_input", "text_pair"
TOKENS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
EMBEDDING, SCORES, LABEL, SCORE, COUNT = "embedding", "scores", "label", "score", "num_tokens"
TRUNCATE = "truncate"

INPUTS: Tensors = {
    TEXT: (BYTES, (1,)),
    PAIR: (BYTES, (1,)),
    TOKENS: (INT64, (-1,)),
    MASK: (INT64, (-1,)),
    TYPES: (INT64, (-1,)),
}
"""All of them optional; each request has one of TEXT and TOKENS."""


def outputs_of(layout: EncoderLayout) -> Tensors:
    """What a model gives for a text."""
    count = {COUNT: (UINT32, (1,))}
    match layout.kind:
        case EncoderKind.EMBEDDING:
            return {EMBEDDING: (FP32, (layout.width,)), **count}
        case EncoderKind.LABELS:
            return {SCORES: (FP32, (layout.width,)), LABEL: (BYTES, (1,)), **count}
        case EncoderKind.SCORE:
            return {SCORE: (FP32, (1,)), **count}


def text_bytes(job: Job) -> int:
    """How long all texts of a request are together, in UTF-8."""
    return sum(len(each) for name in (TEXT, PAIR) if name in job.inputs for each in job.inputs[name].array.ravel())


def asked_texts(job: Job, tokenizer: Tokenizer, context: int, vocabulary: int, truncates: bool) -> list[TokenRow]:
    """The texts of a request in tokens.

    Args:
        context: tokens that a text may have.
        truncates: what is longer is cut, unless the request says otherwise, and else refused.

    Raises:
        InvalidArgumentError: something in it is wrong.
    """
    inputs = job.inputs
    if (TEXT in inputs) == (TOKENS in inputs):
        found = "none" if TEXT not in inputs else "both"
        raise InvalidArgumentError(f"expected one of '{TEXT}' and '{TOKENS}', got {found}")
    given = job.request.parameters.get(TRUNCATE, truncates)
    if not isinstance(given, bool):
        raise InvalidArgumentError(f"parameter '{TRUNCATE}' is {given!r}; expected true or false")
    of_tokens, of_texts = (MASK, TYPES), (PAIR,)
    for name in of_tokens if TEXT in inputs else of_texts:
        if name in inputs:
            raise InvalidArgumentError(f"'{name}' goes with '{TOKENS if TEXT in inputs else TEXT}', which is not there")
    if TEXT in inputs:
        rows = list(_from_texts(job, tokenizer, context, given))
    else:
        rows = list(_from_tokens(job, context if given else None))
    for row in rows:
        if not row.ids:
            raise InvalidArgumentError("a text has no tokens; expected 1 or more")
        if len(row.ids) > context:
            raise InvalidArgumentError(
                f"a text has {len(row.ids)} tokens; expected at most {context}, or the parameter '{TRUNCATE}'",
                about=CONTEXT_LENGTH,
            )
        wrong = next((token for token in row.ids if not 0 <= token < vocabulary), None)
        if wrong is not None:
            raise InvalidArgumentError(f"token {wrong} in a text; expected 0 to {vocabulary - 1}")
    return rows


def _from_texts(job: Job, tokenizer: Tokenizer, context: int, cuts: bool) -> Iterator[TokenRow]:
    texts = _texts(job, TEXT)
    pairs: Sequence[str | None] = _texts(job, PAIR) if PAIR in job.inputs else [None] * len(texts)
    most = most_characters(context)
    for text, pair in zip(texts, pairs, strict=True):
        if cuts:
            yield TokenRow(*tokenizer.encode_pair(text[:most], None if pair is None else pair[:most], context))
            continue
        for each in (text, pair or ""):
            tokenizer.check_length(each, context)
        yield TokenRow(*tokenizer.encode_pair(text, pair, None))


def _texts(job: Job, name: str) -> list[str]:
    try:
        return [bytes(each).decode() for each in job.inputs[name].array.ravel()]
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"'{name}' is not UTF-8: {error.reason} at byte {error.start}") from None


def _from_tokens(job: Job, most: int | None) -> Iterator[TokenRow]:
    tokens = job.inputs[TOKENS].array.reshape(job.rows, -1)
    of_each = {name: _like(job, name, tokens) for name in (MASK, TYPES) if name in job.inputs}
    for number, row in enumerate(tokens):
        count = len(row)
        if MASK in of_each:
            seen = of_each[MASK][number] != 0
            count = int(seen.sum())
            if not seen[:count].all():
                raise InvalidArgumentError(f"'{MASK}' has ones behind zeros; expected padding at the end only")
        count = min(count, count if most is None else most)
        types: list[int] = []
        if TYPES in of_each:
            types = of_each[TYPES][number][:count].tolist()
            if not {0, 1}.issuperset(types):
                raise InvalidArgumentError(f"'{TYPES}' has other values than 0 and 1")
        yield TokenRow(row[:count].tolist(), types)


def _like(job: Job, name: str, tokens: np.ndarray) -> np.ndarray:
    array = job.inputs[name].array
    if array.size != tokens.size:
        shape, expected = list(array.shape), list(job.inputs[TOKENS].array.shape)
        raise InvalidArgumentError(f"'{name}' has the shape {shape}; expected that of '{TOKENS}', {expected}")
    return array.reshape(tokens.shape)


def answers(layout: EncoderLayout, texts: Sequence[TokenRow], found: Sequence[np.ndarray], batched: bool) -> Any:
    """The outputs of a request.

    Args:
        found: for each text what the network gives for it.
        batched: tensors have a batch dimension.
    """
    values = np.stack(found)
    counts = np.array([[len(each.ids)] for each in texts], np.uint32)
    arrays = {COUNT: counts}
    match layout.kind:
        case EncoderKind.EMBEDDING:
            arrays[EMBEDDING] = values
        case EncoderKind.LABELS:
            arrays[SCORES] = values
            best = values.argmax(axis=1)
            arrays[LABEL] = np.array([[layout.labels[place].encode()] for place in best], object)
        case EncoderKind.SCORE:
            arrays[SCORE] = values
    known = outputs_of(layout)
    for name, array in arrays.items():
        shaped = array if batched else array[0]
        yield Tensor(name, known[name][0], shaped.shape, array=shaped)
