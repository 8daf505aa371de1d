"""TensorFlow models: SavedModel and frozen graphs (docs/reference/backends.md#tensorflow)."""

from .backend import TensorFlowBackend

__all__ = ["TensorFlowBackend"]
