"""Models in ONNX format, executed by ONNX Runtime (docs/reference/backends.md#onnx-runtime)."""

from .backend import OnnxRuntimeBackend

__all__ = ["OnnxRuntimeBackend"]
