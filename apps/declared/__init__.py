"""What a file with models imports, and what runs them: Python 3.9 and later, and numpy; nothing else of Trireme.

`trireme export` copies this folder beside a model, so that it runs where Trireme is not installed.
"""

from .adapters import adapt
from .context import RequestContext
from .errors import DeclarationError
from .model import model
from .types import (
    BF16,
    BOOL,
    BYTES,
    FP16,
    FP32,
    FP64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
)

__all__ = [
    "BF16",
    "BOOL",
    "BYTES",
    "FP16",
    "FP32",
    "FP64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "DeclarationError",
    "RequestContext",
    "adapt",
    "model",
]
