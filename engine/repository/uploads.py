"""What comes with a load request: its configuration and its files, whether they may hold or name code
(``--allow-code-upload``), and the model that they make.

Model files of most frameworks are programs: a `model.py`, a shared library, a pickle or an archive with one inside. So
what is known to hold data alone is let pass, by its name and its first bytes, and anything else is not.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any

from ..config.platforms import ENSEMBLE
from ..errors import InternalError, InvalidArgumentError
from ..tensor import Buffer
from .local import LocalModel
from .temporary import TemporaryFolder

DATA_SUFFIXES = (
    ".bin",
    ".csv",
    ".data",
    ".json",
    ".jsonl",
    ".labels",
    ".md",
    ".npy",
    ".onnx",
    ".pbtxt",
    ".safetensors",
    ".txt",
    ".xml",
    ".yaml",
    ".yml",
)
"""Endings of files that are read and not run: weights and graphs of ONNX and OpenVINO, tables, texts."""

_CODE_STARTS = (
    b"\x7fELF",  # programs and shared libraries
    b"MZ",
    b"\xfe\xed\xfa",
    b"\xca\xfe\xba\xbe",
    b"\xcf\xfa\xed\xfe",
    b"#!",
    b"PK\x03\x04",  # archives, among them those of torch
    b"PK\x05\x06",
    b"\x1f\x8b",
    b"BZh",
    b"\xfd7zXZ",
    b"\x28\xb5\x2f\xfd",
    b"!<arch>",
    *(bytes((0x80, protocol)) for protocol in range(2, 6)),  # pickles
)


def refuse_code(name: str, parameters: Mapping[str, str | Buffer]) -> None:
    """Check that no file of a load request may hold code.

    Args:
        parameters: of the request; files are named ``file:<path>``.

    Raises:
        InvalidArgumentError: one may.
    """
    for key, content in parameters.items():
        if key.startswith(FILE_PREFIX) and _may_be_code(key, content):
            raise InvalidArgumentError(
                f"load failed for model '{name}': '{key}' may hold code, and --allow-code-upload=false lets only files "
                f"of data be loaded ({', '.join(DATA_SUFFIXES)})"
            )


def _may_be_code(key: str, content: str | Buffer) -> bool:
    suffix = PurePosixPath(key.removeprefix(FILE_PREFIX)).suffix.lower()
    start = content[:8].encode() if isinstance(content, str) else bytes(content[:8])
    return suffix not in DATA_SUFFIXES or start.startswith(_CODE_STARTS)


# -- What a load request may contain (docs/reference/model-control.md#load-parameters): a configuration, and files


FILE_PREFIX = "file:"

_CONFIG = "config"


def read_load_parameters(parameters: Mapping[str, str | Buffer]) -> tuple[str, dict[str, Buffer]]:
    """What replaces the model's configuration, as JSON, and contents of files by parameter name (``file:<path>``); if
    there are any, they are the whole model.

    Raises:
        InvalidArgumentError: one is unknown or of the wrong type, or there are files and no configuration.
    """
    files: dict[str, Buffer] = {}
    for key, value in parameters.items():
        if key.startswith(FILE_PREFIX):
            if isinstance(value, str):
                raise InvalidArgumentError(f"File parameter '{key}' must have bytes type for its value")
            files[key] = value
        elif key != _CONFIG:
            kind = "string" if isinstance(value, str) else "bytes"
            raise InvalidArgumentError(f"Unrecognized load parameter '{key}' with type '{kind}'")
    config = parameters.get(_CONFIG)
    if config is None:
        raise InvalidArgumentError("Load parameter 'config' must be specified for model file override")
    if not isinstance(config, str):
        raise InvalidArgumentError("Config parameter 'config' must have string type for its value")
    return config, files


# Code that a configuration in a load request names, with ``--allow-code-upload=false``.
#
# Files of a load request are looked at above. But a configuration, too, says what is executed: which
# backend, which libraries, which Python. With that flag such a configuration may name only what the model's own, in its
# repository, names as well; and files that come with it may only go to backends that do not run them as programs. Which
# data file a backend reads that runs no programs is free.


DATA_BACKENDS = frozenset({"onnxruntime", "openvino"})
"""Their model files are graphs of known operators, and no programs."""

PROGRAM_BACKENDS = frozenset({"python", "pytorch", "tensorflow", "tensorrt"})
"""Whatever a model file of theirs is called, it is run."""

_PARAMETERS = (
    "EXECUTION_ENV_PATH",  # Python models: the environment that hosts them
    "EXECUTION",  # and whether that is the server's own process
    "CPU_EXTENSION_PATH",  # OpenVINO: a library of operators
    "TORCH_COMPILE_OPTIONAL_PARAMETERS",  # PyTorch: also names the compiler that is started
)
_ACCELERATOR_PARAMETERS = {
    "tensorrt": (
        "trt_extra_plugin_lib_paths",
        # engines that were built before, which are programs for the GPU
        "trt_engine_cache_path",
        "trt_engine_cache_prefix",
        "trt_ep_context_file_path",
    ),
    "cuda": (
        # addresses of functions, and of objects, in the server's process
        "gpu_external_alloc",
        "gpu_external_free",
        "gpu_external_empty_cache",
        "default_memory_arena_cfg",
        "user_compute_stream",
    ),
}
_USUAL = {"EXECUTION": "process"}
"""Parameters whose value means the same as none."""

_Named = tuple[str, str]
"""A field of the configuration, and what it names."""


def refuse_named_code(name: str, given: Any, own: Any | None, *, brings_files: bool) -> None:
    """Check that the configuration of a load request names no code that the model's own does not name.

    Args:
        given: the configuration of the request, a `ModelConfigMessage` with its backend filled in.
        own: the one that the repository has for the model, likewise; None if it has none.
        brings_files: the model's files come with the request.

    Raises:
        InvalidArgumentError: it does; or the files would be run.
    """
    if brings_files and given.backend in PROGRAM_BACKENDS:
        raise _refused(name, "backend", given.backend, "runs the files of the request as programs")
    allowed = set() if own is None else set(_named(own))
    for setting, value in _named(given):
        if (setting, value) not in allowed:
            what = "is not what the configuration of the model in its repository says"
            raise _refused(
                name, setting, value, what if own is not None else "no configuration in a repository says so"
            )
    if own is not None and _agents(given) != _agents(own):
        raise _refused(name, "model_repository_agents", "", "the configuration in its repository has such agents")


def _refused(name: str, field: str, value: str, why: str) -> InvalidArgumentError:
    shown = f" '{value}'" if value else " left out"
    return InvalidArgumentError(
        f"load failed for model '{name}': {field}{shown} in the configuration of the request: {why}, and "
        "--allow-code-upload=false lets no request choose what code is run"
    )


def _named(message: Any) -> Iterator[_Named]:
    """All code that a configuration names."""
    yield from _programs(message)
    for library in message.model_operations.op_library_filename:
        yield "model_operations.op_library_filename", library
    for key in _PARAMETERS:
        value = message.parameters[key].string_value if key in message.parameters else ""
        if value not in ("", _USUAL.get(key)):
            yield f"parameters['{key}']", value
    accelerators = message.optimization.execution_accelerators
    for accelerator in (*accelerators.gpu_execution_accelerator, *accelerators.cpu_execution_accelerator):
        for key in _ACCELERATOR_PARAMETERS.get(accelerator.name, ()):
            if accelerator.parameters.get(key, ""):
                yield f"parameter '{key}' of the accelerator '{accelerator.name}'", accelerator.parameters[key]
    for agent in _agents(message):
        yield "model_repository_agents", agent


def _programs(message: Any) -> Iterator[_Named]:
    """The backend, and the file that it runs."""
    backend, runtime = message.backend, message.runtime
    if message.platform == ENSEMBLE or not backend:
        return
    if backend not in DATA_BACKENDS:
        yield "backend", backend
        if message.default_model_filename:
            yield "default_model_filename", message.default_model_filename
        for capability, filename in sorted(message.cc_model_filenames.items()):
            yield f"cc_model_filenames['{capability}']", filename
    usual = ("", f"libtriton_{backend}.so")
    if runtime not in usual and not (runtime == "model.py" and backend != "pytorch"):  # elsewhere that changes nothing
        yield "runtime", runtime


def _agents(message: Any) -> list[str]:
    agents = message.model_repository_agents.agents
    return [
        " ".join((each.name, *(f"{key}={value}" for key, value in sorted(each.parameters.items())))) for each in agents
    ]


# -- A model whose files came with the load request (docs/reference/model-control.md#load-parameters)


class OverrideModel(LocalModel):
    """A model directory that consists of the given files only, in a temporary place of its own.

    Args:
        files: contents by load parameter, ``file:<path relative to the model directory>``.
        shared: other users than the server's read them, too.

    Raises:
        InvalidArgumentError: a path leaves the model directory, or is a directory and a file.
        InternalError: a file cannot be written.
    """

    temporary = True

    def __init__(self, name: str, files: Mapping[str, Buffer], *, shared: bool = False) -> None:
        try:
            with ExitStack() as undo:
                self._folder = TemporaryFolder("model")
                undo.callback(self._folder.remove)
                super().__init__(self._folder.path / name)
                os.mkdir(self.directory)
                for key, content in files.items():
                    _write(self.directory, key, content)
                if shared:
                    self._folder.share()
                undo.pop_all()
        except (OSError, ValueError) as error:  # a ValueError: nothing can have such a name
            reason = error.strerror if isinstance(error, OSError) else error
            raise InternalError(f"failed to write the files of model '{name}': {reason}") from error

    def outdated(self, contents: Hashable, modified_ns: int) -> bool:
        """What the repository has takes its place."""
        return True

    def dispose(self) -> None:
        """Remove the directory; a second call does nothing."""
        self._folder.remove()


MAX_DEPTH = 100
"""Directories that a file may be in, one in the other."""


def _write(directory: Path, key: str, content: Buffer) -> None:
    relative = key.removeprefix(FILE_PREFIX).lstrip("/")
    path = os.path.normpath(os.path.join(directory, relative))
    if not path.startswith(f"{directory}{os.sep}") or "\0" in path:
        raise InvalidArgumentError(
            f"Invalid file parameter '{key}' with normalized path '{path}' must stay within model directory."
        )
    if path.count(os.sep) - str(directory).count(os.sep) > MAX_DEPTH:
        raise InvalidArgumentError(f"Invalid file parameter '{key}', it is more than {MAX_DEPTH} directories deep")
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb", buffering=0) as file:
            rest = memoryview(content)
            while rest:  # a call writes 2 GiB at most
                rest = rest[file.write(rest) :]
    except (IsADirectoryError, FileExistsError, NotADirectoryError) as error:
        raise InvalidArgumentError(f"Invalid file parameter '{key}', directory has been created as a file") from error
