"""The backend's options, ``--backend-config=python,NAME=VALUE``
(docs/reference/python-backend.md#files-and-imports)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..engine.backends.parameters import parse_int
from ..engine.errors import InvalidArgumentError

_MIB = 1 << 20
_UNUSED = {
    "shm-default-byte-size": _MIB,
    "shm-growth-byte-size": 1,
    "shm_message_queue_size": 1,
    "thread-pool-size": 1,
}
"""Checked, and of no effect: shared memory is made as it is needed, and calls to other models take no threads. By name,
the least value."""


@dataclass(frozen=True, slots=True)
class PythonOptions:
    """
    Attributes:
        timeout_s: seconds that a process may take until it is up, and later to end.
        debug_port: where a model's process waits for a debugger before it loads the model; 0 for not at all.
        auto_complete_s: seconds that a model may take to complete its configuration.
    """

    timeout_s: float
    debug_port: int = 0
    auto_complete_s: float = 300.0


def read_options(options: Mapping[str, str]) -> PythonOptions:
    """Check the options.

    Raises:
        InvalidArgumentError: a value is no number, or too small.
    """
    for name, least in _UNUSED.items():
        _integer(options, name, least, least)
    return PythonOptions(
        _integer(options, "stub-timeout-seconds", 30, 1),
        _integer(options, "debug-port", 0, 0),
        _integer(options, "auto-complete-timeout-seconds", 300, 1),
    )


def _integer(options: Mapping[str, str], name: str, default: int, least: int) -> int:
    if name not in options:
        return default
    value = parse_int(options[name], bits=64)
    if value < least:
        raise InvalidArgumentError(f"{name} must be at least {least}, got {value}")
    return value
