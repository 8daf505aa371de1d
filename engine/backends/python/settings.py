"""What a model's process is told at its start (`child.protocol.START`)."""

from __future__ import annotations

from typing import Any

from ...config.json_writer import write_json
from ...config.model import ModelConfig
from ..interface import InstanceSpec, ModelFiles

DEFAULT_FILENAME = "model.py"

_KINDS = {"KIND_CPU": "CPU", "KIND_GPU": "GPU", "KIND_MODEL": "MODEL"}


def model_path(config: ModelConfig, files: ModelFiles) -> str:
    """The user's file."""
    return str(files.version_directory / (config.default_model_filename or DEFAULT_FILENAME))


def start_settings(
    config: ModelConfig, files: ModelFiles, spec: InstanceSpec, *, auto_complete: bool = False, debug_port: int = 0
) -> dict[str, Any]:
    """The settings of one instance."""
    return {
        "model_path": model_path(config, files),
        "search_paths": (str(files.version_directory), str(files.model_directory)),
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
