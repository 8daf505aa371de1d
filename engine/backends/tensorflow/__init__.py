"""TensorFlow models: SavedModel and frozen graphs (backends.md §6)."""

from .backend import TensorFlowBackend

__all__ = ["TensorFlowBackend"]
