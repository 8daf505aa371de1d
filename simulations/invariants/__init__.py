"""What must always hold: small machines that read events, and complain."""

from .base import Invariant, Violation
from .watch import WorldWatch

__all__ = ["Invariant", "Violation", "WorldWatch"]
