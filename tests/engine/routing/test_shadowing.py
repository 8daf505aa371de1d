"""When shadows get their copies (`engine.routing.shadowing`)."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.engine.routing.shadowing import (
    ANSWER_LIMIT_S,
    LEAST_QUIET_S,
    LONGEST_PAUSE_S,
    MOST_WAITING,
    PART,
    QUIET_TIMES,
    WAIT_LIMIT_S,
    BeginCopy,
    CopyAction,
    CopyDropped,
    CopyQueue,
    DropCopy,
    GiveUpCopy,
    ShadowCopy,
)

LANE, OTHER = "classifier", "other"
BYTES = 1_000


def queue_of(*lanes: str, byte_limit: int = 1 << 20) -> CopyQueue[int]:
    queue = CopyQueue[int](byte_limit, 0.0)
    queue.replace_lanes(lanes or [LANE])
    return queue


def actions_of(queue: CopyQueue[int], now_s: float) -> Iterator[CopyAction[int]]:
    while (action := queue.next_action(now_s)) is not None:
        yield action


def begun(queue: CopyQueue[int], now_s: float) -> ShadowCopy[int]:
    (action,) = actions_of(queue, now_s)
    assert isinstance(action, BeginCopy)
    return action.copy


def put(queue: CopyQueue[int], now_s: float, work: int = 0, lane: str = LANE) -> None:
    assert queue.put(lane, BYTES, work, now_s) is None


def test_the_first_copy_begins_at_once_and_the_next_when_the_first_is_paid_for() -> None:
    queue = queue_of()
    put(queue, 1.0, 1)
    put(queue, 1.0, 2)
    first = begun(queue, 1.0)
    assert first.work == 1
    queue.ended(first, 0.001, 1.5)
    queue.see_traffic(1.6)
    assert queue.next_s() == pytest.approx(1.5 + PART * 0.0011)
    assert not list(actions_of(queue, 1.609))
    assert begun(queue, 1.611).work == 2


def test_of_a_lane_one_copy_is_in_flight() -> None:
    queue = queue_of()
    put(queue, 0.0, 1)
    put(queue, 0.0, 2)
    begun(queue, 0.0)
    assert not list(actions_of(queue, ANSWER_LIMIT_S - 1))
    assert queue.next_s() == ANSWER_LIMIT_S


def test_when_nothing_comes_copies_go_one_after_the_other() -> None:
    queue = queue_of()
    for number in range(4):
        put(queue, 0.0, number)
    now_s, works = 0.0, []
    for _ in range(4):
        copy = begun(queue, now_s)
        works.append(copy.work)
        queue.ended(copy, 0.0001, now_s)
        now_s = max(now_s, LEAST_QUIET_S)
    assert works == [0, 1, 2, 3]
    assert now_s == LEAST_QUIET_S


def test_long_copies_need_a_long_quiet_but_no_pause_is_endless() -> None:
    queue = queue_of()
    put(queue, 0.0)
    queue.ended(begun(queue, 0.0), 1.0, 1.0)
    put(queue, 2.0)
    assert queue.next_s() == pytest.approx(2.0 + QUIET_TIMES, abs=0.1)
    queue.ended(begun(queue, 2.0 + QUIET_TIMES + 1), 1_000.0, 100.0)
    put(queue, 101.0)
    assert queue.next_s() == 101.0 + WAIT_LIMIT_S
    assert queue._begin_s(queue._lanes[LANE]) == 100.0 + LONGEST_PAUSE_S


def test_more_than_may_wait_is_dropped() -> None:
    queue = queue_of()
    for _ in range(MOST_WAITING):
        put(queue, 0.0)
    assert queue.full(LANE) is CopyDropped.FULL
    assert queue.put(LANE, 1, 0, 0.0) is CopyDropped.FULL
    assert queue.waiting(LANE) == MOST_WAITING


def test_bytes_are_shared_by_the_lanes() -> None:
    queue = queue_of(LANE, OTHER, byte_limit=2 * BYTES)
    put(queue, 0.0)
    assert queue.put(LANE, BYTES, 0, 0.0) is CopyDropped.MEMORY
    put(queue, 0.0, lane=OTHER)
    copies = [action.copy for action in actions_of(queue, 0.0) if isinstance(action, BeginCopy)]
    assert queue.nbytes == 2 * BYTES
    assert queue.put(LANE, BYTES, 0, 0.0) is CopyDropped.MEMORY  # what is in flight counts
    for copy in copies:
        queue.ended(copy, 0.0, 1.0)
    assert queue.nbytes == 0
    assert queue.put(LANE, BYTES + 1, 0, 1.0) is CopyDropped.MEMORY
    put(queue, 1.0)


def test_what_waited_too_long_is_dropped() -> None:
    queue = queue_of()
    put(queue, 0.0)
    put(queue, 1.0)
    queue.ended(begun(queue, 1.0), 10.0, 2.0)
    assert not list(actions_of(queue, 60.0))
    (dropped,) = actions_of(queue, 1.0 + WAIT_LIMIT_S)
    assert isinstance(dropped, DropCopy)
    assert dropped.reason is CopyDropped.LATE
    assert (queue.nbytes, queue.next_s()) == (0, math.inf)


def test_a_shadow_that_hangs_gets_no_more_until_it_has_answered() -> None:
    queue = queue_of(LANE, OTHER)
    for number in range(3):
        put(queue, 0.0, number)
    copy = begun(queue, 0.0)
    gave_up, *dropped = actions_of(queue, ANSWER_LIMIT_S)
    assert gave_up == GiveUpCopy(copy)
    assert [each.reason for each in dropped if isinstance(each, DropCopy)] == [CopyDropped.HANGING] * 2
    assert queue.full(LANE) is CopyDropped.HANGING
    assert queue.nbytes == BYTES
    put(queue, 11.0, lane=OTHER)
    assert begun(queue, 11.0).lane == OTHER
    queue.ended(copy, 11.0, 11.0)
    assert queue.full(LANE) is None
    assert queue.nbytes == BYTES


def test_a_lane_that_is_gone_drops_all_but_what_is_in_flight_holds_its_bytes() -> None:
    queue = queue_of()
    put(queue, 0.0, 1)
    put(queue, 0.0, 2)
    copy = begun(queue, 0.0)
    gone = queue.replace_lanes([])
    assert [type(each) for each in gone] == [DropCopy, GiveUpCopy]
    assert copy.given_up
    assert (queue.full(LANE), queue.nbytes) == (CopyDropped.GONE, BYTES)
    assert queue.replace_lanes([]) == []
    queue.replace_lanes([LANE])
    assert queue.full(LANE) is CopyDropped.HANGING  # one is in flight still
    queue.replace_lanes([])
    queue.ended(copy, 0.1, 1.0)
    assert queue.nbytes == 0
    queue.replace_lanes([LANE])
    put(queue, 2.0)
    assert begun(queue, 2.0).work == 0


def test_others_may_need_the_memory() -> None:
    queue = queue_of(LANE, OTHER)
    put(queue, 0.0)
    put(queue, 0.0, lane=OTHER)
    assert [type(each) for each in queue.drop_all(CopyDropped.MEMORY)] == [DropCopy, DropCopy]
    assert queue.nbytes == 0


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "act", "end", "traffic", "lanes", "drop"]),
        st.sampled_from([LANE, OTHER]),
        st.sampled_from([0.0, 0.001, 0.03, 1.0, 20.0, 70.0]),
    ),
    max_size=60,
)


@settings(max_examples=150)
@given(STEPS)
def test_nothing_is_lost_and_nothing_is_counted_twice(steps: list[tuple[str, str, float]]) -> None:
    """Every copy that waits is begun or dropped, bytes are those of what waits or is in flight, and each lane has one
    in flight at most."""
    queue = queue_of(LANE, OTHER, byte_limit=60 * BYTES)
    now_s, lanes = 0.0, {LANE, OTHER}
    waiting: set[int] = set()
    flying: dict[str, ShadowCopy[int]] = {}

    def take(action: CopyAction[int]) -> None:
        copy, lane = action.copy, str(action.copy.lane)
        if isinstance(action, GiveUpCopy):
            assert flying[lane] is copy
            assert copy.given_up
            return
        waiting.remove(copy.work)
        if isinstance(action, BeginCopy):
            assert lane not in flying
            assert lane in lanes
            flying[lane] = copy

    for number, (what, lane, later_s) in enumerate(steps):
        now_s += later_s
        if what == "put":
            if queue.put(lane, BYTES, number, now_s) is None:
                waiting.add(number)
        elif what == "act":
            for action in actions_of(queue, now_s):
                take(action)
            assert queue.next_s() > now_s
        elif what == "end" and lane in flying:
            queue.ended(flying.pop(lane), later_s, now_s)
        elif what == "traffic":
            queue.see_traffic(now_s)
        elif what == "lanes":
            lanes ^= {lane}
            for action in queue.replace_lanes(lanes):
                take(action)
        elif what == "drop":
            for action in queue.drop_all(CopyDropped.MEMORY):
                take(action)
        assert queue.nbytes == BYTES * (len(waiting) + len(flying))
        assert len(waiting) == queue.waiting(LANE) + queue.waiting(OTHER)


@pytest.mark.parametrize(("rate", "part_copied"), [(2.0, 0.95), (50.0, 0.3), (2_000.0, 0.0)])
def test_few_requests_meet_a_copy_however_many_come(rate: float, part_copied: float) -> None:
    """Requests come at random, and each copy takes 1 ms: what there is a chance to meet one for is seldom, and with
    few requests nearly all are copied."""
    draw, took_s, seconds = random.Random(rate), 0.001, 200_000 / rate if rate > 100 else 60.0
    queue = queue_of()
    now_s, met, copies, requests = 0.0, 0, 0, 0
    end_s, flying = 0.0, None
    arrival_s = draw.expovariate(rate)
    seen = True
    while now_s < seconds:
        now_s = min(arrival_s, end_s if flying is not None else math.inf, max(queue.next_s(), now_s))
        if flying is not None and now_s >= end_s:
            queue.ended(flying, took_s, now_s)
            flying = None
        if now_s >= arrival_s:
            requests += 1
            met += flying is not None
            seen = False
            arrival_s = now_s + draw.expovariate(rate)
            queue.put(LANE, BYTES, 0, now_s)
        if not seen and queue.next_s() <= now_s:
            queue.see_traffic(now_s)
            seen = True
        for action in actions_of(queue, now_s):
            if isinstance(action, BeginCopy):
                flying, end_s, copies = action.copy, now_s + took_s, copies + 1
    assert met <= 0.03 * requests
    assert copies >= part_copied * requests
    assert copies * took_s <= 0.025 * seconds
