"""The turn: order, re-entrancy, posting from inside and outside and from threads, the bound, failures, the end."""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Callable

import pytest
import trio

from trireme.actors.actor import MOST_DELIVERIES, Actor, Recipient, Turn


class Member(Recipient):
    """Writes its name down when it has a turn, and does something."""

    def __init__(self, name: str, log: list[str], act: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.failures: list[Exception] = []
        self._name = name
        self._log = log
        self._act = act

    def take_turn(self) -> None:
        self._log.append(self._name)
        self._act()

    def fail(self, error: Exception) -> None:
        self.failures.append(error)


class Wire:
    def __init__(self, name: str, log: list[str], act: Callable[[], None] = lambda: None) -> None:
        self._name = name
        self._log = log
        self._act = act

    def flush(self) -> None:
        self._log.append(f"flush {self._name}")
        self._act()


@pytest.fixture
def log() -> list[str]:
    return []


async def test_recipients_take_their_turns_in_the_order_of_posting_each_once(log: list[str]) -> None:
    turn = Turn()
    a, b = Member("a", log), Member("b", log)
    with turn:
        for member in (b, a, b, a):
            turn.post(member)
        assert not log
    assert log == ["b", "a"]


async def test_what_is_posted_during_delivery_is_delivered_in_the_same_turn(log: list[str]) -> None:
    turn = Turn()
    last = Member("last", log)
    first = Member("first", log, lambda: turn.post(last))
    with turn:
        turn.post(first)
        turn.post(Member("second", log))
    assert log == ["first", "second", "last"]
    assert turn.number == 1


async def test_opening_it_again_inside_changes_nothing(log: list[str]) -> None:
    turn = Turn()
    b = Member("b", log)

    def open_again() -> None:
        with turn:
            turn.post(b)
        log.append("closed")

    with turn:
        with turn:
            turn.post(Member("a", log, open_again))
        assert not log
    assert log == ["a", "closed", "b"]
    assert turn.number == 1


async def test_connections_are_flushed_once_when_everything_is_delivered(log: list[str]) -> None:
    turn = Turn()
    late = Member("late", log)
    wire = Wire("w", log, lambda: turn.post(late))
    with turn:
        turn.flush_later(wire)
        turn.post(Member("a", log))
    assert log == ["a", "flush w", "late"], "what a flush finds out is delivered, too"


async def test_what_comes_afterwards_comes_when_all_was_flushed_and_what_it_posts_is_delivered(log: list[str]) -> None:
    turn = Turn()
    late = Member("late", log)

    def count() -> None:
        log.append("count")
        turn.post(late)

    def act() -> None:
        turn.afterwards(first, count)
        turn.flush_later(Wire("w", log))

    first = Member("a", log, act)
    with turn:
        turn.post(first)
        turn.post(Member("b", log))
    assert log == ["a", "b", "flush w", "count", "late"]
    with turn:
        pass
    assert log[5:] == []


async def test_what_comes_afterwards_is_reason_enough_for_a_turn(log: list[str]) -> None:
    """As when a scheduler is buried by its supervisor's task, outside of any turn."""
    turn = Turn()
    member = Member("a", log)
    turn.afterwards(member, lambda: log.append("count"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn.keep_running)
        await trio.testing.wait_all_tasks_blocked()
        assert log == ["count"]
        turn.afterwards(member, lambda: log.append("again"))
        await trio.testing.wait_all_tasks_blocked()
        assert log == ["count", "again"]
        turn.stop()
    turn.afterwards(member, lambda: log.append("last"))
    turn.close()
    assert log == ["count", "again", "last"]


async def test_what_is_raised_afterwards_concerns_its_recipient_alone(log: list[str]) -> None:
    turn = Turn()
    bad = Member("bad", log)
    with turn:
        turn.afterwards(bad, lambda: [][0])
        turn.afterwards(Member("a", log), lambda: log.append("count"))
    assert log == ["count"]
    assert [type(error) for error in bad.failures] == [IndexError]


async def test_posts_of_one_pass_outside_of_a_turn_are_one_turn(log: list[str]) -> None:
    turn = Turn()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn.keep_running)
        await trio.testing.wait_all_tasks_blocked()
        for name in ("a", "b"):
            turn.post(Member(name, log))
        turn.flush_later(Wire("w", log))
        assert not log
        await trio.testing.wait_all_tasks_blocked()
        assert log == ["a", "b", "flush w"]
        assert turn.number == 1
        nursery.cancel_scope.cancel()


async def test_an_open_turn_delivers_what_was_posted_before(log: list[str]) -> None:
    turn = Turn()
    turn.post(Member("before", log))
    assert repr(turn) == "<Turn 0: due, 1 recipients waiting, 0 deferred>"
    with turn:
        turn.post(Member("inside", log))
    assert log == ["before", "inside"]


async def test_who_is_deferred_takes_part_in_the_next_turn(log: list[str]) -> None:
    turn = Turn()
    a = Member("a", log)
    with turn:
        turn.defer(a)
        turn.post(a)
    assert log == ["a"]
    assert repr(turn) == "<Turn 1: due, 0 recipients waiting, 1 deferred>"
    with turn:
        turn.post(Member("b", log))
    assert log == ["a", "a", "b"]


async def test_who_was_deferred_hears_of_it_when_the_next_turn_begins(log: list[str]) -> None:
    turn = Turn()
    a, bad = Member("a", log), Member("bad", log)
    a.resume = lambda: log.append("a resumes")  # type: ignore[method-assign]
    bad.resume = lambda: log.index("a defect")  # type: ignore[method-assign]
    with turn:
        turn.defer(bad)
        turn.defer(a)
        turn.post(a)
    assert log == ["a"]
    with turn:
        log.append("opened")
    assert log == ["a", "a resumes", "opened", "bad", "a"]
    assert [type(error) for error in bad.failures] == [ValueError]


async def test_no_turn_is_without_end(log: list[str]) -> None:
    """Two that answer each other for ever: others have their turns, connections are flushed, tasks run."""
    turn = Turn()
    other: list[Member] = []
    one = Member("one", log, lambda: turn.post(other[0]))
    other.append(Member("other", log, lambda: turn.post(one)))
    with turn:
        turn.post(one)
        turn.flush_later(Wire("w", log))
    assert len(log) == MOST_DELIVERIES + 1
    assert log[-1] == "flush w"
    assert repr(turn) == "<Turn 1: due, 1 recipients waiting, 0 deferred>"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn.keep_running)
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert turn.number > 2


async def test_what_one_recipient_raises_concerns_no_other(log: list[str]) -> None:
    turn = Turn()

    def fail() -> None:
        raise KeyError("a defect")

    bad = Member("bad", log, fail)
    with turn:
        turn.post(bad)
        turn.post(Member("good", log))
    assert log == ["bad", "good"]
    assert [type(error) for error in bad.failures] == [KeyError]


async def test_what_threads_ask_for_happens_in_turns_in_order(log: list[str]) -> None:
    turn = Turn()
    here = threading.current_thread()
    done = trio.Event()

    def call(number: int) -> None:
        assert threading.current_thread() is here
        turn.post(Member(str(number), log))
        if number == 2:
            done.set()

    def work() -> None:
        for number in range(3):
            turn.call_from_thread(call, number)

    await trio.to_thread.run_sync(work)
    await done.wait()
    assert log == ["0", "1", "2"]


async def test_what_is_left_at_the_end_is_delivered(log: list[str]) -> None:
    turn = Turn()
    turn.call_from_thread(log.append, "called")
    turn.post(Member("a", log, lambda: turn.defer(Member("b", log))))
    turn.close()
    assert log == ["called", "a", "b"]


# Actors.


class Adder(Actor[int]):
    """Adds numbers up; dies of 13."""

    def __init__(self, turn: Turn) -> None:
        super().__init__("adder", turn)
        self.sums: list[int] = []
        self.acts = 0
        self._sum = 0

    def receive(self, message: int) -> None:
        if message == 13:
            raise KeyError("unlucky")
        self._sum += message

    def act(self) -> None:
        self.sums.append(self._sum)
        self.acts += 1


async def test_an_actor_receives_all_its_mail_and_acts_once() -> None:
    turn = Turn()
    adder = Adder(turn)
    with turn:
        for number in range(4):
            adder.mailbox.send_nowait(number)
    assert adder.sums == [6]


async def test_what_an_actor_sends_itself_while_it_receives_is_received_after_it_has_acted(log: list[str]) -> None:
    """And after those who were posted before: who answers itself for ever does not keep others waiting."""
    turn = Turn()
    adder = Adder(turn)

    def receive(message: int) -> None:
        Adder.receive(adder, message)
        if message < 3:
            adder.mailbox.send_nowait(message + 1)

    adder.receive = receive  # type: ignore[method-assign]
    with turn:
        adder.mailbox.send_nowait(1)
        turn.post(Member("other", log, lambda: log.append(str(adder.sums))))
    assert log == ["other", "[1]"]
    assert adder.sums == [1, 3, 6]


async def test_an_actor_that_fails_raises_it_in_its_task_and_keeps_its_mail() -> None:
    turn = Turn()
    adder = Adder(turn)
    with pytest.RaisesGroup(KeyError):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(adder.run)
            await trio.testing.wait_all_tasks_blocked()
            with turn:
                for number in (1, 13, 2):
                    adder.mailbox.send_nowait(number)
    with turn:
        adder.mailbox.send_nowait(3)
    assert not adder.alive
    assert not adder.sums
    assert adder.undelivered() == [13, 2, 3], "that of which it died included"


async def test_an_actor_takes_a_turn_at_its_deadline(autojump_clock) -> None:
    turn = Turn()
    adder = Adder(turn)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(adder.run)
        await trio.testing.wait_all_tasks_blocked()
        adder.deadline_s = trio.current_time() + 5
        with turn:
            turn.post(adder)
        assert adder.acts == 1
        adder.deadline_s = trio.current_time() + 2  # earlier: the timer is moved
        with turn:
            turn.post(adder)
        await trio.sleep(1.5)
        assert adder.acts == 2
        adder.deadline_s = trio.current_time() + 1000  # later: it is looked at when the timer ends
        await trio.sleep(1)
        assert adder.acts == 3
        adder.finish()


async def test_actors_with_one_deadline_all_take_their_turns(autojump_clock) -> None:
    turn = Turn()
    adders = [Adder(turn) for _ in range(3)]
    async with trio.open_nursery() as nursery:
        for adder in adders:
            adder.deadline_s = trio.current_time() + 1
            nursery.start_soon(adder.run)
        await trio.sleep(0.5)
        for adder in adders:
            assert not adder.acts
            adder.act = lambda adder=adder: (adder.finish(), Adder.act(adder))  # type: ignore[method-assign]
    assert [adder.acts for adder in adders] == [1, 1, 1]


async def test_an_actor_that_is_cancelled_takes_no_more_turns_at_deadlines(autojump_clock) -> None:
    adder = Adder(Turn())
    adder.deadline_s = trio.current_time() + 1
    with trio.move_on_after(0.5):
        await adder.run()
    await trio.sleep(2)
    assert not adder.acts


async def test_an_actor_that_is_buried_returns_its_mail() -> None:
    turn = Turn()
    adder = Adder(turn)
    adder.end()
    with turn:
        adder.mailbox.send_nowait(1)
    assert not adder.sums
    assert not adder.mailbox


def test_what_threads_ask_for_after_the_loop_has_ended_is_not_kept() -> None:
    async def scenario() -> Turn:
        return Turn()

    def never() -> None: ...

    turn = trio.run(scenario)
    kept = weakref.ref(never)
    with pytest.raises(trio.RunFinishedError):
        turn.call_from_thread(never)
    del never
    assert kept() is None


async def test_what_is_deferred_outside_of_a_turn_begins_one(log: list[str]) -> None:
    turn = Turn()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn.keep_running, True)
        await trio.testing.wait_all_tasks_blocked()
        turn.defer(Member("a", log))
        await trio.testing.wait_all_tasks_blocked()
        assert log == ["a"]
        turn.stop()


def test_an_interrupt_is_raised_when_the_turn_is_over(log: list[str]) -> None:
    """Mail that it left undelivered would be waited for when the server stops."""

    async def interrupted() -> None:
        turn = Turn()
        a, b = Member("a", log, lambda: signal.raise_signal(signal.SIGINT)), Member("b", log)
        with turn:
            for member in (a, b):
                turn.post(member)
        assert log == ["a", "b"]
        assert not a.failures
        log.append("over")
        await trio.lowlevel.checkpoint()

    with pytest.raises(KeyboardInterrupt):
        trio.run(interrupted)
    assert log == ["a", "b", "over"]
