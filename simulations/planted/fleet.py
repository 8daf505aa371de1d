"""Bugs of what decides which replica gets a request, planted on purpose (`bugs`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...engine.fleet.members import FleetGroup, FleetMember, FleetMembers
from ...engine.fleet.router import FleetRouter
from ...engine.fleet.sequences import KnownSequences
from ...engine.fleet.types import AttemptEnd, RequestToPlace, SendTo


def _start_anywhere(
    original: Any, router: FleetRouter, request: RequestToPlace, group: FleetGroup, now_s: float
) -> Any:
    """A sequence begins at the least busy replica, where other gateways do not look for it first."""
    del original
    return router._members.pick(group, request.name, now_s, request.tried)


def _lost_unheard(original: Any, sequences: KnownSequences, member: FleetMember) -> None:
    """That a replica is gone is not heard by its sequences."""
    del original, sequences, member


def _sent_again_when_lost(original: Any, router: FleetRouter, sent: SendTo, end: AttemptEnd, now_s: float) -> Any:
    """A request whose connection was lost is sent again."""
    return original(router, sent, AttemptEnd.REFUSED if end is AttemptEnd.LOST else end, now_s)


def _retries_for_nothing(original: Any, router: FleetRouter, *arguments: Any) -> Any:
    """Retries take nothing from their budget."""
    retries = router._retries
    found = original(router, *arguments)
    router._retries = max(retries, 1.0)
    return found


def _overtaken(original: Any, router: FleetRouter, now_s: float) -> Any:
    """Of requests that wait behind another one of their sequence the last one goes first."""
    for known in router._in_line:
        known.line.reverse()
    return original(router, now_s)


def _drains_unheard(original: Any, member: FleetMember, report: Any, now_s: float) -> Any:
    """A replica that drains gets new requests as long as it reports."""
    again = original(member, report, now_s)
    member.report = type(report)(report.epoch, False, report.models, report.loads)
    return again


def _ejected_again(original: Any, members: FleetMembers, member: FleetMember, now_s: float) -> None:
    """All outliers are ejected, however few are left."""
    del original
    member.eject(now_s, members.settings)


def _failures_add_up(original: Any, member: FleetMember) -> None:
    """Failures count although requests succeed in between."""
    del original, member


def _silence_unheard(original: Any, members: FleetMembers, member: FleetMember, now_s: float) -> bool:
    """A replica that does not report any more gets requests as before."""
    return original(members, member, min(now_s, max(member.reported_s, member.ejected_s)))


def _no_look_up(original: Any, router: FleetRouter, request: RequestToPlace) -> Any:
    """For a sequence that is not known one replica is asked."""
    return None if request.tried else original(router, request)


def _room_unheard(original: Any, router: FleetRouter, *arguments: Any) -> None:
    """A replica that is there again wakes no request."""
    due_s = router.due_s
    original(router, *arguments)
    router.due_s = due_s


FLEET_BUGS: Mapping[str, tuple[type, str, Callable[..., Any]]] = {
    "start-anywhere": (FleetRouter, "_place_sequence", _start_anywhere),
    "lost-unheard": (KnownSequences, "lose", _lost_unheard),
    "sent-again-when-lost": (FleetRouter, "settle", _sent_again_when_lost),
    "retries-for-nothing": (FleetRouter, "_retry", _retries_for_nothing),
    "overtaken": (FleetRouter, "tick", _overtaken),
    "drains-unheard": (FleetMember, "take", _drains_unheard),
    "ejected-again": (FleetMembers, "eject", _ejected_again),
    "failures-add-up": (FleetMember, "answered", _failures_add_up),
    "silence-unheard": (FleetMembers, "usable", _silence_unheard),
    "no-look-up": (FleetRouter, "_look_up", _no_look_up),
    "report-unheard": (FleetRouter, "_changed", _room_unheard),
}
"""Found by swarm runs of a fleet (`fleet.swarm`)."""
