"""The order of the answers on a stream: rules 1 to 6 of `StreamOrder`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.api.grpc.stream_order import Place, PlaceState, StreamOrder


def order_of(max_open: int = 100, max_bytes: int = 1000) -> StreamOrder[Place]:
    return StreamOrder(max_open, max_bytes)


def admitted(order: StreamOrder[Place], decoupled: bool = False) -> Place:
    place = Place()
    place.decoupled = decoupled
    order.admit(place)
    return place


def test_rule_1_answers_of_requests_that_get_one_keep_the_order_of_the_requests() -> None:
    order = order_of()
    first, second, third = (admitted(order) for _ in range(3))
    order.news(third)
    order.news(second)
    assert order.next() is None
    order.news(first)
    assert [order.next(), order.next(), order.next(), order.next()] == [first, second, third, None]


def test_rule_2_decoupled_answers_overtake_and_hold_up_no_other() -> None:
    order = order_of()
    slow = admitted(order)
    decoupled = admitted(order, decoupled=True)
    plain = admitted(order)
    order.news(decoupled)
    assert order.next() is decoupled
    order.news(plain)
    assert order.next() is None, "the plain request overtook an earlier one"
    order.news(slow)
    assert [order.next(), order.next()] == [slow, plain]
    order.news(decoupled)
    assert order.next() is decoupled


def test_rule_2_news_of_one_request_are_queued_once() -> None:
    order = order_of()
    decoupled = admitted(order, decoupled=True)
    order.news(decoupled)
    order.news(decoupled)
    assert [order.next(), order.next()] == [decoupled, None]


def test_rule_4_room_depends_on_the_open_requests() -> None:
    order = order_of(max_open=2)
    first = admitted(order)
    assert order.has_room
    admitted(order)
    assert not order.has_room
    order.news(first)
    assert not order.has_room, "an answer that has not been sent makes no room"
    order.next()
    assert not order.has_room
    order.close(first)
    assert order.has_room


def test_rule_4_room_depends_on_the_bytes_that_wait_behind_others_too() -> None:
    order = order_of(max_bytes=10)
    first, second = admitted(order), admitted(order)
    order.news(second, 9)
    assert order.has_room
    order.news(first, 1)
    assert not order.has_room
    assert order.next() is first
    assert not order.has_room, "what is being sent is not sent"
    order.close(first)
    assert order.has_room


def test_rule_5_one_that_turns_out_to_be_decoupled_holds_up_no_other_from_then_on() -> None:
    order = order_of()
    slow, unknown, plain = (admitted(order) for _ in range(3))
    order.news(slow)
    order.news(plain)
    assert [order.next(), order.next()] == [slow, None]
    order.decouple(unknown)
    assert [order.next(), order.next()] == [plain, None]
    order.news(unknown)
    order.news(unknown)
    assert [order.next(), order.next()] == [unknown, None]


def test_rule_6_a_stream_is_over_when_nothing_is_open_behind_the_last_request() -> None:
    order = order_of()
    assert not order.over
    place = admitted(order)
    order.half_closed = True
    assert not order.over
    order.news(place)
    order.next()
    assert not order.over
    order.close(place)
    assert order.over


def test_an_empty_stream_is_over_at_once() -> None:
    order = order_of()
    order.half_closed = True
    assert order.over


def test_the_end_of_a_stream_finds_what_is_still_open() -> None:
    order = order_of()
    turns = [admitted(order, decoupled) for decoupled in (False, True, False)]
    order.news(turns[0])
    order.next()
    order.close(turns[0])
    assert list(order.open) == turns[1:]


@pytest.mark.parametrize("decoupled", [False, True])
def test_a_request_goes_through_the_states_of_the_diagram(decoupled: bool) -> None:
    order = order_of()
    earlier = admitted(order)
    place = admitted(order, decoupled)
    seen = [place.state]
    order.news(place)
    seen.append(place.state)
    order.news(earlier)
    seen.append(place.state)
    order.next()
    order.next()
    seen.append(place.state)
    if decoupled:
        order.news(place)
        seen.append(place.state)
        order.next()
    order.close(place)
    seen.append(place.state)
    waiting, answered, ready, sending, closed = PlaceState
    if decoupled:
        assert seen == [waiting, ready, ready, sending, ready, closed]
    else:
        assert seen == [waiting, answered, ready, sending, closed]


STEPS = st.sampled_from(("admit", "admit decoupled", "decouple", "news", "send"))


@given(st.lists(st.tuples(STEPS, st.integers(0, 30)), max_size=80))
def test_whatever_happens_in_whatever_order(steps: list[tuple[str, int]]) -> None:
    """Plain answers never change places, each goes out exactly once, decoupled ones never wait, and at the end nothing
    is left over."""
    order = order_of(max_open=10**6, max_bytes=10**6)
    plain: list[Place] = []
    decoupled: list[Place] = []
    unanswered: list[Place] = []
    sent: list[Place] = []

    def send() -> bool:
        place = order.next()
        if place is None:
            return False
        if not place.decoupled:
            sent.append(place)
            order.close(place)
        return True

    for step, number in steps:
        if step == "admit":
            plain.append(admitted(order))
            unanswered.append(plain[-1])
        elif step == "admit decoupled":
            decoupled.append(admitted(order, decoupled=True))
        elif step == "decouple" and unanswered:
            place = unanswered.pop(number % len(unanswered))
            plain.remove(place)
            order.decouple(place)
            decoupled.append(place)
        elif step == "news" and unanswered and number % 2:
            order.news(unanswered.pop(number % len(unanswered)), number)
        elif step == "news" and decoupled:
            place = decoupled[number % len(decoupled)]
            order.news(place)
            assert place.state is PlaceState.READY
        elif step == "send":
            send()
        assert sent == plain[: len(sent)]
    for place in unanswered:
        order.news(place)
    while send():
        pass
    for place in decoupled:
        order.news(place)
        assert order.next() is place
        order.close(place)
    assert sent == plain
    assert list(order.open) == []
    assert repr(order) == "<StreamOrder 0 open, 0 ready, 0 bytes unsent>"
