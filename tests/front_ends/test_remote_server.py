"""A front end's server, over an engine that is a list of messages."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from remote_world import MODELS, admit, request, response, world
from wired import JSON

from trireme.actors.actor import Turn
from trireme.actors.offload import Offload
from trireme.actors.reply import Reply
from trireme.engine import tensor as tensor_module
from trireme.engine.datatypes import BYTES
from trireme.engine.errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    TriremeError,
    UnavailableError,
)
from trireme.engine.options import ServerOptions
from trireme.engine.request import InferenceRequest, InferenceResponse
from trireme.engine.tensor import Tensor
from trireme.front_ends import kinds, leases, remote_server
from trireme.front_ends.calls import write_result
from trireme.front_ends.link import LinkError, LinkHead
from trireme.front_ends.remote_server import RemoteServer
from trireme.front_ends.values import write_error
from trireme.python_backend.child.codec import Payload


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


async def test_who_has_what_others_wait_for_does_not_wait_for_them() -> None:
    """Requests that wait at the engine may wait for the bytes of leases; those go on, before others and beside them."""
    async with world() as there:
        leases = [there.server.lease("one", 1, "1.2.3.4") for _ in range(2)]
        async with trio.open_nursery() as nursery:
            for number, lease in enumerate(leases, 1):
                nursery.start_soon(lease.grow, 10)
                await trio.testing.wait_all_tasks_blocked()
                there.take(kinds.GROW)
                there.say((kinds.GRANTED, number, 10))
        there.say((kinds.HELD, 1))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(there.server.admit, request(request_id="plain"))
            await trio.testing.wait_all_tasks_blocked()
            assert there.server.admit_nowait(request(request_id="leased"), lease=leases[0]) is not None
            await there.server.admit(request(request_id="too"), leases[1])
            assert [there.take_request().request.id for _ in range(2)] == ["leased", "too"]
            assert not there.got
            there.say((kinds.HELD, 0))
        assert there.take_request().request.id == "plain"


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


async def test_the_engine_hears_of_a_bounded_number_of_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "MOST_TOLD", 2)
    async with world() as there:
        made = [there.server.lease("one") for _ in range(4)]
        async with trio.open_nursery() as nursery:
            for lease in made:
                nursery.start_soon(lease.grow, 10)
                await trio.testing.wait_all_tasks_blocked()
            made[2].close()  # before its turn has come
            assert [head[:2] for head, _ in there.got] == [[kinds.GROW, 1], [kinds.GROW, 2]]
            there.say((kinds.GRANTED, 1, 10))
            made[0].close()
            assert [head[:2] for head, _ in there.got[2:]] == [[kinds.ARRIVED, 1], [kinds.CLOSE, 1], [kinds.GROW, 4]]
            nursery.cancel_scope.cancel()


async def test_the_engine_has_a_bounded_number_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_server, "_MOST_CALLS", 1)
    async with world() as there:
        told: list[bool] = []

        async def ask() -> None:
            told.append(await there.server.management.live())

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            for number in range(1, 4):  # the second result is here before the task that has asked goes on
                assert there.take(kinds.CALL)[:3] == [kinds.CALL, number, "live"]
                assert not there.got
                there.say(*write_result(number, True))
        assert told == [True] * 3


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


async def test_what_clients_hold_is_divided_with_its_least() -> None:
    readiness: Any = None
    options = ServerOptions(max_inflight_bytes=1)
    server = RemoteServer(lambda _head, _payload: True, Turn(), readiness, Offload(), options, front_ends=4)
    accounts = server.client_accounts
    assert (accounts.unfinished.limit_bytes, accounts.unread.limit_bytes) == (4 << 20, 16 << 20)
