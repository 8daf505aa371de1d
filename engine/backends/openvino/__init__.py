"""Models that OpenVINO reads, executed on CPUs (docs/reference/backends.md#openvino)."""

from .backend import OpenVinoBackend

__all__ = ["OpenVinoBackend"]
