"""The decision oracle: for each rule, a naive statement of which decision is right, held against every decision."""

from .rules import oracle_rules

__all__ = ["oracle_rules"]
