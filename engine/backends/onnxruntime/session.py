"""The package, and its sessions: a model file, the options that its configuration asks for, and the providers of one
instance."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...config.model import Accelerator, ModelConfig
from ...datatypes import BY_ONNX
from ...errors import InternalError, InvalidArgumentError, UnavailableError, UnsupportedError
from ...host_policies import bound_cores
from ...plugins import import_package
from ..interface import InstanceSpec, ModelFiles
from ..parameters import parse_bool, parse_int
from ..signature import GraphTensor, Signature
from ..waiting_threads import WaitingThreads

_DEFAULT_FILENAME = "model.onnx"
_DEVICE_INITIALIZERS = "session.use_device_allocator_for_initializers"
_SPINNING = ("session.intra_op.allow_spinning", "session.inter_op.allow_spinning")
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
    waiting: WaitingThreads,
    stream: int | None = None,
) -> Any:
    """The session of an instance.

    Args:
        waiting: whether its threads may wait for work in a loop.
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
    share = waiting.share(options.intra_op_num_threads)
    if share is None:
        for key in _SPINNING:
            options.add_session_config_entry(key, "0")
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
    waiting.keep(session, share)
    check_in_use(config, spec, chosen, session)
    return session


def run_options(runtime: Any, config: ModelConfig) -> Any:
    """Options of a run, which logs nothing: it raises what it would log, and the request's answer tells it."""
    options = runtime.RunOptions()
    options.log_severity_level = _FATAL_SEVERITY
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
    # Without a number, ONNX Runtime binds its threads to the machine's cores, one each, and not to those of a policy.
    bound = bound_cores()
    for kind in ("intra", "inter"):
        count = parse_int(parameters.get(f"{kind}_op_thread_count", "0"))
        if count <= 0:
            count = bound
        if count > 0:
            setattr(options, f"{kind}_op_num_threads", count)


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


# Execution providers: what runs the graph's nodes, and with which options
# (docs/reference/backends.md#onnx-runtime).


Options = dict[str, str]
Providers = list[tuple[str, Options]]

logger = logging.getLogger("trireme.onnxruntime")

_CUDA = "CUDAExecutionProvider"
_TENSORRT = "TensorrtExecutionProvider"
_OPENVINO = "OpenVINOExecutionProvider"
_CPU = "CPUExecutionProvider"

_REMEDIES = {
    _CUDA: "pip uninstall onnxruntime, then pip install trireme-server[gpu]",
    _TENSORRT: "pip uninstall onnxruntime, then pip install trireme-server[gpu,tensorrt]",
    _OPENVINO: "pip uninstall onnxruntime, then pip install onnxruntime-openvino in place of trireme-server[cpu]",
}

_BOTH_BUILDS = (
    "onnxruntime and onnxruntime-gpu are both installed, in one place: pip uninstall onnxruntime onnxruntime-gpu, then "
    "pip install trireme-server[gpu]"
)
_LIBRARIES = {
    _CUDA: "it finds no GPU, or no CUDA and cuDNN of the versions that it was built for: pip install "
    "onnxruntime-gpu[cuda,cudnn]",
    _TENSORRT: "it finds no TensorRT of the version that it was built for: pip install trireme-server[gpu,tensorrt]",
}
_ON_GPU = (_TENSORRT, _CUDA)

_PRECISIONS = {
    "FP32": None,
    "FP16": "trt_fp16_enable",
    "BF16": "trt_bf16_enable",
    "INT8": "trt_int8_enable",
}
_TENSORRT_OTHER_NAMES = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
_TENSORRT_BOOLEANS = {
    "int8_use_native_calibration_table",
    "trt_build_heuristics_enable",
    "trt_context_memory_sharing_enable",
    "trt_cuda_graph_enable",
    "trt_detailed_build_log",
    "trt_dla_enable",
    "trt_dump_ep_context_model",
    "trt_dump_subgraphs",
    "trt_engine_cache_enable",
    "trt_force_sequential_engine_build",
    "trt_force_timing_cache",
    "trt_layer_norm_fp32_fallback",
    "trt_sparsity_enable",
    "trt_timing_cache_enable",
}
_TENSORRT_INTEGERS = {
    "max_workspace_size_bytes",
    "trt_auxiliary_streams",
    "trt_builder_optimization_level",
    "trt_dla_core",
    "trt_ep_context_embed_mode",
    "trt_max_partition_iterations",
    "trt_min_subgraph_size",
}
_TENSORRT_TEXTS = {
    "int8_calibration_table_name",
    "trt_engine_cache_path",
    "trt_engine_cache_prefix",
    "trt_ep_context_file_path",
    "trt_extra_plugin_lib_paths",
    "trt_profile_max_shapes",
    "trt_profile_min_shapes",
    "trt_profile_opt_shapes",
    "trt_tactic_sources",
    "trt_timing_cache_path",
}
_CUDA_BOOLEANS = {"do_copy_in_default_stream", "enable_cuda_graph", "use_ep_level_unified_stream"}
_GRAPHS = ("enable_cuda_graph", "trt_cuda_graph_enable")
_STREAM = "user_compute_stream"


def providers(config: ModelConfig, spec: InstanceSpec, runtime: Any) -> Providers:
    """Providers of an instance's session, the preferred ones first.

    Raises:
        InvalidArgumentError: an accelerator or an option of one is unknown or malformed.
        UnavailableError: the installed onnxruntime lacks a provider.
    """
    chosen: Providers = []
    if spec.kind == "KIND_GPU":
        chosen += _gpu_providers(config, spec.device_id)
    for accelerator in config.cpu_accelerators:
        if accelerator.name != "openvino":
            raise _unknown(accelerator)
        chosen.append((_OPENVINO, {"device_type": "CPU"}))
    available = runtime.get_available_providers()
    for name, _ in chosen:
        if name not in available:
            remedy = _BOTH_BUILDS if name in _ON_GPU and _both_builds() else _REMEDIES[name]
            raise UnavailableError(
                f"unable to load model '{config.name}', instance '{spec.name}' of {spec.kind} needs {name}, which the "
                f"installed ONNX Runtime does not have: {remedy}"
            )
    return [*chosen, (_CPU, {})]


def on_stream(chosen: Providers, stream: int) -> Providers:
    """The same providers, those on a GPU enqueuing on a stream, which must outlive the session.

    They capture no graphs: a graph has the addresses of one batch, and ONNX Runtime captures while it serves,
    when CUDA forbids the other instances to allocate memory, or they break the capture.
    """
    placed: Providers = []
    for name, options in chosen:
        if name not in _ON_GPU:
            placed.append((name, options))
            continue
        for key in _GRAPHS:
            if options.get(key, "0") != "0":
                logger.warning("%s of %s has no effect: CUDA graphs do not go with batches in flight", key, name)
        kept = {key: value for key, value in options.items() if key not in _GRAPHS}
        if name == _CUDA:
            kept["has_user_compute_stream"] = "1"  # which a provider that is a plugin does not conclude by itself
        placed.append((name, {**kept, _STREAM: str(stream)}))
    return placed


def check_in_use(config: ModelConfig, spec: InstanceSpec, chosen: Providers, session: Any) -> None:
    """ONNX Runtime goes on without a provider whose libraries it cannot load; here `UnavailableError` is raised."""
    for name, _ in chosen:
        if name not in session.get_providers():
            raise UnavailableError(
                f"unable to load model '{config.name}', instance '{spec.name}' of {spec.kind} needs {name}, which the "
                f"installed ONNX Runtime cannot use: {_LIBRARIES.get(name, _REMEDIES.get(name))}"
            )


def _gpu_providers(config: ModelConfig, device_id: int) -> Providers:
    chosen: Providers = []
    cuda: Options = {}
    for accelerator in config.gpu_accelerators:
        if accelerator.name == "tensorrt":
            chosen.append((_TENSORRT, _tensorrt_options(accelerator.parameters, device_id)))
        elif accelerator.name == "cuda":
            for key, value in accelerator.parameters.items():
                if value:
                    cuda[key] = _boolean_text(value) if key in _CUDA_BOOLEANS else value
        else:
            raise _unknown(accelerator)
    cuda.update(_deprecated_cuda_options(config.parameters))
    return [*chosen, (_CUDA, {**cuda, "device_id": str(device_id)})]


def _unknown(accelerator: Accelerator) -> InvalidArgumentError:
    return InvalidArgumentError(f"unknown Execution Accelerator '{accelerator.name}' is requested")


def _tensorrt_options(parameters: Mapping[str, str], device_id: int) -> Options:
    options: Options = {}
    for key, value in parameters.items():
        if key == "precision_mode":
            if value not in _PRECISIONS:
                raise InvalidArgumentError(f"unsupported precision mode '{value}' is requested")
            enable = _PRECISIONS[value]
            if enable:
                options[enable] = "1"
            continue
        if key in _TENSORRT_BOOLEANS:
            value = _boolean_text(value)
        elif key in _TENSORRT_INTEGERS:
            parse_int(value, bits=64)
        elif key not in _TENSORRT_TEXTS:
            raise InvalidArgumentError(f"unknown parameter '{key}' is provided for TensorRT Execution Accelerator")
        if value:
            options[_TENSORRT_OTHER_NAMES.get(key, key)] = value
    return {**options, "device_id": str(device_id)}


def _boolean_text(value: str) -> str:
    """The spelling of a boolean that every provider understands."""
    return "1" if parse_bool(value) else "0"


def _deprecated_cuda_options(parameters: Mapping[str, str]) -> Options:
    """The model parameters of the days before the accelerator ``cuda``; only those that are given."""
    options: Options = {}
    for key, names in (
        ("cudnn_conv_algo_search", ("EXHAUSTIVE", "HEURISTIC", "DEFAULT")),
        ("arena_extend_strategy", ("kNextPowerOfTwo", "kSameAsRequested")),
    ):
        if key in parameters:
            number = parse_int(parameters[key])
            if number not in range(len(names)):
                raise InvalidArgumentError(f"unsupported {key} value '{number}' is requested")
            options[key] = names[number]
    if "gpu_mem_limit" in parameters:
        parse_int(parameters["gpu_mem_limit"], bits=65)  # a size_t
        options["gpu_mem_limit"] = parameters["gpu_mem_limit"]
    if "do_copy_in_default_stream" in parameters:
        options["do_copy_in_default_stream"] = _boolean_text(parameters["do_copy_in_default_stream"])
    return options


# -- The onnxruntime package: imported when a model needs it, never before; and its errors in plain words


_ERROR_SEVERITY = 3
_FATAL_SEVERITY = 4

_STATUS = re.compile(r"\[ONNXRuntimeError\] : (\d+) : [A-Z_]+ : ")
# "Load model from FILE failed:", which says again what the text around it says.
_LOAD_PREFIX = re.compile(r"Load model from .*? failed:")
# "/onnxruntime_src/onnxruntime/core/graph/model.cc:256 onnxruntime::Model::Model(onnx::ModelProto&&, ...) "
_SOURCE_POSITION = re.compile(
    r"\S+\.(?:cc|cpp|cu|h):\d+ "
    r"(?:[\w:<>*&~, ]*?[\w~>]\(.*?\)(?:::<lambda\(.*?\)>)?(?: const)?(?: \[with [^\]]*\])? )?"
)


def _both_builds() -> bool:
    """Whether both distributions that bring the package are installed: they overwrite each other's files."""
    import importlib.metadata  # which reads what packages say of themselves as mail; only an error asks for it

    return all(any(importlib.metadata.distributions(name=name)) for name in ("onnxruntime", "onnxruntime-gpu"))


def import_onnxruntime() -> Any:
    """The package, told to log errors only, and not to report to its makers what it is used for: builds since 1.31 do,
    unless the environment says this when they are imported. Raises `UnavailableError`: it is not installed, or broken.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    runtime = import_package("onnxruntime", "the backend 'onnxruntime' needs", "cpu")
    runtime.set_default_logger_severity(_ERROR_SEVERITY)
    return runtime


def load_cuda(runtime: Any) -> None:
    """Load CUDA's libraries from the packages that they may have been installed with, before the provider needs them.

    What cannot be loaded is printed, and is missing when the provider is asked for.
    """
    preload = getattr(runtime, "preload_dlls", None)  # of ONNX Runtime 1.21 and later
    if preload is not None:
        preload()


def session_options(runtime: Any) -> Any:
    """Fresh session options that log errors only."""
    options = runtime.SessionOptions()
    options.log_severity_level = _ERROR_SEVERITY
    return options


def error_types(runtime: Any) -> tuple[type[Exception], ...]:
    """What onnxruntime's calls raise: a class for each of its status codes, and Python's own from its wrappers."""
    state = runtime.capi.onnxruntime_pybind11_state
    own = [cls for cls in vars(state).values() if isinstance(cls, type) and issubclass(cls, Exception)]
    return (*own, RuntimeError, ValueError)


def reason(error: Exception) -> str:
    """``onnx runtime error <code>: <text>``, without the source positions and C++ signatures that come with it."""
    text = str(error).strip()
    status = _STATUS.match(text)
    code = f" {status[1]}" if status else ""
    text = text[status.end() :] if status else text
    text = _SOURCE_POSITION.sub("", _LOAD_PREFIX.sub("", text, count=1))
    return f"onnx runtime error{code}: {text.strip()}"


# -- What an ONNX graph says about its inputs and outputs


_OTHER_KINDS = {
    "seq": "ONNX_TYPE_SEQUENCE",
    "map": "ONNX_TYPE_MAP",
    "sparse_tensor": "ONNX_TYPE_SPARSETENSOR",
    "optional": "ONNX_TYPE_OPTIONAL",
}


def signature_of(session: Any) -> Signature:
    """The signature of an ``onnxruntime.InferenceSession``.

    Raises:
        UnsupportedError: an input or output is no tensor.
    """
    return Signature(
        inputs=_tensors(session.get_inputs()),
        outputs=_tensors(session.get_outputs()),
        initializers=_tensors(session.get_overridable_initializers()),
    )


def _tensors(arguments: Any) -> dict[str, GraphTensor]:
    tensors: dict[str, GraphTensor] = {}
    for argument in arguments:
        kind = argument.type.partition("(")[0]
        if kind != "tensor":
            raise UnsupportedError(
                f"Unsupported ONNX Type '{_OTHER_KINDS.get(kind, kind)}' for I/O '{argument.name}', expected "
                "'ONNX_TYPE_TENSOR'."
            )
        dims = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in argument.shape)
        element = argument.type.removeprefix("tensor(")[:-1].upper()
        tensors[argument.name] = GraphTensor(argument.name, element, BY_ONNX.get(argument.type), dims)
    return tensors
