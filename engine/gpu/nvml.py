"""NVML, the library that knows a machine's GPUs, by its Python binding: opened for a while, and closed again.

Nothing of it is touched before it is needed, and a machine without GPUs is nothing to speak of.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

logger = logging.getLogger("trireme.gpu")

_LIBRARY = "libnvidia-ml.so.1"
_BINDING = "pynvml"


@contextmanager
def opened_nvml(in_vain: str, log: logging.Logger = logger) -> Iterator[Any]:
    """The module ``pynvml``, initialised; None where there is no GPU, or none that answers.

    Args:
        in_vain: what cannot be done if it does not open, for a warning: ``GPUs cannot be used``. There is none where
            there is neither a library nor a driver, as on every machine without GPUs.
    """
    nvml = _initialised(in_vain, log)
    if nvml is None:
        yield None
        return
    try:
        yield nvml
    finally:
        with suppress(nvml.NVMLError):  # what was asked is answered, and a GPU that is lost may spoil this as well
            nvml.nvmlShutdown()


def _library_is_there() -> bool:
    """Whether the driver's library can be loaded. Asking costs a hundredth of importing the binding."""
    if _BINDING in sys.modules:
        return True
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return False
    return True


def _initialised(in_vain: str, log: logging.Logger) -> Any:
    if not _library_is_there():
        return None
    try:
        nvml: Any = import_module(_BINDING)
    except ImportError as error:
        log.warning("%s: %s", in_vain, error)
        return None
    try:
        nvml.nvmlInit()
    except (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded):
        return None
    except nvml.NVMLError as error:
        log.warning("%s: %s", in_vain, error)
        return None
    return nvml
