"""Which backend answers to a name: one of ours, or an entry point of group ``trireme.backends``; imported when it is
first used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import cast

from ..config.files import path_within
from ..config.model import ModelConfig
from ..errors import InvalidArgumentError, UnsupportedError
from ..plugins import Plugins
from .interface import Backend, ModelFiles
from .services import Services

ENTRY_POINT_GROUP = "trireme.backends"
OWN: Mapping[str, str] = {
    "generation": "trireme.engine.backends.generation:GenerationBackend",
    "onnxruntime": "trireme.engine.backends.onnxruntime:OnnxRuntimeBackend",
    "openvino": "trireme.engine.backends.openvino:OpenVinoBackend",
    "pytorch": "trireme.engine.backends.pytorch:PyTorchBackend",
    "python": "trireme.python_backend:PythonBackend",
    "tensorflow": "trireme.engine.backends.tensorflow:TensorFlowBackend",
    "tensorrt": "trireme.engine.backends.tensorrt:TensorRtBackend",
}
"""The backends that come with Trireme, and where they are."""
PYTHON = "python"
"""The backend of models that are Python code, and of Python-based backends, which are its models as well."""
SCRIPT = "model.py"
"""The file with such code."""


class BackendRegistry:
    """Makes each backend once, when it is first asked for. Callable from any thread.

    Args:
        options_for: the ``--backend-config`` settings of a backend, by its name.
        extra: backend classes by name that need no entry point; they come first.
        directory: where Python-based backends are: each a folder of its name, with a ``model.py``
            (docs/reference/python-backend.md#python-based-backends). Looked at last.
    """

    def __init__(
        self,
        options_for: Callable[[str], Mapping[str, str]],
        extra: Mapping[str, type[Backend]] | None = None,
        directory: Path | None = None,
    ) -> None:
        self._options_for = options_for
        self._directory = directory
        self._plugins: Plugins[Backend] = Plugins(ENTRY_POINT_GROUP, "backend", Backend, {**OWN, **(extra or {})})
        self.services = Services()
        self._lock = threading.Lock()
        self._backends: dict[str, Backend] = {}

    def get(self, name: str) -> Backend:
        """The backend called `name`, always the same object.

        Raises:
            InvalidArgumentError: there is none.
            UnavailableError: it is installed, but cannot be imported.
            TriremeError: it does not like its options.
        """
        with self._lock:
            backend = self._backends.get(name)
            if backend is None:
                backend = self._backends[name] = self._find(name)(self._options_for(name))
                backend.services = self.services
            return backend

    def for_model(self, config: ModelConfig, files: ModelFiles) -> Backend:
        """The backend that a model's configuration names, by its ``backend`` and ``runtime``.

        Raises:
            TriremeError: there is none; see `get`.
        """
        name, runtime = config.backend, config.runtime
        directory = (self._directory or Path()) / name
        is_script = runtime == SCRIPT and (name == PYTHON or name not in self._plugins)
        if is_script and not (directory / runtime).is_file():
            raise InvalidArgumentError(
                f"unable to find Python backend based backend library '{runtime}' for model '{config.name}', searched: "
                f"'{directory / runtime}'"
            )
        if runtime not in ("", SCRIPT, f"libtriton_{name}.so"):
            if path_within(directory, "", runtime) is None:
                raise InvalidArgumentError(
                    f"backend library name '{runtime}' escapes backend directory '{directory}', for model "
                    f"'{config.name}', check model config runtime field"
                )
            searched = (files.version_directory, files.model_directory, directory)
            if any((place / runtime).is_file() for place in searched):
                raise UnsupportedError(
                    f"backend library '{runtime}' of model '{config.name}' cannot be used: backends are Python classes"
                )
            places = "".join(f"'{place}' " for place in searched)
            raise InvalidArgumentError(
                f"unable to find backend library '{runtime}' for model '{config.name}', searched: {places}"
            )
        return self.get(name)

    def _find(self, name: str) -> Callable[[Mapping[str, str]], Backend]:
        found = self._plugins.find(name)
        if found is not None:
            return found
        if self._directory is not None and Path(name).name == name:
            script = self._directory / name / SCRIPT
            python = self._plugins.find(PYTHON)
            if python is not None and script.is_file():
                return partial(cast(Callable[..., Backend], python), script=script)
        raise InvalidArgumentError(
            f"unable to find backend library for backend '{name}', try specifying runtime on the model configuration."
        )
