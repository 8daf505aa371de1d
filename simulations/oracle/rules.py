"""All rules of the oracle."""

from __future__ import annotations

from ..invariants.base import Complain, Invariant
from ..invariants.state import WorldState
from .cache import RightHits
from .decisions import RightDecisions
from .durations import RightDurations
from .idleness import IdleIsKnown
from .leaving import AnswersLeave
from .limiter import RightGrants
from .members import MembersAreAsked
from .sequences import RightSequences


def oracle_rules(complain: Complain, state: WorldState, plenty: bool = False) -> tuple[Invariant, ...]:
    """The rules, for one run.

    Args:
        plenty: the response cache has room for all responses.
    """
    return (
        RightDecisions(complain),
        RightSequences(complain),
        RightGrants(complain),
        RightHits(complain, state, plenty),
        MembersAreAsked(complain, state),
        IdleIsKnown(complain, state),
        AnswersLeave(complain),
        RightDurations(complain, state),
    )
