"""Models in ONNX format, executed by ONNX Runtime (backends.md §2)."""

from .backend import OnnxRuntimeBackend

__all__ = ["OnnxRuntimeBackend"]
