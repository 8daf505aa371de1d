"""Engines built by TensorRT ("plans"), executed on GPUs (docs/reference/backends.md#tensorrt)."""

from .backend import TensorRtBackend

__all__ = ["TensorRtBackend"]
