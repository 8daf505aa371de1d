"""Trireme, an inference server that speaks Triton's protocols.

    import trireme

    with trireme.Server("models") as server:
        answer = server.model("digits")(image=image)

What is named here is imported when it is first used, so that ``import trireme`` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trireme.engine.version import VERSION

if TYPE_CHECKING:
    from trireme.apps.declared import (
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
        DeclarationError,
        RequestContext,
        adapt,
        model,
    )
    from trireme.engine.errors import (
        AlreadyExistsError,
        CancelledError,
        DeadlineError,
        InternalError,
        InvalidArgumentError,
        LimitExceededError,
        NotFoundError,
        PermissionDeniedError,
        TriremeError,
        UnauthenticatedError,
        UnavailableError,
        UnsupportedError,
    )
    from trireme.server import Server, StartError

__version__ = VERSION

_DECLARED = "trireme.apps.declared"
_ERRORS = "trireme.engine.errors"
_PLACES = {
    **dict.fromkeys(("BF16", "BOOL", "BYTES", "FP16", "FP32", "FP64", "INT8", "INT16", "INT32", "INT64"), _DECLARED),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32", "UINT64", "DeclarationError", "adapt", "model"), _DECLARED),
    **dict.fromkeys(("AlreadyExistsError", "CancelledError", "DeadlineError", "InternalError"), _ERRORS),
    **dict.fromkeys(("InvalidArgumentError", "LimitExceededError", "NotFoundError", "TriremeError"), _ERRORS),
    **dict.fromkeys(("PermissionDeniedError", "UnauthenticatedError", "UnavailableError"), _ERRORS),
    "UnsupportedError": _ERRORS,
    "RequestContext": _DECLARED,
    "Server": "trireme.server",
    "StartError": "trireme.server",
}
"""By public name, the module that has it."""

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
    "AlreadyExistsError",
    "CancelledError",
    "DeadlineError",
    "DeclarationError",
    "InternalError",
    "InvalidArgumentError",
    "LimitExceededError",
    "NotFoundError",
    "PermissionDeniedError",
    "RequestContext",
    "Server",
    "StartError",
    "TriremeError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnsupportedError",
    "__version__",
    "adapt",
    "model",
]


def __getattr__(name: str) -> Any:
    """Import what has this name."""
    if name not in _PLACES:
        raise AttributeError(f"module 'trireme' has no attribute '{name}'")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
