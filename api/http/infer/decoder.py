"""Remembers the JSON heads of infer requests, so that a client that repeats itself is decoded once.

A head that describes binary tensors only, and names no request id and no shared memory, says the same every time: which
slices of the bytes behind it are which tensors, and which outputs are wanted in which form. Clients send it again with
other bytes behind it, request after request. Everything else goes the long way, `decode_infer`, which also words all
errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ....engine.datatypes import DataType
from ....engine.errors import InvalidArgumentError
from ....engine.request import InferenceRequest
from ....engine.tensor import Buffer, Tensor
from ...memo import Memo
from ..json.large import LargeText, infer_places
from ..json.reader import members_of
from ..json.scan import refuse_parts
from .request import DecodedInfer, InferTerms, OutputForm, decode_document, decode_infer

_INTEGER = re.compile(r"[ \t]*([+-]?[0-9]+)")
_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
_HEADS = 512
_HEAD_BYTES = 2_048


@dataclass(frozen=True, slots=True)
class _Head:
    """What a head says. `tensors` are (name, datatype, shape, start, stop), offsets from the end of the head."""

    nbytes: int
    tensors: tuple[tuple[str, DataType, tuple[int, ...], int, int], ...]
    request: InferenceRequest
    forms: Mapping[str, OutputForm]
    default_form: OutputForm

    def decode(self, blobs: memoryview, model_name: str, version: int) -> DecodedInfer:
        said = self.request
        inputs = [Tensor(name, kind, shape, blobs[start:stop]) for name, kind, shape, start, stop in self.tensors]
        request = InferenceRequest(
            model_name,
            version,
            inputs=inputs,
            requested_outputs=said.requested_outputs,
            parameters=dict(said.parameters),
            priority=said.priority,
            timeout_us=said.timeout_us,
            correlation_id=said.correlation_id,
            sequence_start=said.sequence_start,
            sequence_end=said.sequence_end,
        )
        return DecodedInfer(request, self.forms, self.default_form)


class InferDecoder:
    """`decode_infer` with a memory of bounded size."""

    def __init__(self, terms: InferTerms) -> None:
        self._terms = terms
        self._heads: Memo[_Head] = Memo(_HEADS, _HEAD_BYTES)

    def decode(self, body: Buffer, json_length: int, model_name: str, version: int) -> DecodedInfer:
        """See `decode_infer`."""
        if not 0 < json_length <= _HEAD_BYTES or json_length == len(body):
            return decode_infer(body, json_length, model_name, version, self._terms)
        view = memoryview(body)
        text = bytes(view[:json_length])
        head = self._heads.get(text)
        if head is not None and head.nbytes == len(body) - json_length:
            return head.decode(view[json_length:], model_name, version)
        decoded = decode_infer(body, json_length, model_name, version, self._terms)
        if not decoded.request.id and not decoded.in_regions:
            self._remember(text, decoded, len(body) - json_length)
        return decoded

    def decode_large(self, text: LargeText, blobs: memoryview, model_name: str, version: int) -> DecodedInfer:
        """See `decode_document`; may be called on a thread."""

        def decode(document: Any) -> DecodedInfer:
            given = [members_of(document).get(name) for name in ("parameters", "inputs", "outputs")]
            refuse_parts(sum(len(each) for each in given if isinstance(each, dict | list)))
            return decode_document(document, blobs, model_name, version, self._terms)

        return text.read(infer_places, decode)

    def __repr__(self) -> str:
        return f"<InferDecoder remembers {len(self._heads)} heads>"

    def _remember(self, text: bytes, decoded: DecodedInfer, nbytes: int) -> None:
        """Unless the head holds data itself: then there is more of it than the bytes behind."""
        tensors = []
        at = 0
        for tensor in decoded.request.inputs:
            tensors.append((tensor.name, tensor.datatype, tensor.shape, at, at + tensor.nbytes))
            at += tensor.nbytes
        if at != nbytes:
            return
        # Copies, so as not to keep the body alive, nor to see what a model does to its parameters.
        request = replace(decoded.request, inputs=[], parameters=dict(decoded.request.parameters))
        self._heads.remember(text, _Head(nbytes, tuple(tensors), request, decoded.forms, decoded.default_form))


def header_length(text: bytes | None, body_length: int) -> int:
    """How many bytes of the body are JSON; 0 for a raw request.

    Args:
        text: the header ``Inference-Header-Content-Length``, None if there is none.

    Raises:
        InvalidArgumentError: it is not a number, or not one in range. As in Triton, what follows the number is ignored.
    """
    if text is None:
        return body_length
    if len(text) < 10 and text.isdigit():
        length = int(text)
        if length <= body_length:
            return length
    shown = text.decode("utf-8", "surrogateescape")
    number = _INTEGER.match(shown)
    if number is None:
        raise InvalidArgumentError(f"Unable to parse Inference-Header-Content-Length, got: {shown}")
    digits = number[1]
    # int() refuses texts of thousands of digits, and such a number is out of range anyway.
    length = int(digits) if len(digits) <= 4000 else _INT32_MAX + 1
    if not _INT32_MIN <= length <= _INT32_MAX:
        raise InvalidArgumentError(
            "Unable to parse Inference-Header-Content-Length, value is out of range "
            f"[ {_INT32_MIN}, {_INT32_MAX} ], got: {shown}"
        )
    if not 0 <= length <= body_length:
        raise InvalidArgumentError(f"inference header size should be in range (0, {body_length}), got: {shown}")
    return length
