"""All rules of the oracle."""

from __future__ import annotations

from ..invariants.base import Complain, Invariant
from ..invariants.state import WorldState
from .decisions import RightDecisions
from .durations import RightDurations
from .idleness import IdleIsKnown
from .leaving import AnswersLeave
from .limiter import RightGrants
from .sequences import RightSequences


def oracle_rules(complain: Complain, state: WorldState) -> tuple[Invariant, ...]:
    """The rules, for one run."""
    return (
        RightDecisions(complain),
        RightSequences(complain),
        RightGrants(complain),
        IdleIsKnown(complain, state),
        AnswersLeave(complain),
        RightDurations(complain, state),
    )
