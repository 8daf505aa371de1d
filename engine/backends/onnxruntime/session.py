"""Sessions: a model file, the options that its configuration asks for, and the providers of one instance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...config.model import ModelConfig
from ...errors import InternalError, InvalidArgumentError, UnavailableError
from ..interface import InstanceSpec, ModelFiles
from ..parameters import parse_bool, parse_int
from .library import error_types, fresh_run_options, reason, session_options
from .providers import check_in_use, on_stream, providers

_DEFAULT_FILENAME = "model.onnx"
_DEVICE_INITIALIZERS = "session.use_device_allocator_for_initializers"
_ARENA_SHRINKAGE = "memory.enable_memory_arena_shrinkage"


def model_path(config: ModelConfig, files: ModelFiles, spec: InstanceSpec) -> Path:
    """The model file of an instance; where that is a directory, the ``model.onnx`` in it.

    Raises:
        UnavailableError: there is no such file.
    """
    path = files.model_path(config, spec, _DEFAULT_FILENAME)
    if path.is_dir():
        path /= _DEFAULT_FILENAME
    if not path.is_file():
        raise UnavailableError(f"unable to find '{path}' for model instance '{config.name}'")
    return path


def inspection_session(runtime: Any, config: ModelConfig, path: Path, *, global_threads: bool) -> Any:
    """A session that only tells what the graph looks like: on the CPU, not optimised, one thread.

    Raises:
        TriremeError: the model cannot be read.
    """
    options = session_options(runtime)
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if global_threads:
        options.use_per_session_threads = False
    else:
        options.intra_op_num_threads = options.inter_op_num_threads = 1
    _register_op_libraries(runtime, config, options)
    return _create(runtime, config, path, options, [("CPUExecutionProvider", {})])


def instance_session(
    runtime: Any,
    config: ModelConfig,
    path: Path,
    spec: InstanceSpec,
    *,
    global_threads: bool,
    stream: int | None = None,
) -> Any:
    """The session of an instance.

    Args:
        stream: handle of the stream that what runs on a GPU is to be enqueued on; None for one of its own.

    Raises:
        TriremeError: a parameter is wrong, a provider is missing, the model cannot be read.
    """
    options = session_options(runtime)
    levels = runtime.GraphOptimizationLevel
    options.graph_optimization_level = {
        -1: levels.ORT_ENABLE_BASIC,
        1: levels.ORT_ENABLE_EXTENDED,
        2: levels.ORT_DISABLE_ALL,
    }.get(config.graph_level, levels.ORT_ENABLE_ALL)
    _set_threads(runtime, config, options, global_threads)
    parameters = config.parameters
    if _DEVICE_INITIALIZERS in parameters:
        options.add_session_config_entry(_DEVICE_INITIALIZERS, parameters[_DEVICE_INITIALIZERS])
    if "enable_mem_arena" in parameters:
        options.enable_cpu_mem_arena = parse_bool(parameters["enable_mem_arena"])
    if "enable_mem_pattern" in parameters:
        options.enable_mem_pattern = parse_bool(parameters["enable_mem_pattern"])
    chosen = providers(config, spec, runtime)
    if stream is not None:
        chosen = on_stream(chosen, stream)
    _register_op_libraries(runtime, config, options)
    session = _create(runtime, config, path, options, chosen)
    check_in_use(config, spec, chosen, session)
    return session


def run_options(runtime: Any, config: ModelConfig) -> Any:
    """Options of every run of a model."""
    options = fresh_run_options(runtime)
    shrinkage = config.parameters.get(_ARENA_SHRINKAGE)
    if shrinkage is not None:
        options.add_run_config_entry(_ARENA_SHRINKAGE, shrinkage)
    return options


def _set_threads(runtime: Any, config: ModelConfig, options: Any, global_threads: bool) -> None:
    parameters = config.parameters
    mode = parse_int(parameters.get("execution_mode", "0"))
    if mode not in (0, 1):
        raise InvalidArgumentError(
            f"Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got {mode} ."
        )
    options.execution_mode = runtime.ExecutionMode.ORT_PARALLEL if mode else runtime.ExecutionMode.ORT_SEQUENTIAL
    if global_threads:
        options.use_per_session_threads = False
        return
    intra = parse_int(parameters.get("intra_op_thread_count", "0"))
    if intra > 0:
        options.intra_op_num_threads = intra
    inter = parse_int(parameters.get("inter_op_thread_count", "0"))
    if inter > 0:
        options.inter_op_num_threads = inter


def _register_op_libraries(runtime: Any, config: ModelConfig, options: Any) -> None:
    for library in config.op_library_filenames:
        try:
            options.register_custom_ops_library(library)
        except error_types(runtime) as error:
            raise InternalError(
                f"unable to load model '{config.name}', custom operation library '{library}': {reason(error)}"
            ) from None


def _create(
    runtime: Any, config: ModelConfig, path: Path, options: Any, chosen: list[tuple[str, dict[str, str]]]
) -> Any:
    try:
        # Without the fallback: it would print to the console and run on the CPU what was asked for on a GPU.
        return runtime.InferenceSession(str(path), options, providers=chosen, enable_fallback=0)
    except error_types(runtime) as error:
        raise InternalError(f"unable to load model '{config.name}' from '{path}': {reason(error)}") from None
