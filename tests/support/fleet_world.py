"""A gateway over replicas that are lists of what was asked of them, and a router that does as it is told."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import trio

from trireme.actors.actor import Turn
from trireme.actors.fleet_report import write_description
from trireme.actors.offload import Offload
from trireme.engine.clock import SystemClock
from trireme.engine.config.chat import ChatTemplate
from trireme.engine.config.model import ModelConfigMessage, model_config
from trireme.engine.datatypes import FP32
from trireme.engine.description import ModelDescription
from trireme.engine.errors import TriremeError, UnavailableError
from trireme.engine.fleet.types import (
    AttemptEnd,
    FleetDecision,
    FleetRequest,
    Refuse,
    ReplicaReport,
    SendTo,
    WaitForReplica,
)
from trireme.engine.options import ServerOptions
from trireme.engine.request import InferenceRequest, InferenceResponse
from trireme.engine.tensor import Tensor
from trireme.engine.tracing import TraceConfig, Tracer
from trireme.gateway.links import LinkEvents, ReplicaCall
from trireme.gateway.server import FleetServer


def describe(
    name: str,
    version: int = 1,
    *,
    dims: int = 4,
    decoupled: bool = False,
    versions: tuple[int, ...] = (1,),
    chat: ChatTemplate | None = None,
    adapters: tuple[str, ...] = (),
) -> ModelDescription:
    message = ModelConfigMessage(name=name, backend="onnxruntime")
    message.input.add(name="IN", data_type=11, dims=[dims])
    message.output.add(name="OUT", data_type=11, dims=[dims])
    message.model_transaction_policy.decoupled = decoupled
    return ModelDescription(name, version, versions, model_config(message), {}, chat=chat, adapters=adapters)


def row(name: str, *described: ModelDescription, **errors: list[Any]) -> dict[str, Any]:
    """What a report says of a name; `errors` by ``v`` and the version."""
    results: dict[int, Any] = {each.version: write_description(each) for each in described}
    failed = {int(key[1:]): error for key, error in errors.items()}
    latest = results[max(results)] if results else next(iter(failed.values()))
    return {"name": name, "latest": latest, "others": None, "versions": list((results | failed).items())}


def gone(name: str) -> dict[str, Any]:
    return {"name": name, "gone": True}


def report(*rows: dict[str, Any], everything: bool = True, state: str = "ready", **more: Any) -> dict[str, Any]:
    about = {"server": "epoch", "generation": 1, "state": state, "loads": {}, "inflight": 0, "capacity": 1}
    return {**about, "all": everything, "models": list(rows), **more}


def request(name: str = "one", **given: Any) -> InferenceRequest:
    data = np.arange(4, dtype=np.float32)
    return InferenceRequest(name, inputs=[Tensor("IN", FP32, (4,), None, data)], **given)


def response(value: float = 1.0) -> InferenceResponse:
    return InferenceResponse("one", 1, "", [Tensor("OUT", FP32, (1,), None, np.array([value], np.float32))])


class FakeLink:
    """A replica's link.

    Attributes:
        calls: requests that came, by number.
        answers: what `ask` gives, or raises, by method.
    """

    def __init__(self, address: str, events: LinkEvents) -> None:
        self.address = address
        self.events = events
        self.calls: dict[int, tuple[InferenceRequest, bool, ReplicaCall]] = {}
        self.cancelled: list[int] = []
        self.took: list[tuple[int, int]] = []
        self.asked: list[tuple[str, bytes]] = []
        self.answers: dict[str, bytes | TriremeError | Callable[[bytes], bytes]] = {}
        self.room = True
        self.runs = False
        self.refuses: TriremeError | None = None

    async def run(self) -> None:
        self.runs = True
        try:
            await trio.sleep_forever()
        finally:
            self.runs = False

    def has_room(self) -> bool:
        return self.room

    def infer(self, request: InferenceRequest, decoupled: bool, call: ReplicaCall) -> int:
        number = len(self.calls) + len(self.cancelled) + 1
        self.calls[number] = request, decoupled, call
        if self.refuses is not None:
            call.failed(self.refuses, False)
        return number

    def cancel(self, sent: int) -> None:
        del self.calls[sent]
        self.cancelled.append(sent)

    def taken(self, sent: int, count: int) -> None:
        self.took.append((sent, count))

    async def ask(self, method: str, message: bytes, timeout_s: float) -> bytes:
        self.asked.append((method, message))
        await trio.lowlevel.checkpoint()
        answer = self.answers.get(method.rpartition("/")[2], b"")
        if isinstance(answer, TriremeError):
            raise answer
        return answer(message) if callable(answer) else answer


class ScriptedRouter:
    """Sends to `target`; None has requests wait.

    Attributes:
        after: what `settle` decides, made of the attempt; the first one is used once.
        told: everything that it heard.
    """

    def __init__(self) -> None:
        self.target: str | None = "a"
        self.refusal: TriremeError | None = None
        self.after: list[Callable[[SendTo], FleetDecision | None]] = []
        self.told: list[tuple[Any, ...]] = []
        self.ends: list[AttemptEnd] = []
        self.reports: dict[str, ReplicaReport] = {}
        self.asked: list[FleetRequest] = []
        self.due: list[FleetDecision] = []
        self.due_s = math.inf
        self.sequences: dict[str, int] = {}

    def _tell(self, *what: Any) -> None:
        self.told.append(what)

    def join(self, replica: str, now_s: float, weight: float = 1.0) -> None:
        self._tell("join", replica, weight)

    def leave(self, replica: str, now_s: float) -> None:
        self._tell("leave", replica)

    def connected(self, replica: str, now_s: float) -> None:
        self._tell("connected", replica)

    def lost(self, replica: str, now_s: float) -> None:
        self._tell("lost", replica)

    def room(self, replica: str, has_room: bool, now_s: float) -> None:
        self._tell("room", replica, has_room)

    def report(self, replica: str, report: ReplicaReport, now_s: float) -> None:
        self.reports[replica] = report

    def sequences_at(self, replica: str) -> int:
        return self.sequences.get(replica, 0)

    def place(self, request: FleetRequest, now_s: float) -> FleetDecision:
        self.asked.append(request)
        if self.refusal is not None:
            return Refuse(request, self.refusal)
        if self.target is None:
            return WaitForReplica(request, now_s + 5)
        return SendTo(request, self.target)

    def settle(self, sent: SendTo, end: AttemptEnd, now_s: float) -> FleetDecision | None:
        self.ends.append(end)
        return self.after.pop(0)(sent) if self.after else None

    def cancel(self, request: FleetRequest, now_s: float) -> None:
        self._tell("cancel", request.name)

    def tick(self, now_s: float) -> Sequence[FleetDecision]:
        due, self.due, self.due_s = self.due, [], math.inf
        return due


class FleetWorld:
    """A gateway.

    Attributes:
        links: by replica.
    """

    def __init__(self, server: FleetServer, router: Any, links: dict[str, FakeLink], turn: Turn) -> None:
        self.server = server
        self.router = router
        self.links = links
        self.turn = turn

    async def join(self, name: str, *rows: dict[str, Any], address: str = "", **more: Any) -> FakeLink:
        """A replica that is connected, and reports these models."""
        await self.server.join(name, address or f"{name}:1", 1.0)
        link = self.links[name] = self.links.pop(address or f"{name}:1")
        with self.turn:
            link.events.connected()
            link.events.report(report(*rows, **more))
        return link

    def tell(self, name: str, *rows: dict[str, Any], **more: Any) -> None:
        with self.turn:
            self.links[name].events.report(report(*rows, **more))

    def answer(self, name: str, number: int = 0, value: float = 1.0, final: bool = True) -> None:
        """One of a replica's requests is answered; without a number, the newest."""
        number = number or max(self.links[name].calls)
        with self.turn:
            self.links[name].calls[number][2].answered(response(value), final)

    def fail(self, name: str, error: TriremeError | None = None, executed: bool = True) -> None:
        with self.turn:
            self.links[name].calls[max(self.links[name].calls)][2].failed(
                error or UnavailableError("it is lost"), executed
            )


@asynccontextmanager
async def opened_fleet(router: Any = None, **options: Any) -> AsyncIterator[FleetWorld]:
    """A gateway without replicas."""
    turn = Turn()
    links: dict[str, FakeLink] = {}

    def start_link(address: str, events: LinkEvents) -> FakeLink:
        links[address] = FakeLink(address, events)
        return links[address]

    router = router or ScriptedRouter()
    clock = SystemClock(trio.current_time)
    readiness: Any = None
    tracer = Tracer(TraceConfig(), clock, _NoTraces())
    about = ServerOptions(**options)
    server = FleetServer(router, turn, readiness, Offload(), about, tracer, clock, start_link)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn.keep_running)
        await nursery.start(server.run)
        yield FleetWorld(server, router, links, turn)
        nursery.cancel_scope.cancel()


class _NoTraces:
    def collect(self, trace: Any) -> None:
        """Nothing is traced."""

    def retire(self, setting: Any) -> None:
        """Nothing is traced."""


ONE = row("one", describe("one"))
MANY = row("many", describe("many", decoupled=True))
