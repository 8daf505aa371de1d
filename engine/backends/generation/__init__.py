"""Models that generate text, of any architecture that transformers knows, computed step by step."""

from .backend import GenerationBackend

__all__ = ["GenerationBackend"]
