"""Configurations as a server reads them that is asked for nothing but that."""

from __future__ import annotations

from pathlib import Path

from trireme.engine.config import ModelConfig
from trireme.engine.config.phases import finish_config, read_message


def read_config(
    model_directory: Path, *, config_name: str = "", override_json: str | None = None, auto_complete: bool = True
) -> ModelConfig:
    """The configuration of a model directory, before any backend is asked."""
    message = read_message(
        model_directory, config_name=config_name, override_json=override_json, auto_complete=auto_complete
    )
    return finish_config(message, model_directory, model_directory.name, auto_complete=auto_complete)
