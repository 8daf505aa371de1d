"""The budget without tasks: those who wait are served in the call that gives room back."""

from __future__ import annotations

import outcome

from trireme.engine.admission.budget import BudgetCore, LeaseCore


class Line:
    """A budget of 800 bytes, of which bodies may have 700, and those of one address 350."""

    def __init__(self) -> None:
        self.budget = BudgetCore(10, 800, 0.5)
        self.served: list[str] = []

    def lease(self, client: str, nbytes: int = 0) -> LeaseCore:
        lease = LeaseCore(self.budget, None, self.budget.begin(client))
        assert not nbytes or lease.grow_nowait(nbytes)
        return lease

    def wait(self, name: str, client: str, nbytes: int):
        lease = self.lease(client)
        assert not lease.grow_nowait(nbytes)
        waiter = self.budget.grow_later(lease, nbytes, lambda _waited: name)
        waiter.wake = lambda result: self.served.append(f"{result.unwrap()} has {lease.nbytes}")
        return waiter


def test_who_waits_for_its_address_is_served_when_another_body_of_it_is_complete() -> None:
    line = Line()
    first = line.lease("a", 300)
    line.wait("second", "a", 200)
    line.wait("third", "a", 100)
    assert line.served == []
    first.arrived()
    assert line.served == ["second has 200", "third has 100"], "in the same call, in the order in which they came"


def test_who_has_the_share_of_its_address_waits_for_the_budget() -> None:
    line = Line()
    first, other = line.lease("a", 300), line.lease("b", 350)
    line.wait("second", "a", 100)
    first.arrived()
    assert line.served == [], "the budget has 50 bytes left for bodies"
    other.close()
    assert line.served == ["second has 100"]


def test_who_gives_up_has_taken_nothing_wherever_it_waits() -> None:
    line = Line()
    first, other = line.lease("a", 300), line.lease("b", 350)
    at_address = line.wait("x", "a", 200)
    at_address.give_up()
    at_budget = line.wait("y", "c", 200)
    assert line.budget.statistics().waiting == 1
    at_budget.give_up()
    first.close()
    other.close()
    assert line.served == []
    assert (line.budget.statistics().bytes, line.budget.statistics().waiting) == (0, 0)


def test_what_follows_from_getting_room_may_fail_and_may_give_room_back() -> None:
    """A refusal is the outcome of waiting; a place that is given back at once serves the next one."""
    budget = BudgetCore(2, 800)
    one, two = budget.share("one"), budget.share("two")
    assert budget.take_nowait(one, 0)
    assert budget.take_nowait(two, 0)
    results: list[object] = []

    def refused(_waited: bool) -> None:
        budget.release(three, 0)
        raise ValueError("no")

    three, four = budget.share("three"), budget.share("four")
    budget.take_later(three, 0, refused).wake = results.append
    budget.take_later(four, 0, lambda waited: waited).wake = results.append
    budget.release(one, 0)
    failed, admitted = results
    assert isinstance(failed, outcome.Error)
    assert str(failed.error) == "no"
    assert admitted == outcome.Value(True)
    assert budget.statistics().requests == 2
