"""All rules of the oracle."""

from __future__ import annotations

from ..invariants.base import Complain, Invariant
from .decisions import RightDecisions


def oracle_rules(complain: Complain) -> tuple[Invariant, ...]:
    """The rules, for one run."""
    return (RightDecisions(complain),)
