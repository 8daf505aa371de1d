"""All rules of the oracle."""

from __future__ import annotations

from ..invariants.base import Complain, Invariant


def oracle_rules(complain: Complain) -> tuple[Invariant, ...]:
    """The rules, for one run."""
    return ()
