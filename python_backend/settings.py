"""The settings that a model's process gets at its start (`child.protocol.START`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..engine.backends.interface import InstanceSpec, ModelFiles
from ..engine.backends.registry import SCRIPT
from ..engine.config.json_writer import write_json
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
    """The settings of one instance."""
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
