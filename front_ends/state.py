"""What else front ends know of the server (`kinds.STATE`): that it stops, and whether requests could be traced."""

from __future__ import annotations

from ..engine.tracing import Tracer
from .kinds import STATE
from .link import LinkHead


def write_state(exiting: bool, tracer: Tracer) -> LinkHead:
    """The message; to be sent whenever it is another one than before."""
    return (STATE, exiting, tracer.active, tracer.takes_contexts)
