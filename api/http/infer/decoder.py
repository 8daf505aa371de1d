"""Decodes infer requests with a memory, of bounded size, of the heads in which clients repeat themselves.

Rules:
 1. A head that describes binary tensors only, and names no request id and no shared memory, says the same every time:
    which slices of the bytes behind it are which tensors, and which outputs are wanted in which form. Clients send it
    again with other bytes behind it.
 2. Steps of sequences differ in the sequence's id, too. Where that stands plainly, and once, it is blanked before such
    a head is looked up or remembered, apart from the others: what a client sends is never taken for a blanked head.
    What was said with one id must be said with any: before it is remembered so, the head is read once more with another
    one of the same length.
 3. Everything else goes the long way, which also words all errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ....engine.datatypes import DataType
from ....engine.errors import TriremeError
from ....engine.memo import Memo
from ....engine.request import InferenceRequest, RequestForm
from ....engine.tensor import Buffer, Tensor
from ..json import reader as json_reader
from ..json.reader import LargeText, infer_places, members_of
from ..json.scan import refuse_parts
from .request import DecodedInfer, InferTerms, OutputForm, decode_document, decode_infer

_HEADS = 512
_HEAD_BYTES = 2_048
_COPIED_BYTES = 4_096
"""Of a body up to this size the tensors are copies: those are made faster than views."""
_SEQUENCE = b'"sequence_id"'
_SEQUENCE_ID = re.compile(_SEQUENCE + rb'[ ]?:[ ]?(?:([1-9][0-9]{0,17})|"([0-9A-Za-z_.-]{1,64})")(?=[,} ])')
"""An id that is within 64 bits, and not 0, which is none; or a text without escapes."""


@dataclass(frozen=True, slots=True)
class _Head:
    """What a head says, and how long a body is that begins with it. `tensors` are (name, datatype, shape, start, stop),
    offsets in the body. Requests share the form."""

    text: bytes
    nbytes: int
    tensors: tuple[tuple[str, DataType, tuple[int, ...], int, int], ...]
    request: InferenceRequest
    forms: Mapping[str, OutputForm]
    default_form: OutputForm
    form: RequestForm

    def decode(self, body: Buffer, model_name: str, version: int, correlation_id: int | str) -> DecodedInfer:
        said = self.request
        if len(body) > _COPIED_BYTES or type(body) is not bytes:
            body = memoryview(body)
        if len(self.tensors) == 1:
            ((name, kind, shape, start, stop),) = self.tensors
            inputs = [Tensor(name, kind, shape, body[start:stop])]
        else:
            inputs = [Tensor(name, kind, shape, body[start:stop]) for name, kind, shape, start, stop in self.tensors]
        request = InferenceRequest(
            model_name,
            version,
            "",
            inputs,
            said.requested_outputs,
            said.parameters.copy(),
            said.priority,
            said.timeout_us,
            correlation_id,
            said.sequence_start,
            said.sequence_end,
            self.form,
        )
        return DecodedInfer(request, self.forms, self.default_form)


class InferDecoder:
    """`decode_infer` with a memory."""

    def __init__(self, terms: InferTerms) -> None:
        self._terms = terms
        self._heads: Memo[_Head] = Memo(_HEADS, _HEAD_BYTES)
        self._steps: Memo[_Head] = Memo(_HEADS, _HEAD_BYTES)  # without their ids
        self._usual: _Head | None = None  # most requests have the head of the one before
        self._step = b""  # the last head of a step that was not known, without its id

    def decode(self, body: Buffer, json_length: int, model_name: str, version: int) -> DecodedInfer:
        """See `decode_infer`."""
        nbytes = len(body)
        head = self._usual
        if (
            head is not None
            and nbytes == head.nbytes
            and json_length == len(head.text)
            and type(body) is bytes
            and body.startswith(head.text)
        ):
            return head.decode(body, model_name, version, head.request.correlation_id)
        if not 0 < json_length <= _HEAD_BYTES or json_length == nbytes:
            return decode_infer(body, json_length, model_name, version, self._terms)
        text = bytes(memoryview(body)[:json_length])
        head = self._heads.get(text)
        if head is not None and head.nbytes == nbytes:
            self._usual = head
            return head.decode(body, model_name, version, head.request.correlation_id)
        step, blank = _SEQUENCE_ID.search(text) if _SEQUENCE in text else None, b""
        if step is not None:
            blank = _with_id(text, step, b"\0")
            head = self._steps.get(blank)
            if head is not None and head.nbytes == nbytes:
                return head.decode(body, model_name, version, _id_of(step))
        decoded = decode_infer(body, json_length, model_name, version, self._terms)
        heads = self._heads
        if step is not None and self._shared_by_ids(text, blank, step, decoded, memoryview(body)[json_length:]):
            heads, text = self._steps, blank
        if not decoded.request.id and not decoded.in_regions:
            _remember(heads, text, decoded, nbytes)
        return decoded

    def _shared_by_ids(
        self, text: bytes, blank: bytes, step: re.Match[bytes], decoded: DecodedInfer, blobs: memoryview
    ) -> bool:
        """Whether the head of a step is remembered without its id: if the one before was the same without its own, and
        it would say the same with another one (rule 2)."""
        repeated, self._step = self._step == blank, blank
        if not repeated or decoded.request.correlation_id != _id_of(step):
            return False
        other = _with_id(text, step, b"7")
        if other == text:
            other = _with_id(text, step, b"8")
        request, found = decoded.request, _SEQUENCE_ID.search(other)
        try:
            document = json_reader.parse(memoryview(other))
            again = decode_document(document, blobs, request.model_name, request.model_version, self._terms)
        except TriremeError:
            return False
        same_id = found is not None and again.request.correlation_id == _id_of(found)
        return same_id and _said(again) == _said(decoded)

    def decode_large(self, text: LargeText, blobs: memoryview, model_name: str, version: int) -> DecodedInfer:
        """See `decode_document`; may be called on a thread."""

        def decode(document: Any) -> DecodedInfer:
            given = [members_of(document).get(name) for name in ("parameters", "inputs", "outputs")]
            refuse_parts(sum(len(each) for each in given if isinstance(each, dict | list)))
            return decode_document(document, blobs, model_name, version, self._terms)

        return text.read(infer_places, decode)

    def __repr__(self) -> str:
        return f"<InferDecoder remembers {len(self._heads) + len(self._steps)} heads>"


def _remember(heads: Memo[_Head], text: bytes, decoded: DecodedInfer, nbytes: int) -> None:
    """Unless the head holds data itself: then there is more of it than the bytes behind."""
    tensors = []
    at = len(text)
    for tensor in decoded.request.inputs:
        tensors.append((tensor.name, tensor.datatype, tensor.shape, at, at + tensor.nbytes))
        at += tensor.nbytes
    if at != nbytes:
        return
    # Copies, so as not to keep the body alive, nor to see what a model does to its parameters.
    request = replace(decoded.request, inputs=[], parameters=dict(decoded.request.parameters))
    head = _Head(text, nbytes, tuple(tensors), request, decoded.forms, decoded.default_form, RequestForm())
    heads.remember(text, head)


def _with_id(text: bytes, step: re.Match[bytes], character: bytes) -> bytes:
    """A head with another id of the same length in its place."""
    start, end = step.span(step.lastindex or 0)
    return text[:start] + character * (end - start) + text[end:]


def _id_of(step: re.Match[bytes]) -> int | str:
    digits, name = step.groups()
    return int(digits) if digits is not None else name.decode()


def _said(decoded: DecodedInfer) -> tuple[Any, ...]:
    """What a request says, but for the id of its sequence."""
    request = decoded.request
    tensors = [(tensor.name, tensor.datatype, tensor.shape, tensor.nbytes) for tensor in request.inputs]
    about = replace(request, inputs=[], correlation_id=0)
    return about, tensors, decoded.forms, decoded.default_form, decoded.in_regions
