"""What a front end notes for the engine: traces, and refusals."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from remote_world import request, response, world
from wired import JSON

from trireme.engine.errors import (
    NotFoundError,
    RefusalReason,
    UnavailableError,
)
from trireme.engine.request import LATEST
from trireme.engine.tracing.record import Activity
from trireme.front_ends import kinds
from trireme.front_ends.link import LinkError
from trireme.front_ends.refusals import read_refusals
from trireme.front_ends.traces import read_notes


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


@given(st.lists(JSON, max_size=4))
def test_any_other_notes_are_an_error_of_the_link(tail: list[Any]) -> None:
    with suppress(LinkError):
        read_notes([kinds.NOTES, *tail])


@pytest.mark.parametrize("head", [[kinds.NOTES, 0, []], [kinds.NOTES, 1, [], ["one"]]])
def test_notes_are_of_a_request_or_say_what_was_asked(head: list[Any]) -> None:
    with pytest.raises(LinkError):
        read_notes(head)
