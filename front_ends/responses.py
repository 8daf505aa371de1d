"""Answers on their way from the engine to a front end (`kinds.ANSWER`, `kinds.OUTCOME`).

The usual one is the final response to an accepted request, without parameters and under the request's own id: that is
``ANSWER``. Its spec (`slots`) is ``[model, version, outputs]``. An output is ``[name, datatype, shape, bytes]``; one
that the engine has put where its client wants it, in shared memory, is ``[..., 0]``, and has no bytes in the payload.

The body of an ``OUTCOME`` is None, an error (`values.write_error`), or ``[spec, id, parameters]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..engine.datatypes import BYTES
from ..engine.errors import TriremeError
from ..engine.job import Outcome
from ..engine.memory.regions import RegionSlice
from ..engine.memory.tensors import RegionTensor
from ..engine.request import InferenceResponse
from ..engine.tensor import Tensor
from ..python_backend.child.codec import Payload
from .arena import ArenaLender
from .kinds import ANSWER, OUTCOME
from .link import INLINE_BYTES, LinkHead
from .slots import Slots, Specs, TensorSpec, aligned, check_payload, read_tensor, read_tensors
from .values import (
    broken,
    read_bool,
    read_error,
    read_integer,
    read_list,
    read_parameters,
    read_text,
    write_error,
    write_parameters,
    write_text,
)

_NO_PLACES: Mapping[str, RegionSlice] = {}


class ResponseWriter:
    """The engine's end, for one front end.

    Args:
        lender: of segments in which outputs may lie already, as a payload has them (`arena.stage`).
    """

    __slots__ = ("_lender", "_specs")

    def __init__(self, lender: ArenaLender | None = None) -> None:
        self._lender = lender
        self._specs = Specs()

    def write(
        self, number: int, request_id: str, outcome: Outcome, *, final: bool = True, accepted: bool = True
    ) -> tuple[LinkHead, Payload]:
        """The message that an answer becomes.

        Args:
            number, request_id: of the request.
            accepted: the request was, before it was answered.
        """
        payload = Payload()
        if not isinstance(outcome, InferenceResponse):
            body = None if outcome is None else write_error(outcome)
            return (OUTCOME, number, final, accepted, body), payload
        key: tuple[object, ...] = (outcome.model_name, outcome.model_version)
        add = payload.add
        for tensor in outcome.outputs:
            if tensor.__class__ is Tensor:
                buffer = tensor.buffer
                add(buffer)
                key += tensor.name, tensor.datatype, tensor.shape, len(buffer)
            else:
                key += tensor.name, tensor.datatype, tensor.shape, tensor.nbytes, 0
        if payload.nbytes > INLINE_BYTES:
            payload = self._lent(outcome, payload)
        usual = final and accepted and not outcome.parameters and outcome.id == request_id
        slot = self._specs.numbers.get(key) if usual else None
        if slot is not None:
            return (ANSWER, number, slot), payload
        spec = [write_text(outcome.model_name), outcome.model_version, [_written(tensor) for tensor in outcome.outputs]]
        if usual:
            return (ANSWER, number, *self._specs.fill(key, spec)), payload
        body = [spec, write_text(outcome.id), write_parameters(outcome.parameters)]
        return (OUTCOME, number, final, accepted, body), payload

    def _lent(self, response: InferenceResponse, payload: Payload) -> Payload:
        """The payload, or the same where it lies in a segment already."""
        lent = None
        plain = [tensor for tensor in response.outputs if tensor.__class__ is Tensor]
        if self._lender is not None:
            lent = self._lender.segment_of([tensor.buffer for tensor in plain])
        if lent is not None:
            at = 0
            for tensor, offset in zip(plain, lent.offsets, strict=True):
                if offset != at:
                    return payload
                at = aligned(at + tensor.nbytes)
        return payload if lent is None else lent

    def write_usual(self, number: int, request_id: str, outcome: Outcome) -> tuple[LinkHead, Payload] | None:
        """The message that a final answer to an accepted request becomes, if nothing is new in it but the contents of
        small tensors; else None, and it is for `write`."""
        if not isinstance(outcome, InferenceResponse) or outcome.parameters or outcome.id != request_id:
            return None
        key: tuple[object, ...] = (outcome.model_name, outcome.model_version)
        payload = Payload()
        for tensor in outcome.outputs:
            if tensor.__class__ is not Tensor or (tensor.datatype is BYTES and not tensor.has_buffer):
                return None
            buffer = tensor.buffer
            payload.add(buffer)
            key += tensor.name, tensor.datatype, tensor.shape, len(buffer)
        slot = self._specs.numbers.get(key)
        if slot is None or payload.nbytes > INLINE_BYTES:
            return None
        return (ANSWER, number, slot), payload

    def unsent(self) -> None:
        """The last message was not sent."""
        self._specs.unsent()


def _written(tensor: Tensor) -> list[Any]:
    written = [write_text(tensor.name), tensor.datatype.number, list(tensor.shape), tensor.nbytes]
    return [*written, 0] if isinstance(tensor, RegionTensor) else written


class _Template:
    """What a spec says.

    Attributes:
        outputs: in order, each with whether it is in its place.
        nbytes: of the payload.
    """

    __slots__ = ("model_name", "nbytes", "outputs", "placed", "version")

    def __init__(self, spec: Any) -> None:
        name, version, outputs = read_list(spec, 3, 3)
        self.model_name = read_text(name)
        self.version = read_integer(version, -(2**63))
        self.outputs: list[TensorSpec] = []
        placed: set[int] = set()
        at = end = 0
        for index, each in enumerate(read_tensors(outputs)):
            tensor = read_tensor(each, at)
            if len(each) == 5:
                placed.add(index)
            elif len(each) == 4:
                end = tensor.end
                at = aligned(end)
            else:
                raise broken("an output", each)
            self.outputs.append(tensor)
        self.nbytes = end
        self.placed = frozenset(placed)

    def response(self, request_id: str, payload: memoryview, places: Mapping[str, RegionSlice]) -> InferenceResponse:
        check_payload(payload, self.nbytes)
        outputs = self.outputs
        if self.placed:
            tensors = [self._output(index, payload, places) for index in range(len(outputs))]
        else:
            tensors = [Tensor(name, kind, shape, payload[start:end]) for name, kind, shape, start, end in outputs]
        return InferenceResponse(self.model_name, self.version, request_id, tensors)

    def _output(self, index: int, payload: memoryview, places: Mapping[str, RegionSlice]) -> Tensor:
        output = self.outputs[index]
        if index not in self.placed:
            return output.tensor(payload)
        place = places.get(output.name)
        if place is None:
            raise broken("an output for which there is a place", output.name)
        return RegionTensor(output.name, output.datatype, output.shape, place.first(output.end - output.start))


class Answered(NamedTuple):
    """An answer that has come from the engine."""

    outcome: Outcome
    final: bool
    accepted: bool


class ResponseReader:
    """A front end's end."""

    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots: Slots[_Template] = Slots()

    def read_answer(
        self, head: list[Any], payload: memoryview, request_id: str, places: Mapping[str, RegionSlice] | None
    ) -> InferenceResponse:
        """The response that an ``ANSWER`` holds.

        Args:
            places: that the request has named for outputs.

        Raises:
            LinkError: it holds none; here and below.
        """
        count = len(head)
        if count == 3:
            template = self._slots.get(head[2])
        else:
            _, _, slot, spec = read_list(head, 4, 4)
            template = _Template(spec)
            self._slots.fill(slot, template, (template.model_name,), template.outputs)
        return template.response(request_id, payload, places or _NO_PLACES)

    def read_outcome(self, head: list[Any], payload: memoryview, places: Mapping[str, RegionSlice] | None) -> Answered:
        """What an ``OUTCOME`` holds."""
        _, _, final, accepted, body = read_list(head, 5, 5)
        return Answered(_read_body(body, payload, places or _NO_PLACES), read_bool(final), read_bool(accepted))


def _read_body(body: Any, payload: memoryview, places: Mapping[str, RegionSlice]) -> Outcome:
    if body is None:
        return None
    parts = read_list(body, 3, 7)
    if parts[0].__class__ is not list:
        error: TriremeError = read_error(parts)
        return error
    spec, request_id, parameters = read_list(parts, 3, 3)
    response = _Template(spec).response(read_text(request_id), payload, places)
    response.parameters = read_parameters(parameters)
    return response
