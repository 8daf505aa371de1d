"""The backend ``python``: a user's ``model.py``, each instance in a process of its own (python-backend.md)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from ...config.model import ModelConfig
from ...errors import InternalError
from ..interface import Backend, Completion, ExecutionMode, InstanceSpec, LoadedModel, ModelFiles
from ..services import Services
from .auto_complete import completed_config
from .instance import PythonInstance
from .launching import Interpreter, Process
from .options import PythonOptions, read_options
from .settings import model_path, start_settings


class PythonBackend(Backend):
    """Runs Python models.

    Options: ``stub-timeout-seconds`` (30), how long a process may take to come up, and a model to end; ``debug-port``,
    see `PythonOptions`. Those about the size of shared memory are accepted and have no effect.
    """

    name = "python"

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._settings = read_options(options)

    def auto_complete(self, config: ModelConfig, files: ModelFiles) -> Completion | None:
        """See python-backend.md §3.6.

        Raises:
            InternalError: the model cannot be imported, or contradicts its configuration.
        """
        _check_file(config, files)
        interpreter = _interpreter()
        settings = start_settings(config, files, InstanceSpec(config.name), auto_complete=True)
        return Completion(config.max_batch_size, rewritten=completed_config(config.name, interpreter, settings))

    def load(self, config: ModelConfig, files: ModelFiles) -> PythonModel:
        _check_file(config, files)
        return PythonModel(config, files, _interpreter(), self._settings, self.services)


class PythonModel(LoadedModel):
    """A model whose file is there; whether it can be imported, its instances find out."""

    instance_mode = ExecutionMode.ENQUEUE

    def __init__(
        self,
        config: ModelConfig,
        files: ModelFiles,
        interpreter: Interpreter,
        options: PythonOptions,
        services: Services,
    ) -> None:
        self._config = config
        self._files = files
        self._interpreter = interpreter
        self._options = options
        self._services = services

    def create_instance(self, spec: InstanceSpec) -> PythonInstance:
        settings = start_settings(self._config, self._files, spec, debug_port=self._options.debug_port)
        process = Process(spec.name, self._interpreter)
        return PythonInstance(self._config, spec, process, self._services, settings, self._options.timeout_s)


def _check_file(config: ModelConfig, files: ModelFiles) -> None:
    path = Path(model_path(config, files))
    if path.suffix != ".py":
        raise InternalError(f"model file '{path.name}' of model '{config.name}' must end in '.py'")
    if not path.is_file():
        raise InternalError(f"Python model file not found in '{path}'")


def _interpreter() -> Interpreter:
    return Interpreter((sys.executable,), {})
