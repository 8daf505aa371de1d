"""Bugs, planted on purpose: see `bugs`."""

from .bugs import PLANTED, planted

__all__ = ["PLANTED", "planted"]
