"""PyTorch models: TorchScript, exported programs and plain Python classes (backends.md §3)."""

from .backend import PyTorchBackend

__all__ = ["PyTorchBackend"]
