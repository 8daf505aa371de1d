"""How many connections one address may hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.api.sockets.limits import Limits, has_room, shared_address


@pytest.mark.parametrize(
    ("held", "total", "allowed"),
    [
        (0, 99, True),  # who has none gets one
        (49, 60, True),
        (50, 60, False),  # half of the places
        (10, 89, True),
        (10, 90, False),  # the last ten are for those that have few
        (5, 94, True),
        (6, 94, False),
    ],
)
def test_shares_of_a_hundred_places(held: int, total: int, allowed: bool) -> None:
    assert has_room(held, total, Limits(max_connections=100)) is allowed


@pytest.mark.parametrize(("held", "allowed"), [(50, True), (89, True), (90, False)])
def test_a_proxy_that_has_the_port_to_itself(held: int, allowed: bool) -> None:
    assert has_room(held, held, Limits(max_connections=100, address_share=1.0)) is allowed


@given(st.integers(10, 500), st.lists(st.integers(0, 5), max_size=600))
def test_the_last_place_is_for_an_address_without_one(places: int, wishes: list[int]) -> None:
    """However six addresses ask for connections. With fewer than ten places none is kept free (rule 3)."""
    held = [0] * 6
    limits = Limits(max_connections=places)
    for address in wishes:
        if sum(held) < places and has_room(held[address], sum(held), limits):
            held[address] += 1
            assert sum(held) < places or held[address] == 1
    assert max(held) <= max(1, places // 2)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("no:address", "no:address"),
        ("", ""),
    ],
)
def test_addresses(host: str, address: str) -> None:
    assert shared_address(host) == address
