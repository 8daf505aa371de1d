"""Memory of segments goes back when nothing uses it, though nothing is said any more."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from link_ends import all_of, both_ends, payload_of

from trireme.actors.actor import Turn
from trireme.front_ends.arena import memory_for
from trireme.front_ends.borrower import MOST_RETURNED_BYTES
from trireme.front_ends.link import FrontEndLink
from trireme.front_ends.tidying import TIDY_S, Tidying

MIB = 1 << 20


def held_bytes(link: FrontEndLink) -> int:
    """What this end's segments take: free ones, and lent ones."""
    lender = link.lender
    return lender.free_bytes + sum([segment.nbytes for segment in lender._lent.values()])


def mapped_bytes(link: FrontEndLink) -> int:
    """What this end has mapped of the other's."""
    return sum([segment.nbytes for segment in link._borrower._segments.values()])


class Ends:
    """Both ends of a link, each flushed when it asks for that.

    Attributes:
        flushes: of both.
    """

    def __init__(self, one: FrontEndLink, other: FrontEndLink) -> None:
        self.one, self.other = one, other
        self.flushes = 0

    def flush(self) -> None:
        self.flushes += 1
        for _ in range(2):  # what one has given back, it may drop
            for link in (self.one, self.other):
                link.flush()
                all_of(link)

    def use(self, count: int, nbytes: int = MIB) -> None:
        """Send payloads, which the other end looks at one by one, and says nothing."""
        for number in range(count):
            assert self.one.send([number], payload_of(bytes(nbytes))[0])
            self.one.flush()
            all_of(self.other)


@asynccontextmanager
async def tidied() -> AsyncIterator[Ends]:
    with both_ends() as (one, other):
        ends = Ends(one, other)
        turn = Turn()
        async with trio.open_nursery() as nursery:
            tidyings = [Tidying(link, turn, ends.flush) for link in (one, other)]
            for each in tidyings:
                nursery.start_soon(each.run)
            await trio.testing.wait_all_tasks_blocked()
            yield ends
            for link, each in zip((one, other), tidyings, strict=True):
                if link.uses_segments:
                    each.begin()
            await trio.sleep(10 * TIDY_S)
            assert not one.uses_segments
            assert not other.uses_segments
            nursery.cancel_scope.cancel()


async def test_all_memory_goes_back_when_nothing_is_sent_any_more(autojump_clock: trio.testing.MockClock) -> None:
    async with tidied() as ends:
        ends.use(8)
        assert held_bytes(ends.one) >= 8 * MIB
        assert mapped_bytes(ends.other) >= 8 * MIB
    assert (held_bytes(ends.one), mapped_bytes(ends.other)) == (0, 0)


async def test_it_does_not_look_while_there_are_no_segments(autojump_clock: trio.testing.MockClock) -> None:
    async with tidied() as ends:
        ends.one.send([1])
        ends.one.flush()
        all_of(ends.other)
        await trio.sleep(100 * TIDY_S)
        assert ends.flushes == 0


async def test_memory_that_is_received_into_and_never_sent(autojump_clock: trio.testing.MockClock) -> None:
    async with tidied() as ends:
        body = memory_for(ends.one.lender, 8 * MIB)
        assert held_bytes(ends.one) >= 8 * MIB
        del body
    assert held_bytes(ends.one) == 0


def test_what_is_used_stays() -> None:
    """A free segment that is used between two looks is kept."""
    with both_ends() as (one, other):
        ends = Ends(one, other)
        for _ in range(5):
            ends.use(1)
            ends.flush()
            assert held_bytes(one) == MIB
            one.tidy()
            other.tidy()
        assert held_bytes(one) == MIB
        one.tidy()
        ends.flush()
        assert held_bytes(one) == 0
        assert mapped_bytes(other) == 0


def test_what_is_looked_at_is_not_taken_away() -> None:
    with both_ends() as (one, other):
        ends = Ends(one, other)
        assert one.send([1], payload_of(b"\7" * MIB)[0])
        one.flush()
        (message,) = all_of(other)
        for _ in range(3):
            one.tidy()
            other.tidy()
            ends.flush()
            assert one.uses_segments
            assert other.uses_segments
        assert message.payload[MIB - 1] == 7


@pytest.mark.parametrize("nbytes", [MIB, 4 * MIB])
def test_what_is_not_given_back_is_bounded_by_its_bytes(nbytes: int) -> None:
    with both_ends() as (one, other):
        asked: list[int] = []
        other._borrower.on_returned = lambda: asked.append(threading.get_ident())
        ends = Ends(one, other)
        ends.use(MOST_RETURNED_BYTES // nbytes - 1, nbytes)
        assert not asked
        ends.use(1, nbytes)
        assert len(asked) == 1
        ends.flush()
        assert not one.lender._lent
        ends.use(1, nbytes)
        assert len(asked) == 1, "it counts anew"


def test_memory_is_the_systems_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted where the system counts it, for both ends."""

    def shared_bytes() -> int:
        with open("/proc/self/smaps") as file:
            lines = iter(file)
            found = 0
            for line in lines:
                if "memfd:trireme" in line:
                    found += next(int(each.split()[1]) << 10 for each in lines if each.startswith("Rss:"))
            return found

    with both_ends() as (one, other):
        before = shared_bytes()
        ends = Ends(one, other)
        held: list[Any] = []
        for number in range(4):
            assert one.send([number], payload_of(np.ones(8 * MIB, np.uint8).tobytes())[0])
            one.flush()
            held += all_of(other)
        assert shared_bytes() - before >= 32 * MIB
        held.clear()
        ends.flush()
        one.tidy()
        one.tidy()
        ends.flush()
        assert shared_bytes() - before < MIB
