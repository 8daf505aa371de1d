"""Engines built by TensorRT ("plans"), executed on GPUs (backends.md §4)."""

from .backend import TensorRtBackend

__all__ = ["TensorRtBackend"]
