"""Models that OpenVINO reads, executed on CPUs (backends.md §5)."""

from .backend import OpenVinoBackend

__all__ = ["OpenVinoBackend"]
