"""How many connections one address may hold, so that none can take the places of others.

Rule 1: An address that has no connection gets one, as long as there is a place.
Rule 2: An address holds at most the part `Limits.address_share` of the places.
Rule 3: When less than `_RESERVE` of the places are free, it holds no more than are free: the last ones are for those
        that have few.
Rule 4: Who has too many may replace one of its own in which nothing is asked. So who only looks whether the server is
        there gets in, even from an address that holds what it may.

Of IPv6, the first 64 bits are the address: the others are chosen by the owner of those.
"""

from __future__ import annotations

import ipaddress

from .limits import Limits

_RESERVE = 0.1


def has_room(held: int, total: int, limits: Limits) -> bool:
    """Whether an address may have one more connection (rules 1 to 3).

    Args:
        held: connections of the address.
        total: connections of all addresses.
    """
    places = limits.max_connections
    if not held:
        return True
    if held + 1 > places * limits.address_share:
        return False
    free = places - total
    return free > places * _RESERVE or held < free


def shared_address(host: str) -> str:
    """What counts as one address. `host` is numeric; anything else counts as it is."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(address) >> 64 << 64)) + "/64"
