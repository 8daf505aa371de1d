"""Code that a configuration in a load request names, with ``--allow-code-upload=false``.

Files of a load request are looked at by `uploaded_code`. But a configuration, too, says what is executed: which
backend, which libraries, which Python. With that flag such a configuration may name only what the model's own, in its
repository, names as well; and files that come with it may only go to backends that do not run them as programs. Which
data file a backend reads that runs no programs is free.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..config.platforms import ENSEMBLE
from ..errors import InvalidArgumentError

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

_LONGEST = 200

_Named = tuple[str, str]
"""A field of the configuration, and what it names."""


def refuse_named_code(name: str, given: Any, own: Any | None, *, brings_files: bool) -> None:
    """Check that the configuration of a load request names no code that the model's own does not name.

    Args:
        name: the model's.
        given: the configuration of the request, a `ModelConfigMessage` with its backend filled in.
        own: the one that the repository has for the model, likewise; None if it has none.
        brings_files: the model's files come with the request.

    Raises:
        InvalidArgumentError: it does; or the files would be run.
    """
    if brings_files and given.backend in PROGRAM_BACKENDS:
        raise _refused(name, "backend", given.backend, "runs the files of the request as programs")
    allowed = set() if own is None else set(_named(own))
    for field, value in _named(given):
        if (field, value) not in allowed:
            what = "is not what the configuration of the model in its repository says"
            raise _refused(name, field, value, what if own is not None else "no configuration in a repository says so")
    if own is not None and _agents(given) != _agents(own):
        raise _refused(name, "model_repository_agents", "", "the configuration in its repository has such agents")


def _refused(name: str, field: str, value: str, why: str) -> InvalidArgumentError:
    shown = f" '{value[:_LONGEST]}'" if value else " left out"
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
