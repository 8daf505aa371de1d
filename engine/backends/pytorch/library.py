"""The torch package: imported when a model needs it, never before; and its errors in plain words."""

from __future__ import annotations

import importlib
from typing import Any

from ...errors import InternalError, UnavailableError


def import_torch() -> Any:
    """The package.

    Raises:
        UnavailableError: it is not installed, or broken.
    """
    try:
        return importlib.import_module("torch")
    except (ImportError, OSError) as error:
        raise UnavailableError(
            f"the backend 'pytorch' needs the package torch: pip install trireme[torch] ({error})"
        ) from error


def error_types(torch: Any) -> tuple[type[Exception], ...]:
    """What torch raises when it loads or runs a model: its own errors, and what the model's code may raise."""
    return (torch.jit.Error, RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError)


def load_error(model_name: str, error: Exception) -> InternalError:
    """A model file that torch cannot load."""
    return InternalError(f"failed to load model '{model_name}': {str(error).strip()}")


def execute_error(error: Exception) -> InternalError:
    """A model that raised."""
    return InternalError(f"PyTorch execute failure: {str(error).strip() or type(error).__name__}")
