"""Options of the backend, parameters of models, and the settings that a model's process gets at its start
(`child.protocol.START`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..engine.backends.interface import InstanceSpec, ModelFiles
from ..engine.backends.parameters import parse_int
from ..engine.backends.registry import SCRIPT
from ..engine.config.json_text import write_json
from ..engine.config.model import ModelConfig
from ..engine.errors import InvalidArgumentError

EXECUTION = "EXECUTION"
IN_PROCESS = "in_process"

ASYNC_LIBRARY = "ASYNC_LIBRARY"
"""What coroutines of a model run on. In the server's process that is trio's event loop unless this says otherwise; in a
process of the model's own there need be nothing but asyncio's."""

_CHOICES = {"FORCE_CPU_ONLY_INPUT_TENSORS": ("yes", "no"), EXECUTION: ("process", IN_PROCESS)}
"""Parameters of models, each with the values that it may have, the default first."""

_KINDS = {"KIND_CPU": "CPU", "KIND_GPU": "GPU", "KIND_MODEL": "MODEL"}


def model_path(config: ModelConfig, files: ModelFiles, spec: InstanceSpec, script: Path | None) -> str:
    """The file with the model's class: the user's, or a Python-based backend's."""
    return str(script or files.model_path(config, spec, SCRIPT))


def check_parameters(config: ModelConfig) -> None:
    """
    Raises:
        InvalidArgumentError: one of the backend's own parameters has a value that it cannot have.
    """
    for name, values in _CHOICES.items():
        value = config.parameters.get(name, values[0])
        if value not in values:
            expected = " or ".join(f"'{value}'" for value in values)
            raise InvalidArgumentError(
                f"parameter '{name}' of model '{config.name}' must be {expected}, but is '{value}'"
            )
    library = config.parameters.get(ASYNC_LIBRARY, "asyncio")
    allowed = ("trio", "asyncio") if runs_in_process(config) else ("asyncio",)
    if library not in allowed:
        expected = " or ".join(f"'{value}'" for value in allowed)
        where = "the server's process" if runs_in_process(config) else "a process of its own"
        raise InvalidArgumentError(
            f"parameter '{ASYNC_LIBRARY}' of model '{config.name}', which runs in {where}, must be {expected}, but is "
            f"'{library}'"
        )


def runs_in_process(config: ModelConfig) -> bool:
    """Whether the model runs in the server's own process."""
    return config.parameters.get(EXECUTION) == IN_PROCESS


def wants_asyncio(config: ModelConfig) -> bool:
    """Whether the model's coroutines run on asyncio in the server's process, too."""
    return config.parameters.get(ASYNC_LIBRARY) == "asyncio"


def start_settings(
    config: ModelConfig,
    files: ModelFiles,
    spec: InstanceSpec,
    script: Path | None,
    *,
    auto_complete: bool = False,
    debug_port: int = 0,
) -> dict[str, Any]:
    return {
        "model_path": model_path(config, files, spec, script),
        "search_paths": () if script is None else (str(script.parent),),
        "package": f"{spec.name}_{files.version}" if runs_in_process(config) else None,
        "decoupled": config.decoupled,
        "auto_complete": auto_complete,
        "debug_port": debug_port,
        "args": {
            "model_config": write_json(config.message).decode(),
            "model_instance_kind": _KINDS.get(spec.kind, "CPU"),
            "model_instance_name": spec.name,
            "model_instance_device_id": str(spec.device_id),
            "model_repository": str(files.model_directory),
            "model_version": str(files.version),
            "model_name": config.name,
        },
    }


# -- How many batches a model may execute at once whose ``execute`` is a coroutine


PARAMETER = "MAX_OVERLAPPING_BATCHES"
DEFAULT = 16


def most_batches(config: ModelConfig) -> int:
    """What the parameter says. Requests of a sequence come one after the other, so a model with sequence batching
    executes one batch at a time, whatever it says.

    Raises:
        InvalidArgumentError: the parameter is no positive number.
    """
    text = config.parameters.get(PARAMETER, str(DEFAULT))
    try:
        number = parse_int(text)
    except InvalidArgumentError:
        number = 0
    if number < 1:
        raise InvalidArgumentError(
            f"parameter '{PARAMETER}' of model '{config.name}' must be a whole number of at least 1, got '{text}'"
        )
    return 1 if config.has_sequence_batching else number


# The backend's options, ``--backend-config=python,NAME=VALUE``
# (docs/reference/python-backend.md#files-and-imports).


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
