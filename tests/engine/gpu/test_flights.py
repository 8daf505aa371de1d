"""How batches in flight end, and when one is asked after: by calling the machine."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.backends.interface import StreamInstance
from trireme.engine.gpu.flights import LOOK_S, TRANSITIONS, Flights, FlightState, FlightStatistics, Ticket
from trireme.engine.job import ExecutionBatch


def begun(flights: Flights) -> Ticket:
    ticket = Ticket(cast(StreamInstance, None), cast(ExecutionBatch, None), lambda _batch: None)
    flights.begin(ticket)
    return ticket


@pytest.mark.parametrize("launched_first", [True, False])
def test_a_batch_is_collected_when_it_was_launched_and_has_landed(launched_first: bool) -> None:
    flights = Flights()
    ticket = begun(flights)
    if launched_first:
        assert not flights.launched(ticket, 0.0)
        assert flights.landed(ticket)
    else:
        assert not flights.landed(ticket)
        assert flights.launched(ticket, 0.0)
    ticket.launched = "what the device used"
    flights.over(ticket)
    assert ticket.launched is None
    assert flights.statistics() == FlightStatistics(0, 0, 1, 0)


@pytest.mark.parametrize("early", [True, False])
def test_a_launch_that_failed_is_over_whatever_the_device_says(early: bool) -> None:
    flights = Flights()
    ticket = begun(flights)
    if early:
        flights.landed(ticket)
        flights.failed(ticket)
    else:
        flights.failed(ticket)
        assert not flights.landed(ticket)
    assert ticket.state is FlightState.OVER
    assert flights.statistics() == FlightStatistics(0, 0, 0, 1)


def test_the_oldest_in_flight_is_asked_after_now_and_then() -> None:
    flights = Flights()
    assert flights.next_look_s() == math.inf
    first, second = begun(flights), begun(flights)
    assert flights.next_look_s() == math.inf, "what is being launched cannot be asked after"
    flights.launched(first, 10.0)
    flights.launched(second, 10.5)
    assert flights.next_look_s() == 10.0 + LOOK_S
    assert flights.overdue(10.9) is None
    assert flights.overdue(11.5) is first
    assert flights.next_look_s() == 11.5 + LOOK_S
    flights.landed(first)
    flights.over(first)
    assert flights.overdue(11.5) is second
    assert flights.statistics() == FlightStatistics(launching=0, flying=1, collected=1, failed=0)


def test_for_a_sick_device_nothing_is_kept() -> None:
    flights = Flights()
    tickets = [begun(flights), begun(flights)]
    flights.launched(tickets[0], 0.0)
    for ticket in tickets:
        ticket.launched = "what the device used"
    flights.sick()
    assert [ticket.launched for ticket in tickets] == [None, None]
    assert flights.landed(tickets[0]), "should it land after all, it is known what to do"


EVENTS: dict[str, Any] = {
    "launched": lambda flights, ticket: flights.launched(ticket, 0.0),
    "landed": lambda flights, ticket: flights.landed(ticket),
    "failed": lambda flights, ticket: flights.failed(ticket),
    "over": lambda flights, ticket: flights.over(ticket),
}


@pytest.mark.parametrize("state", FlightState)
@pytest.mark.parametrize("event", EVENTS)
def test_the_table_is_what_the_machine_does(state: FlightState, event: str) -> None:
    """And what stands not in it is a mistake of the caller."""
    flights = Flights()
    ticket = begun(flights)
    ticket.state = state
    if state in TRANSITIONS[event]:
        EVENTS[event](flights, ticket)
        assert ticket.state is TRANSITIONS[event][state]
    else:
        with pytest.raises(KeyError):
            EVENTS[event](flights, ticket)


@given(st.lists(st.sampled_from(sorted(EVENTS)), max_size=6))
def test_a_batch_is_over_once(events: list[str]) -> None:
    """In whatever order a thread and a device tell of it."""
    flights = Flights()
    ticket = begun(flights)
    collected = 0
    for event in events:
        if ticket.state not in TRANSITIONS[event] or event == "over":
            continue
        if EVENTS[event](flights, ticket):
            collected += 1
            flights.over(ticket)
    statistics = flights.statistics()
    assert collected == statistics.collected <= 1
    assert statistics.collected + statistics.failed == (ticket.state is FlightState.OVER)
    assert statistics.launching + statistics.flying == (ticket.state is not FlightState.OVER)
