"""Bugs of front ends and of their links, planted on purpose (`bugs`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...engine.tracing.record import Trace
from ...front_ends import kinds
from ...front_ends.leases import RemoteBudget
from ...front_ends.link import FrontEndLink
from ...front_ends.port import Port
from ...front_ends.port_leases import PortLeases
from ...front_ends.processes import FrontEnds
from ...front_ends.remote_server import RemoteServer
from ...front_ends.ring import RingReader, RingWriter


def _lost_bell(original: Any, link: FrontEndLink) -> None:
    """Some doorbells are not rung."""
    if link._writer._published % 64:
        original(link)


def _room_untold(original: Any, reader: RingReader) -> bool:
    """Who waits for room in a ring is not told of it."""
    original(reader)
    return False


def _ring_overwritten(original: Any, writer: RingWriter) -> None:
    """What is written counts as read."""
    original(writer)
    writer._read = writer._published


def _lease_kept(original: Any, leases: PortLeases) -> None:
    """What a front end holds of the budget is not given back when it ends."""
    leases._held.clear()


def _requests_go_on(original: Any, port: Port) -> None:
    """The requests of a front end that has ended are not cancelled."""
    port._pending.clear()
    original(port)


def _number_used_again(original: Any, server: RemoteServer, cancel: Any) -> None:
    """The number of a request that is given up is free at once."""
    original(server, cancel)
    server._last = min(server._last, cancel.job.number - 1)


def _taken_unheard(original: Any, port: Port, head: Any, payload: Any) -> None:
    """That a client has taken answers is not heard."""


def _followed_unheard(original: Any, port: Port, head: Any, payload: Any) -> None:
    """Who follows a request hears that it was accepted with its answer only."""


def _followed_too_early(original: Any, port: Port, head: Any, payload: Any) -> None:
    """The same for a request that waits for room when its front end asks to hear."""
    pending = port._pending.get(head[1])
    if pending is not None and pending.reply is not None:
        original(port, head, payload)


def _result_of_another(original: Any, server: RemoteServer, head: Any, payload: Any) -> None:
    """The result of a call is taken for that of the one that was made first."""
    first = min(server._calls, default=0)
    original(server, [kinds.RESULT, first, *head[2:]] if first and head[0] == kinds.RESULT else head, payload)


def _notes_lost(original: Any, port: Port, head: Any, payload: Any) -> None:
    """Of two requests that come by a front end, the notes of one are not heard."""
    if head[1] % 2:
        original(port, head, payload)


def _steps_untold(original: Any, trace: Trace) -> Trace:
    """Of an ensemble's steps, only the first few are found under it."""
    step = original(trace)
    if len(trace.descendants) > 2:
        trace.descendants.pop()
    return step


async def _not_settled(original: Any, front_ends: FrontEnds) -> None:
    """Who changes a model does not wait until all front ends know."""


def _grant_lost(original: Any, budget: RemoteBudget, number: Any, nbytes: Any) -> None:
    """What is granted to a lease for the second time is forgotten."""
    lease = budget._by_number.get(number)
    if lease is None or not lease.nbytes:
        original(budget, number, nbytes)


def _segment_kept(original: Any, link: FrontEndLink) -> None:
    """Of two segments one is not given back."""
    returned = link._borrower.returned
    told = [number for number in returned if number % 2]
    returned.clear()
    returned.extend(told)
    original(link)


FRONT_END_BUGS: Mapping[str, tuple[type, str, Callable[..., Any]]] = {
    "bell-not-rung": (FrontEndLink, "_ring", _lost_bell),
    "room-untold": (RingReader, "release", _room_untold),
    "ring-overwritten": (RingWriter, "_look", _ring_overwritten),
    "lease-kept": (PortLeases, "close_all", _lease_kept),
    "requests-go-on": (Port, "_close", _requests_go_on),
    "number-used-again": (RemoteServer, "_give_up", _number_used_again),
    "followed-too-early": (Port, "_follow", _followed_too_early),
    "followed-unheard": (Port, "_follow", _followed_unheard),
    "taken-unheard": (Port, "_taken", _taken_unheard),
    "change-unheard": (FrontEnds, "_settled", _not_settled),
    "grant-lost": (RemoteBudget, "granted", _grant_lost),
    "result-of-another": (RemoteServer, "received", _result_of_another),
    "notes-lost": (Port, "_note", _notes_lost),
    "steps-untold": (Trace, "step", _steps_untold),
    "segment-kept": (FrontEndLink, "flush", _segment_kept),
}
