"""A front end's server, over an engine that is a list of messages."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from wired import JSON, wired

from trireme.actors.actor import Turn
from trireme.actors.offload import Offload
from trireme.actors.reply import Reply
from trireme.engine import tensor as tensor_module
from trireme.engine.config.model import ModelConfigMessage, model_config
from trireme.engine.datatypes import BYTES, FP32
from trireme.engine.description import ModelDescription
from trireme.engine.errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    RefusalReason,
    TriremeError,
    UnavailableError,
)
from trireme.engine.memory.regions import Regions
from trireme.engine.options import ServerOptions
from trireme.engine.request import LATEST, InferenceRequest, InferenceResponse
from trireme.engine.tensor import Tensor
from trireme.engine.tracing.record import Activity
from trireme.front_ends import kinds
from trireme.front_ends.calls import write_result
from trireme.front_ends.link import LinkError, LinkHead
from trireme.front_ends.models import ModelTable, write_models
from trireme.front_ends.refusals import read_refusals
from trireme.front_ends.remote_server import RemoteServer
from trireme.front_ends.requests import RequestReader, SentRequest
from trireme.front_ends.responses import ResponseWriter
from trireme.front_ends.traces import read_notes
from trireme.front_ends.values import write_error
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
        self.table = ModelTable(describe, lambda: {name: [1] for name in MODELS})
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


async def test_a_request_and_its_answer() -> None:
    async with world() as there:
        for number in range(1, 4):
            reply = admit(there.server, request_id=f"r{number}")
            sent = there.take_request()
            assert sent.description is MODELS["one"]
            assert (sent.number, sent.request.id) == (number, f"r{number}")
            heard: list[Reply] = []
            reply.notify(heard.append)
            assert not heard
            there.answer(number, response(number, f"r{number}"), f"r{number}")
            assert heard == [reply]
            assert reply.accepted
            assert list(reply.answer().outputs[0].array) == [number] * 4
            assert reply.answer().id == f"r{number}"
        assert "0 in flight" in repr(there.server)


async def test_a_refusal_is_the_answer_of_a_request_that_was_not_accepted() -> None:
    async with world() as there:
        reply = admit(there.server)
        there.answer(1, UnavailableError("full"), accepted=False)
        assert (reply.final, reply.accepted) == (True, False)
        with pytest.raises(UnavailableError, match="full"):
            reply.answer()
        failed = admit(there.server)
        there.answer(2, InternalError("broken"))
        assert (failed.final, failed.accepted) == (True, True)


async def test_a_model_that_there_is_not_is_refused_here() -> None:
    async with world() as there:
        for ask in (
            lambda: there.server.describe("two"),
            lambda: there.server.admit_nowait(request("two")),
            lambda: there.server.check_room("two"),
        ):
            with pytest.raises(NotFoundError, match="'two' is not found"):
                ask()
        there.server.check_room("one")
        assert not there.got


async def test_who_gives_up_tells_the_engine_once() -> None:
    async with world() as there:
        async with trio.open_nursery() as nursery:
            reply = admit(there.server)
            nursery.start_soon(reply.response)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        there.take_request()
        assert there.take(kinds.CANCEL) == [kinds.CANCEL, 1]
        there.answer(1, response(1))
        reply.cancel()
        assert not there.got


async def test_a_link_without_room_takes_nothing_and_loses_nothing() -> None:
    async with world() as there:
        first = admit(there.server)
        there.take_request()
        there.room = 0
        assert there.server.admit_nowait(request()) is None
        first.cancel()  # is not lost
        replies: list[Reply] = []

        async def wait(request_id: str) -> None:
            replies.append(await there.server.admit(request(request_id=request_id)))

        async with trio.open_nursery() as nursery:
            for request_id in ("a", "b"):
                nursery.start_soon(wait, request_id)
                await trio.testing.wait_all_tasks_blocked()
            there.room = 2
            there.server.room()
            await trio.testing.wait_all_tasks_blocked()
            assert there.take(kinds.CANCEL) == [kinds.CANCEL, 1]
            assert there.take_request().request.id == "a"
            assert len(replies) == 1
            there.room = 10
            there.server.room()
        assert there.take_request().request.id == "b"
        assert there.server.admit_nowait(request()) is not None


async def test_while_requests_wait_for_room_at_the_engine_no_more_are_sent() -> None:
    async with world() as there:
        there.say((kinds.HELD, 1))
        assert there.server.admit_nowait(request()) is None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(there.server.admit, request(request_id="waited"))
            await trio.testing.wait_all_tasks_blocked()
            assert not there.got
            there.say((kinds.HELD, 0))
            assert there.server.admit_nowait(request(request_id="late")) is not None
        assert [there.take_request().request.id for _ in range(2)] == ["waited", "late"]


async def test_who_waits_for_room_and_is_cancelled_closes_its_lease() -> None:
    async with world() as there:
        there.say((kinds.HELD, 1))
        lease = there.server.lease("one")
        with trio.move_on_after(0):
            await there.server.admit(request(), lease)
        with pytest.raises(AssertionError, match="closed"):
            lease.grow_nowait(1)


async def test_a_lease_grows_when_the_engine_grants_it_and_goes_with_its_request() -> None:
    async with world() as there:
        lease = there.server.lease("one", 1, "1.2.3.4")
        assert not there.got
        assert not lease.grow_nowait(10)
        hurried: list[bool] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lease.grow, 10)
            await trio.testing.wait_all_tasks_blocked()
            assert there.take(kinds.GROW) == [kinds.GROW, 1, 10, "one", 1, "1.2.3.4"]
            there.say((kinds.GRANTED, 1, 10))
        assert lease.nbytes == 10
        lease.watch(lambda: hurried.append(True))
        assert not hurried
        there.say((kinds.WANTED, 1))
        assert hurried == [True]
        lease.arrived()
        assert there.take(kinds.ARRIVED) == [kinds.ARRIVED, 1]
        reply = there.server.admit_nowait(request(), lease=lease)
        assert reply is not None
        assert lease.admitted
        assert there.take_request().lease == 1
        there.answer(1, response(1))
        assert not there.got  # the engine has ended its own
        there.say((kinds.GRANTED, 1, 10))  # of a lease that is over


async def test_a_lease_that_no_request_takes_is_closed() -> None:
    async with world() as there:
        lease = there.server.lease()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lease.grow, 10)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        there.take(kinds.GROW)
        there.say((kinds.GRANTED, 1, 10))
        lease.close()
        assert [head[0] for head, _ in there.got] == [kinds.ARRIVED, kinds.CLOSE]
        unknown = there.server.lease()
        unknown.close()
        assert len(there.got) == 2


async def test_answers_of_many_are_counted_as_they_are_taken() -> None:
    async with world() as there:
        reply = admit(there.server, "many")
        there.take_request()
        seen: list[tuple[float, bool]] = []

        def take(_reply: Reply) -> None:
            for outcome, final in reply.take():
                assert isinstance(outcome, InferenceResponse | None)
                seen.append((outcome.outputs[0].array[0] if outcome else -1, final))

        there.answer(1, response(1), final=False)
        reply.notify_each(take)
        there.answer(1, response(2), final=False)
        there.answer(1, response(3), final=False)
        there.answer(1, None)
        assert seen == [(1, False), (2, False), (3, False), (-1, True)]
        assert sum(head[2] for head, _ in there.got if head[:2] == [kinds.TAKEN, 1]) >= 3
        assert "0 in flight" in repr(there.server)


async def test_who_asks_is_told_when_a_request_is_accepted() -> None:
    async with world() as there:
        reply = admit(there.server, "many")
        there.take_request()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reply.admitted)
            await trio.testing.wait_all_tasks_blocked()
            assert there.take(kinds.FOLLOW) == [kinds.FOLLOW, 1]
            there.say((kinds.ACCEPTED, 1))
        there.say((kinds.ACCEPTED, 1))
        refused = admit(there.server)
        with trio.fail_after(1):
            there.answer(2, UnavailableError("full"), accepted=False)
            with pytest.raises(UnavailableError):
                await refused.admitted()


async def test_calls_are_answered_in_any_order_and_can_be_given_up() -> None:
    async with world() as there:
        given_up = trio.CancelScope()
        results: list[Any] = []

        async def ask(version: int) -> None:
            try:
                results.append(await there.server.management.model_ready("one", version))
            except TriremeError as error:
                results.append(error.message)

        async def give_up() -> None:
            with given_up:
                await there.server.management.live()

        async with trio.open_nursery() as nursery:
            for version in (1, 2):
                nursery.start_soon(ask, version)
                await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(give_up)
            await trio.testing.wait_all_tasks_blocked()
            assert [head for head, _ in there.got] == [
                [kinds.CALL, 1, "model_ready", ["one", 1]],
                [kinds.CALL, 2, "model_ready", ["one", 2]],
                [kinds.CALL, 3, "live", []],
            ]
            there.got.clear()
            given_up.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert there.take(kinds.GIVE_UP) == [kinds.GIVE_UP, 3]
            there.say(*write_result(3, True))
            there.say((kinds.RESULT, 2, 0, write_error(NotFoundError("no such version"))))
            await trio.testing.wait_all_tasks_blocked()
            there.say(*write_result(1, True))
        assert results == ["no such version", True]


async def test_when_the_engine_is_gone_everything_has_failed() -> None:
    async with world() as there:
        reply = admit(there.server)
        failed: list[TriremeError] = []

        async def ask() -> None:
            try:
                await there.server.management.live()
            except UnavailableError as error:
                failed.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            with there.turn:
                there.server.gone()
        assert failed
        assert (reply.final, there.server.exiting) == (True, True)


async def test_a_request_is_noted_while_any_could_be_traced() -> None:
    async with world() as there:
        server = there.server
        assert not server.tracer.active
        there.say((kinds.STATE, False, True, True))
        assert (server.tracer.active, server.tracer.takes_contexts) == (True, True)
        traced = request()
        trace = traced.trace = server.tracer.begin("one")
        trace.note(Activity.HTTP_RECV_START, 5)
        responded: list[bool] = []
        trace.on_response = lambda _ns, has_response: responded.append(has_response)
        assert server.admit_nowait(traced) is not None
        wish = there.take_request().wish
        assert wish is not None
        assert (wish.model, wish.context) == ("one", None)
        there.answer(1, response(1))
        assert responded == [True]
        trace.note(Activity.HTTP_SEND_END, 9)
        trace.leave()
        number, notes, wish = read_notes(there.take(kinds.NOTES))
        assert (number, notes, wish) == (1, [("HTTP_RECV_START", 5), ("HTTP_SEND_END", 9)], None)


async def test_what_is_refused_before_the_engine_hears_of_it_is_told_with_what_is_asked() -> None:
    async with world() as there:
        there.say((kinds.STATE, False, True, False))
        there.server.tracer.begin("one").leave()
        number, notes, wish = read_notes(there.take(kinds.NOTES))
        assert wish is not None
        assert (number, notes, wish.model) == (0, [], "one")
        forgotten = there.server.tracer.begin("one")
        there.server.tracer.forget("one", forgotten)
        assert not there.got


async def test_what_is_too_long_for_a_message_is_refused() -> None:
    async with world() as there:

        def refuse(_head: LinkHead, _payload: Payload) -> bool:
            raise ValueError("names, parameters and texts take 400000 bytes, and may take 393216")

        there.server._send = refuse
        with pytest.raises(InvalidArgumentError, match="too long: names"):
            there.server.admit_nowait(request())


@given(st.integers(30, 45), st.lists(JSON, max_size=5), st.binary(max_size=32))
@hypothesis_settings(max_examples=60)
async def test_any_other_message_is_an_error_of_the_link(kind: int, tail: list[Any], payload: bytes) -> None:
    async with world() as there:
        admit(there.server)
        with suppress(LinkError):
            there.server.received([kind, *tail], memoryview(payload))


async def test_refusals_are_counted_by_the_engine_and_none_is_lost() -> None:
    async with world() as there:
        server = there.server
        server.note_refusal(NotFoundError("no such model"), "two")
        server.note_refusal(RefusalReason.TOO_LARGE, "one", LATEST)
        counted = UnavailableError("full")
        counted.refusal_counted = True
        server.note_refusal(counted, "one")
        there.room = 0
        for _ in range(3):
            server.refusals.count(RefusalReason.CONNECTION_LIMIT)
        there.room = 9
        server.room()
        invalid = NotFoundError("").refusal_reason
        assert [read_refusals(head) for head, _ in there.got] == [
            (invalid, "", 0, 1),
            (RefusalReason.TOO_LARGE, "one", 1, 1),
            (RefusalReason.CONNECTION_LIMIT, "", 0, 3),
        ]


@given(st.lists(JSON, max_size=5))
def test_any_other_refusal_is_an_error_of_the_link(tail: list[Any]) -> None:
    with suppress(LinkError):
        read_refusals([kinds.REFUSED, *tail])


async def test_many_texts_are_packed_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as there:
        threads: list[bool] = []
        packed = tensor_module.pack_bytes

        def pack(elements: Any) -> bytes:
            threads.append(threading.current_thread() is threading.main_thread())
            return packed(elements)

        monkeypatch.setattr(tensor_module, "pack_bytes", pack)
        for count in (4_096, 4_097):
            texts = np.array([b"text"] * count, dtype=object)
            many = InferenceRequest("one", inputs=[Tensor("IN", BYTES, (count,), None, texts)])
            if there.server.admit_nowait(many) is None:
                await there.server.admit(many)
            assert list(there.take_request().request.inputs[0].array) == [b"text"] * count
        assert threads == [True, False]


async def test_what_was_not_sent_is_not_taken_for_known() -> None:
    async with world() as there:
        there.room = 0
        assert there.server.admit_nowait(request()) is None
        there.room = 9
        there.server.room()
        assert there.server.admit_nowait(request()) is not None
        assert there.take_request().request.model_name == "one"


@given(st.lists(JSON, max_size=4))
def test_any_other_notes_are_an_error_of_the_link(tail: list[Any]) -> None:
    with suppress(LinkError):
        read_notes([kinds.NOTES, *tail])


@pytest.mark.parametrize("head", [[kinds.NOTES, 0, []], [kinds.NOTES, 1, [], ["one"]]])
def test_notes_are_of_a_request_or_say_what_was_asked(head: list[Any]) -> None:
    with pytest.raises(LinkError):
        read_notes(head)
