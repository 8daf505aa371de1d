"""A link to a replica, and what it tells."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import numpy as np
import trio

from trireme.actors.actor import Turn
from trireme.actors.socket_readiness import Readiness
from trireme.api.grpc.replica.link import GrpcReplicaLink
from trireme.engine.datatypes import FP32
from trireme.engine.errors import TriremeError
from trireme.engine.job import Outcome
from trireme.engine.request import InferenceRequest, InferenceResponse
from trireme.engine.tensor import Tensor

PATIENCE_S = 30.0


class Told:
    """What a link tells of one request.

    Attributes:
        answers: with whether each was final.
        error: what the request has failed with; None if it has not.
        executed: whether it may have been executed.
        number: of the request on the link.
        on_answer: called with each answer.
    """

    def __init__(self) -> None:
        self.answers: list[tuple[Outcome, bool]] = []
        self.error: TriremeError | None = None
        self.executed: bool | None = None
        self.number = 0
        self.on_answer: Callable[[], None] = lambda: None
        self._change = trio.lowlevel.ParkingLot()

    @property
    def is_over(self) -> bool:
        return self.error is not None or (bool(self.answers) and self.answers[-1][1])

    def answered(self, outcome: Outcome, final: bool) -> None:
        assert not self.is_over, "told after the end"
        self.answers.append((outcome, final))
        self._change.unpark_all()
        self.on_answer()

    def failed(self, error: TriremeError, executed: bool) -> None:
        assert not self.is_over, "told after the end"
        self.error = error
        self.executed = executed
        self._change.unpark_all()

    async def until(self, condition: Callable[[Told], object]) -> None:
        with trio.fail_after(PATIENCE_S):
            while not condition(self):
                await self._change.park()

    async def over(self) -> Told:
        await self.until(lambda told: told.is_over)
        return self

    @property
    def response(self) -> Any:
        """The only answer."""
        assert self.error is None, self.error
        ((response, final),) = self.answers
        assert final
        return response

    @property
    def values(self) -> list[list[float]]:
        """Of the first output of each answer."""
        return [
            each.outputs[0].array.ravel().tolist() for each, _ in self.answers if isinstance(each, InferenceResponse)
        ]


class Events:
    """What a link tells its owner: `told` has it, in order."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self._change = trio.lowlevel.ParkingLot()

    def _tell(self, what: Any) -> None:
        self.told.append(what)
        self._change.unpark_all()

    def connected(self) -> None:
        self._tell("connected")

    def lost(self, why: str) -> None:
        self._tell(("lost", why))

    def report(self, document: dict[str, Any]) -> None:
        self._tell(("report", document))

    def unreported(self, why: str) -> None:
        self._tell(("unreported", why))

    def room(self) -> None:
        self._tell("room")

    async def until(self, condition: Callable[[list[Any]], object]) -> None:
        with trio.fail_after(PATIENCE_S):
            while not condition(self.told):
                await self._change.park()

    async def connects(self, times: int = 1) -> None:
        await self.until(lambda told: told.count("connected") >= times)

    def of_kind(self, kind: str) -> list[Any]:
        return [what[1] for what in self.told if isinstance(what, tuple) and what[0] == kind]


class LinkedReplica:
    """A running link, its turn, and what it tells.

    Attributes:
        calls: what is told of each request, in order.
    """

    def __init__(self, link: GrpcReplicaLink, turn: Turn, events: Events) -> None:
        self.link = link
        self.turn = turn
        self.events = events

    def infer(self, request: InferenceRequest, decoupled: bool = False) -> Told:
        told = Told()
        with self.turn:
            told.number = self.link.infer(request, decoupled, told)
        return told

    def cancel(self, told: Told) -> None:
        with self.turn:
            self.link.cancel(told.number)

    def taken(self, told: Told, count: int) -> None:
        with self.turn:
            self.link.taken(told.number, count)


@asynccontextmanager
async def linked(address: str, *, connects: bool = True, **options: Any) -> AsyncIterator[LinkedReplica]:
    """A link to this address. It has connected, unless it is not said that it `connects`."""
    async with trio.open_nursery() as nursery:
        turn = Turn()
        nursery.start_soon(turn.keep_running)
        readiness = Readiness(nursery.start_soon, turn)
        events = Events()
        link = GrpcReplicaLink(address, turn, readiness, events, Random(1), **options)
        nursery.start_soon(link.run)
        if connects:
            await events.connects()
        yield LinkedReplica(link, turn, events)
        nursery.cancel_scope.cancel()


def request_of(model: str = "plain", values: Any = (1.0,), script: str = "", **given: Any) -> InferenceRequest:
    """A request for a scripted model."""
    array = np.array(values, np.float32)
    parameters = {**given.pop("parameters", {}), **({"script": script} if script else {})}
    tensor = Tensor("IN", FP32, array.shape, array=array)
    return InferenceRequest(model, inputs=[tensor], parameters=parameters, **given)
