"""The tensorflow package: imported when a model needs it, never before; and its errors in plain words."""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

from ...errors import InternalError, UnavailableError

_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}
"""Errors only; and results that do not depend on the processor. What the environment says goes before."""

_ANNOUNCEMENTS = ("Graph execution error:", "Detected at node", "Node: ", "[[")


def import_tensorflow() -> Any:
    """The package.

    Raises:
        UnavailableError: it is not installed, or broken.
    """
    for key, value in _QUIET.items():
        os.environ.setdefault(key, value)
    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # its warnings are for those who write models
    try:
        return importlib.import_module("tensorflow")
    except (ImportError, OSError) as error:
        raise UnavailableError(
            f"the backend 'tensorflow' needs the package tensorflow: pip install trireme[tensorflow] ({error})"
        ) from error


def error_types(tf: Any) -> tuple[type[Exception], ...]:
    """What its calls raise."""
    return (tf.errors.OpError, RuntimeError, ValueError, TypeError, LookupError, OSError)


def load_error(model_name: str, error: Exception) -> InternalError:
    """A model that TensorFlow cannot load."""
    return InternalError(f"unable to load model '{model_name}': {_reason(error)}")


def execute_error(error: Exception) -> InternalError:
    """A run that failed."""
    return InternalError(f"tensorflow error: {_reason(error)}")


def _reason(error: Exception) -> str:
    """What went wrong, without the announcements before it and the list of graph nodes that follows it."""
    text = str(getattr(error, "message", "") or error)
    lines = [line.strip() for line in text.splitlines()]
    telling = [line for line in lines if line and not line.startswith(_ANNOUNCEMENTS)]
    return telling[0] if telling else type(error).__name__
