"""Which Python hosts a model: the server's own, or that of an environment of the model's (EXECUTION_ENV_PATH).

An environment is a directory as ``python -m venv`` or conda make them, or one packed as ``.tar.gz`` (conda-pack), which
is unpacked once into a temporary directory that goes with the server. It is activated by its own script, as on the
command line, so that whatever that sets is set.
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import threading
from pathlib import Path

from ..engine.backends.interface import ModelFiles
from ..engine.config.model import ModelConfig
from ..engine.errors import InternalError
from ..engine.repository.uploaded_code import DATA_SUFFIXES
from ..engine.temporary import TemporaryFolder
from .launching import Interpreter

PARAMETER = "EXECUTION_ENV_PATH"
PACKED_FOR_BACKEND = "pb_exec_env_model.py.tar.gz"
"""In the directory of a Python-based backend: the environment of models that name none."""

_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
_ACTIVATE = '. "$0" && exec "$@"'


class Environments:
    """The environments of a backend's models. Callable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unpacked: dict[tuple[str, int, int], TemporaryFolder] = {}

    def interpreter(
        self, config: ModelConfig, files: ModelFiles, backend_directory: Path | None, *, shared: bool = False
    ) -> Interpreter:
        """What to run a model's process with.

        Args:
            backend_directory: of a Python-based backend.
            shared: other users than the server's read it, too.

        Raises:
            InternalError: the environment is not there, or is none.
        """
        given = config.parameters.get(PARAMETER, "")
        path = Path(given.replace(_MODEL_DIRECTORY, str(files.model_directory), 1))
        if not given:
            packed = None if backend_directory is None else backend_directory / PACKED_FOR_BACKEND
            if packed is None or not packed.is_file():
                return Interpreter((sys.executable,), {})
            path = packed
        if path.is_file():
            path = self._unpack(path, shared)
        return _interpreter_of(path)

    def _unpack(self, path: Path, shared: bool) -> Path:
        if path.suffix.lower() in DATA_SUFFIXES:  # such a file may have come with a load request that may bring no code
            raise InternalError(
                f"cannot unpack the Python environment '{path}': it must be named as an archive, but "
                f"'{path.suffix}' is for data"
            )
        status = path.stat()
        key = (str(path.resolve()), status.st_mtime_ns, status.st_size)
        with self._lock:
            if key not in self._unpacked:
                directory = TemporaryFolder("environment")
                try:
                    with tarfile.open(path) as archive:
                        archive.extractall(directory.path, filter="tar")
                except (OSError, tarfile.TarError) as error:
                    directory.remove()
                    raise InternalError(f"cannot unpack the Python environment '{path}': {error}") from None
                if shared:
                    directory.share()
                self._unpacked[key] = directory
            return self._unpacked[key].path


def _interpreter_of(environment: Path) -> Interpreter:
    activate = environment / "bin" / "activate"
    if not activate.is_file():
        raise InternalError(
            f"Path {activate} does not exist. The Python environment should contain an 'activate' script."
        )
    python = environment / "bin" / "python"
    if not os.access(python, os.X_OK):
        raise InternalError(f"the Python environment '{environment}' has no 'bin/python' that can be executed")
    libraries = str(environment / "lib")
    if os.environ.get("LD_LIBRARY_PATH"):
        libraries += os.pathsep + os.environ["LD_LIBRARY_PATH"]
    bash = shutil.which("bash")
    command = (bash, "-c", _ACTIVATE, str(activate), str(python)) if bash else (str(python),)
    return Interpreter(command, {"LD_LIBRARY_PATH": libraries, "PYTHONHOME": "", "PYTHONPATH": ""})
