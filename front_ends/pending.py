"""A request of a front end that is not answered yet, as its port knows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import trio

from ..actors.reply import Reply
from ..engine.datatypes import BYTES
from ..engine.job import Outcome
from ..engine.memory.regions import RegionSlice
from ..engine.memory.tensors import RegionTensor, is_in_place, put_in_place
from ..engine.request import InferenceResponse


class Answerer(Protocol):
    """Sends the answers of requests; see `Port`."""

    def answer_at_once(self, pending: PendingRequest, accepted: bool, outcome: Outcome, final: bool) -> bool: ...
    def answer(self, pending: PendingRequest) -> None: ...


class PendingRequest:
    """See the module.

    Attributes:
        name: the client's own for it.
        reply: None while it waits to be admitted, and if it was refused before.
        scope: of the task that waits for room for it.
        follows: the front end is to be told when it is accepted, which it has asked for meanwhile.
        places: where in shared memory the client wants outputs, by name.
        unsent: answers that are not sent.
        owed: answers that were sent and that the client has not taken.
        packed: the last answer that a thread has packed or copied (`arena.stage`); with `packs`, it is still at it.
    """

    # Most requests have none of these, so they are not set for each.
    reply: Reply | None = None
    scope: trio.CancelScope | None = None
    follows = False
    places: Mapping[str, RegionSlice] | None = None
    unsent: Sequence[tuple[Outcome, bool]] = ()
    owed = 0
    packed: Outcome = None
    packs = False

    def __init__(self, port: Answerer, number: int, name: str) -> None:
        self.port = port
        self.number = number
        self.name = name

    def answered(self, reply: Reply) -> None:
        """The reply has something to fetch."""
        answers = reply.fetch()
        if len(answers) == 1 and not self.unsent and self.port.answer_at_once(self, reply.accepted, *answers[0]):
            return
        self.unsent = [*self.unsent, *answers]
        self.port.answer(self)


def bytes_to_place(response: InferenceResponse, places: Mapping[str, RegionSlice]) -> int:
    """How much `placed` would copy."""
    nbytes = 0
    for tensor in response.outputs:
        place = places.get(tensor.name)
        if place is not None and not is_in_place(tensor, place):
            packs = tensor.datatype is BYTES and not isinstance(tensor, RegionTensor) and not tensor.has_buffer
            nbytes += 0 if packs else tensor.nbytes
    return nbytes


def placed(response: InferenceResponse, places: Mapping[str, RegionSlice]) -> InferenceResponse:
    """A response whose outputs are in shared memory where the client wants them there."""
    outputs = []
    for tensor in response.outputs:
        place = places.get(tensor.name)
        if place is not None:
            nbytes = len(tensor.buffer) if not isinstance(tensor, RegionTensor) else tensor.nbytes
            put_in_place(tensor, place)
            tensor = RegionTensor(tensor.name, tensor.datatype, tensor.shape, place.first(nbytes))
        outputs.append(tensor)
    return InferenceResponse(response.model_name, response.model_version, response.id, outputs, response.parameters)
