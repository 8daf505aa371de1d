"""The backend ``python``: a user's ``model.py``, each instance in a process of its own
(docs/reference/python-backend.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..engine.backends.interface import Backend, Completion, InstanceSpec, LoadedModel, ModelFiles
from ..engine.backends.registry import PYTHON, SCRIPT
from ..engine.backends.services import Services
from ..engine.config.model import ModelConfig
from ..engine.errors import InternalError, InvalidArgumentError
from ..engine.instances.orders import first_instance
from .auto_complete import completed_config
from .child.utils.event_loop import AsyncioLoop
from .in_process import ModelThread
from .instance import PythonInstance
from .launching import Environments, Interpreter, Process
from .settings import (
    EXECUTION,
    check_parameters,
    model_path,
    most_batches,
    read_options,
    runs_in_process,
    start_settings,
    wants_asyncio,
)


class PythonBackend(Backend):
    """Runs Python models.

    Options: ``stub-timeout-seconds`` (30), how long a process may take to come up, and a model to end;
    ``auto-complete-timeout-seconds`` (300) and ``debug-port``, see `PythonOptions`. Those about the size of shared
    memory are accepted and have no effect.

    Args:
        script: the file with the class of all models of a Python-based backend; None where each model has its own.
    """

    name = PYTHON

    def __init__(self, options: Mapping[str, str], script: Path | None = None) -> None:
        super().__init__(options)
        self._settings = read_options(options)
        self._script = script
        if script is not None:
            self.runtime = SCRIPT
        self._environments = Environments()

    def auto_complete(self, config: ModelConfig, files: ModelFiles) -> Completion | None:
        """See docs/reference/python-backend.md#auto-complete.

        Raises:
            InternalError: the model cannot be imported, or contradicts its configuration.
        """
        interpreter = self._check(config, files)
        settings = start_settings(config, files, InstanceSpec(config.name), self._script, auto_complete=True)
        limit_s = self._settings.auto_complete_s
        confinement = self.services.confinement
        rewritten = completed_config(config.name, interpreter, confinement, settings, limit_s, files.cancellation)
        return Completion(config.max_batch_size, rewritten=rewritten)

    def uses_gpus(self) -> bool:
        return True  # the model is told its GPU, and decides what to do with it

    def load(self, config: ModelConfig, files: ModelFiles) -> LoadedModel:
        interpreter = self._check(config, files)

        def settings(spec: InstanceSpec) -> dict[str, Any]:
            return start_settings(config, files, spec, self._script, debug_port=self._settings.debug_port)

        return PythonModel(config, settings, interpreter, self._settings.timeout_s, self.services)

    def _check(self, config: ModelConfig, files: ModelFiles) -> Interpreter:
        path = Path(model_path(config, files, first_instance(config), self._script))
        if path.suffix != ".py":
            raise InternalError(f"model file '{path.name}' of model '{config.name}' must end in '.py'")
        if not path.is_file():
            raise InternalError(f"Python model file not found in '{path}'")
        check_parameters(config)
        account = self.services.confinement.account
        if account is not None and runs_in_process(config):
            raise InvalidArgumentError(
                f"model '{config.name}' asks to run in the server's process (parameter '{EXECUTION}'), but Python "
                f"models run as user '{account.name}' (--python-user)"
            )
        directory = None if self._script is None else self._script.parent
        return self._environments.interpreter(config, files, directory, shared=account is not None)


class PythonModel(LoadedModel):
    """A model whose file is there; whether it can be imported, its instances find out."""

    def __init__(
        self,
        config: ModelConfig,
        settings: Callable[[InstanceSpec], dict[str, Any]],
        interpreter: Interpreter,
        timeout_s: float,
        services: Services,
    ) -> None:
        self._config = config
        self._settings = settings
        self._interpreter = interpreter
        self._timeout_s = timeout_s
        self._services = services
        self._most_batches = most_batches(config)

    def instance_class(self, spec: InstanceSpec) -> type[PythonInstance]:
        return PythonInstance

    def create_instance(self, spec: InstanceSpec) -> PythonInstance:
        if runs_in_process(self._config):
            make_loop = None if wants_asyncio(self._config) else self._services.event_loop
            process = ModelThread(spec.name, make_loop or AsyncioLoop)
        else:
            process = Process(spec.name, self._interpreter, self._services.confinement)
        settings = self._settings(spec)
        most = self._most_batches
        return PythonInstance(self._config, spec, process, self._services, settings, self._timeout_s, most)
