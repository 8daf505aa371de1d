"""The tensorrt package: imported when a model needs it, never before; its log; the libraries with plugins.

TensorRT says why something failed in its log only: calls return None or False. So the log keeps what is said while a
call is made.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...config.model import ModelConfig
from ...errors import InternalError, InvalidArgumentError, TriremeError, UnavailableError, UnsupportedError
from ...gpu.device import Device
from ...plugins import import_package
from ..parameters import parse_bool

_log = logging.getLogger(__name__)

_OLDEST_MAJOR = 10
"""Of TensorRT's versions, the first whose engines may be used by several contexts with one profile at a time."""

_LEVELS = {
    "INTERNAL_ERROR": logging.ERROR,
    "ERROR": logging.ERROR,
    "WARNING": logging.WARNING,
    "INFO": logging.INFO,
    "VERBOSE": logging.DEBUG,
}


@dataclass(frozen=True, slots=True)
class Library:
    """TensorRT, ready for use: one a process, because its log is.

    Attributes:
        log: the ``ILogger`` that everything is made with; outlives all of that.
        errors: what it has been told that failed.
        building: held while an engine is read, which TensorRT does one at a time.
    """

    trt: Any
    log: Any
    errors: ErrorTexts
    building: threading.Lock = field(default_factory=threading.Lock)


class ErrorTexts:
    """The errors that TensorRT has logged on the calling thread. Used from any thread."""

    def __init__(self) -> None:
        self._local = threading.local()

    def add(self, text: str) -> None:
        """An error was logged."""
        texts = getattr(self._local, "texts", None)
        if texts is not None:
            texts.append(text)

    @contextmanager
    def caught(self) -> Iterator[list[str]]:
        """Collect what the calling thread logs meanwhile."""
        texts: list[str] = []
        self._local.texts = texts
        try:
            yield texts
        finally:
            self._local.texts = None


def import_library(plugins: Sequence[str] = ()) -> Library:
    """TensorRT, with its own plugins and those of more libraries.

    Args:
        plugins: paths of libraries that register plugins when they are loaded.

    Raises:
        UnavailableError: it is not installed, broken, or too old.
        InvalidArgumentError: a library of plugins cannot be loaded.
    """
    trt = import_package("tensorrt", "the backend 'tensorrt' needs", "tensorrt")
    if int(trt.__version__.partition(".")[0]) < _OLDEST_MAJOR:
        raise UnavailableError(
            f"the backend 'tensorrt' needs TensorRT {_OLDEST_MAJOR} or later, not {trt.__version__}: pip install "
            "trireme[tensorrt]"
        )
    errors = ErrorTexts()
    log = _make_log(trt, errors)
    for path in plugins:
        try:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise InvalidArgumentError(f"unable to load the TensorRT plugins of '{path}': {error}") from None
    trt.init_libnvinfer_plugins(log, "")
    return Library(trt, log, errors)


def _make_log(trt: Any, errors: ErrorTexts) -> Any:
    """An ``ILogger`` that writes to Trireme's log. TensorRT calls it from any thread."""

    class Log(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)  # not super(): the class is one of C++

        def log(self, severity: Any, message: str) -> None:
            level = _LEVELS[severity.name]
            _log.log(level, "TensorRT: %s", message)
            if level >= logging.ERROR:
                errors.add(message)

    return Log()


# -- Plan files: reading one gives an engine, or says what is wrong with it and what to do


_PLUGIN = "it needs a plugin that is not there: name its library with --backend-config=tensorrt,plugins=/path/to/it.so"
_HOST_CODE = (
    "it brings code of its own: if you trust it, allow that with --backend-config=tensorrt,version-compatible=true"
)
_OTHER_GPU = (
    "it was built for another GPU: build it on this one, and name the plans of different GPUs in cc_model_filenames, "
    "or build it with hardware compatibility"
)
_OTHER_VERSION = (
    "it was built with another version of TensorRT than {version}, which runs here: build it with that one, or as a "
    "version-compatible plan, for --backend-config=tensorrt,version-compatible=true"
)
_NO_MEMORY = "the GPU has no room for it, or is not well"
_DAMAGED = "the file is no plan of TensorRT, or is damaged"

_REMEDIES = {
    "plugin": _PLUGIN,
    "host code": _HOST_CODE,
    "compute capability": _OTHER_GPU,
    "incompatible device": _OTHER_GPU,
    "different device": _OTHER_GPU,
    "sm version": _OTHER_GPU,
    "version tag": _OTHER_VERSION,
    "library version": _OTHER_VERSION,
    "this version of tensorrt": _OTHER_VERSION,
    "memory": _NO_MEMORY,
    "cuda error": _NO_MEMORY,
}
"""By what TensorRT's texts say, in lower case; the first that is found counts."""


def read_plan(library: Library, device: Device, path: Path, *, model: str, version_compatible: bool) -> Any:
    """Read a plan into the memory of a device.

    Returns:
        The ``ICudaEngine``.

    Raises:
        InternalError: it cannot be read; the text says why, as TensorRT does, and what to do.
    """
    data = path.read_bytes()
    with library.building, device.active(), library.errors.caught() as errors:
        engine = None
        try:
            runtime = library.trt.Runtime(library.log)
            if version_compatible:
                runtime.engine_host_code_allowed = True
            engine = runtime.deserialize_cuda_engine(data)
        except (TypeError, RuntimeError) as error:  # what pybind11 makes of a factory that gives nothing
            errors.append(str(error))
    if engine is None:
        raise _refusal(library, path, model, errors)
    return engine


def _refusal(library: Library, path: Path, model: str, errors: list[str]) -> TriremeError:
    said = "; ".join(text.strip().rstrip(".") for text in errors) or "no reason given"
    lower = said.lower()
    remedy = next((remedy for sign, remedy in _REMEDIES.items() if sign in lower), _DAMAGED)
    return InternalError(
        f"unable to load model '{model}' from '{path}': unable to create TensorRT engine: {said} "
        f"({remedy.format(version=library.trt.__version__)})"
    )


# -- What a configuration, and the backend's options, say about TensorRT models (docs/reference/backends.md#tensorrt)


_POLICIES = ("DEVICE_BLOCKING", "BLOCKING")
_STRATEGIES = ("STATIC", "ON_PROFILE_CHANGE")
_STRATEGY = "execution_context_allocation_strategy"
_SEVERAL_DEVICES = ("enable_multi_device", "multi_device_gpus", "multi_device_per_rank_engines")
_PRIORITY_MAX = 1


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """``--backend-config=tensorrt,…``.

    Attributes:
        version_compatible: whether plans may bring the code of the TensorRT version that made them.
    """

    plugins: tuple[str, ...]
    version_compatible: bool

    @classmethod
    def of(cls, options: Mapping[str, str]) -> BackendOptions:
        """Read them. ``coalesce-request-input`` and ``execution-policy`` are checked, and change nothing: inputs are
        joined in pinned memory whatever they say, and every instance has a thread.

        Raises:
            InvalidArgumentError: one has a value that it cannot have.
        """
        parse_bool(options.get("coalesce-request-input", "false"))
        policy = options.get("execution-policy", _POLICIES[0])
        if policy not in _POLICIES:
            raise InvalidArgumentError(f"execution-policy must be {' or '.join(_POLICIES)}, not '{policy}'")
        plugins = tuple(path for path in options.get("plugins", "").split(";") if path)
        return cls(plugins, parse_bool(options.get("version-compatible", "false")))


@dataclass(frozen=True, slots=True)
class Settings:
    """Of one model.

    Attributes:
        strategy: how an execution context gets its memory: a name of TensorRT's ``ExecutionContextAllocationStrategy``.
    """

    stream_priority: int
    strategy: str
    graphs: bool

    @classmethod
    def of(cls, config: ModelConfig) -> Settings:
        """Read them.

        Raises:
            InvalidArgumentError: one has a value that it cannot have.
            UnsupportedError: the model is to be spread over several GPUs.
        """
        strategy = config.parameters.get(_STRATEGY, _STRATEGIES[0])
        if strategy not in _STRATEGIES:
            raise InvalidArgumentError(
                f"Invalid value for '{_STRATEGY}': '{strategy}' for model instance '{config.name}'. Supported values "
                "are 'STATIC' and 'ON_PROFILE_CHANGE'."
            )
        for name in _SEVERAL_DEVICES:
            if name in config.parameters:
                raise UnsupportedError(
                    f"unable to load model '{config.name}': the parameter '{name}' asks for an engine over several "
                    "GPUs, which Trireme does not have; build one for a single GPU, and place instances on several"
                )
        optimization = config.message.optimization
        priority = -1 if optimization.priority == _PRIORITY_MAX else 0
        return cls(priority, strategy, optimization.cuda.graphs)
