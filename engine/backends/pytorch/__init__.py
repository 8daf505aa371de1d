"""PyTorch models: TorchScript, exported programs and plain Python classes (docs/reference/backends.md#pytorch)."""

from .backend import PyTorchBackend

__all__ = ["PyTorchBackend"]
