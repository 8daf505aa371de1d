"""Bytes held for clients: no more than may be, and none of those who go on, or of other addresses, pay for the rest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.admission.client_bytes import ClientAccounts, ClientBytes


class Holder:
    """Notes that it was told to give up; declines if it is not `willing`."""

    def __init__(self, willing: bool = True) -> None:
        self.willing = willing
        self.asked = 0
        self.gone = False

    def make_way(self, account: ClientBytes) -> bool:
        self.asked += 1
        self.gone = self.willing
        return self.willing


def holders(count: int) -> list[Holder]:
    return [Holder() for _ in range(count)]


def test_the_one_that_has_gone_longest_gives_up() -> None:
    account = ClientBytes(100)
    first, second, third = holders(3)
    account.hold(first, "a", 40)
    account.hold(second, "b", 40)
    account.hold(third, "c", 20)
    assert account.held_bytes == 100
    account.hold(third, "c", 30)
    assert [each.gone for each in (first, second, third)] == [True, False, False]
    assert account.held_bytes == 70
    assert account.given_up == 1


def test_who_goes_on_is_told_last() -> None:
    """Less than before shows that a client reads, or that a message has been completed; more shows nothing."""
    account = ClientBytes(100)
    reads, grows, new = holders(3)
    account.hold(reads, "a", 50)
    account.hold(grows, "a", 30)
    account.hold(reads, "a", 49)
    account.hold(grows, "a", 40)
    account.hold(new, "a", 20)
    assert [each.gone for each in (reads, grows, new)] == [False, True, False]


def test_an_address_has_its_share() -> None:
    """What one address does is for that address to bear."""
    account = ClientBytes(100, 0.5)
    other, first, second = holders(3)
    account.hold(other, "other", 50)
    account.hold(first, "greedy", 40)
    account.hold(second, "greedy", 20)
    assert [each.gone for each in (other, first, second)] == [False, True, False]
    assert account.held_bytes == 70


def test_the_only_one_may_hold_more() -> None:
    account = ClientBytes(100, 0.5)
    (holder,) = holders(1)
    account.hold(holder, "a", 1000)
    assert not holder.asked
    account.hold(holder, "a", 2000)
    assert not holder.asked
    assert account.tight
    account.drop(holder)
    assert account.held_bytes == 0
    assert not account.tight


def test_the_only_one_of_its_address_gives_up_for_all() -> None:
    """Beyond its share it may go, beyond what there is for all it may not."""
    account = ClientBytes(100, 0.5)
    large, small = holders(2)
    account.hold(large, "a", 90)
    account.hold(small, "b", 10)
    assert not large.asked
    account.hold(small, "b", 11)
    assert large.gone


def test_who_declines_is_passed_over() -> None:
    account = ClientBytes(100)
    busy, idle = Holder(willing=False), Holder()
    account.hold(busy, "a", 90)
    account.hold(idle, "a", 20)
    assert (busy.asked, idle.gone) == (1, True)
    account.hold(busy, "a", 95)
    assert busy.asked == 1, "it is the only one"


def test_all_that_decline_are_asked_once_and_not_all_of_many() -> None:
    account = ClientBytes(100)
    busy = [Holder(willing=False) for _ in range(200)]
    for each in busy[:-1]:
        account.hold(each, "a", 0)
    account.hold(busy[-1], "a", 101)
    asked = sum(each.asked for each in busy)
    assert asked == 128, "64 for the address, and 64 for all"
    assert max(each.asked for each in busy) == 1


def test_dropping_twice_is_fine() -> None:
    account = ClientBytes(100)
    (holder,) = holders(1)
    account.hold(holder, "a", 10)
    account.drop(holder)
    account.drop(holder)
    assert account.held_bytes == 0


def test_accounts_of_a_server() -> None:
    accounts = ClientAccounts.of(4 << 30, 0.5)
    assert accounts.unfinished.limit_bytes == 256 << 20
    assert accounts.unread.limit_bytes == 4 << 30
    least = ClientAccounts.of(1, 1.0)
    assert (least.unfinished.limit_bytes, least.unread.limit_bytes) == (16 << 20, 64 << 20)
    of_eight = ClientAccounts.of(1, 1.0, processes=8)  # together they have what the server has
    assert (of_eight.unfinished.limit_bytes, of_eight.unread.limit_bytes) == (2 << 20, 8 << 20)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 60), st.booleans()), max_size=80))
def test_the_sums_are_right(steps: list[tuple[int, int, bool]]) -> None:
    """Whatever comes, no more is held than may be, except by one alone; and nothing is left of who is gone."""
    account = ClientBytes(100, 0.5)
    alive: dict[int, tuple[Holder, int]] = {}
    for number, nbytes, leaves in steps:
        holder = alive.pop(number, (Holder(), 0))[0]
        if leaves:
            account.drop(holder)
        else:
            alive[number] = (holder, nbytes)
            account.hold(holder, str(number % 3), nbytes)
        alive = {key: value for key, value in alive.items() if not value[0].gone}
        held = [(key % 3, value[1]) for key, value in alive.items()]
        assert account.held_bytes == sum(nbytes for _, nbytes in held)
        assert account.held_bytes <= 100 or len(held) == 1
        for address in range(3):
            of_address = [nbytes for key, nbytes in held if key == address]
            assert sum(of_address) <= 50 or len(of_address) == 1
    for holder, _ in alive.values():
        account.drop(holder)
    assert account.held_bytes == len(account._holders) == 0
    assert account._addresses == account._address_bytes == {}
