"""A front end's server, over an engine that is a list of messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import trio
import trio.testing
from wired import wired

from trireme.actors.actor import Turn
from trireme.actors.offload import Offload
from trireme.actors.reply import Reply
from trireme.engine.config.model import ModelConfigMessage, model_config
from trireme.engine.datatypes import FP32
from trireme.engine.description import ModelDescription
from trireme.engine.errors import (
    NotFoundError,
)
from trireme.engine.memory.regions import Regions
from trireme.engine.options import ServerOptions
from trireme.engine.request import LATEST, InferenceRequest, InferenceResponse
from trireme.engine.tensor import Tensor
from trireme.front_ends import kinds
from trireme.front_ends.link import LinkHead
from trireme.front_ends.models import ModelTable, write_models
from trireme.front_ends.remote_server import RemoteServer
from trireme.front_ends.requests import RequestReader, SentRequest
from trireme.front_ends.responses import ResponseWriter
from trireme.python_backend.child.codec import Payload


def description(name: str, decoupled: bool) -> ModelDescription:
    message = ModelConfigMessage(name=name, backend="onnxruntime")
    message.input.add(name="IN", data_type=11, dims=[4])
    message.output.add(name="OUT", data_type=11, dims=[4])
    message.model_transaction_policy.decoupled = decoupled
    return ModelDescription(name, 1, (1,), model_config(message), {})


MODELS = {name: description(name, name == "many") for name in ("one", "many")}


def describe(name: str, version: int) -> ModelDescription:
    if name not in MODELS or version not in (LATEST, 1):
        raise NotFoundError(f"Request for unknown model: '{name}' is not found")
    return MODELS[name]


class World:
    """A front end, and what the engine has got of it.

    Attributes:
        got: messages that came, and were not looked at.
        room: how many more the link takes.
    """

    def __init__(self, turn: Turn) -> None:
        self.got: list[tuple[list[Any], memoryview]] = []
        self.room = 1_000
        self.turn = turn
        readiness: Any = None
        self.server = RemoteServer(self._send, turn, readiness, Offload(), ServerOptions())
        self.table = ModelTable(describe, lambda name: [1] if name in MODELS else None)
        for name in MODELS:
            self.table.touch(name)
        self.reader = RequestReader(self.table.get, Regions(lambda: None))
        self.writer = ResponseWriter()
        for message in write_models(1, self.table.refresh()):
            self.say(*message)
        self.say((kinds.STATE, False, False, False))

    def _send(self, head: LinkHead, payload: Payload) -> bool:
        if not self.room:
            return False
        self.room -= 1
        self.got.append(wired(head, payload))
        return True

    def say(self, head: LinkHead, payload: Payload | None = None) -> None:
        """The engine says something."""
        with self.turn:
            self.server.received(*wired(head, payload))

    def take(self, kind: int) -> list[Any]:
        """The next message, which is of this kind."""
        head, _ = self.got.pop(0)
        assert head[0] == kind
        return head

    def take_request(self) -> SentRequest:
        head, payload = self.got.pop(0)
        assert head[0] == kinds.ADMIT
        return self.reader.read(head, payload)

    def answer(
        self, number: int, outcome: Any, request_id: str = "", *, final: bool = True, accepted: bool = True
    ) -> None:
        self.say(*self.writer.write(number, request_id, outcome, final=final, accepted=accepted))


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        turn = Turn()
        nursery.start_soon(turn.keep_running)
        yield World(turn)
        nursery.cancel_scope.cancel()


def request(name: str = "one", request_id: str = "") -> InferenceRequest:
    return InferenceRequest(name, LATEST, request_id, [Tensor("IN", FP32, (4,), None, np.ones(4, np.float32))])


def response(value: float, request_id: str = "") -> InferenceResponse:
    data = np.full(4, value, np.float32)
    return InferenceResponse("one", 1, request_id, [Tensor("OUT", FP32, (4,), None, data)])


def admit(server: RemoteServer, name: str = "one", request_id: str = "") -> Reply:
    reply = server.admit_nowait(request(name, request_id), model=server.describe(name))
    assert reply is not None
    return reply
