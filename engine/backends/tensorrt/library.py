"""The tensorrt package: imported when a model needs it, never before; its log; plans, and what their engines say.

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
from typing import Any, NamedTuple

from ...config.model import Dims, ModelConfig
from ...datatypes import BF16, BOOL, FP16, FP32, INT8, INT32, INT64, UINT8
from ...errors import InternalError, InvalidArgumentError, TriremeError, UnavailableError, UnsupportedError
from ...gpu.cupy_device import CupyDevice
from ...gpu.graphs import InputShapes
from ...plugins import import_package
from ..signature import GraphTensor, Signature

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
            "trireme-server[tensorrt]"
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


@dataclass(frozen=True, slots=True)
class Engine:
    """A plan in the memory of a device, for all instances there; `raw` is the ``ICudaEngine``."""

    device: CupyDevice
    raw: Any
    tensors: EngineTensors


def read_plan(library: Library, device: CupyDevice, path: Path, *, model: str, version_compatible: bool) -> Engine:
    """Read a plan into the memory of a device.

    Raises:
        InternalError: it cannot be read; the text says why, as TensorRT does, and what to do.
        UnsupportedError: a tensor is not linear in memory.
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
        said = "; ".join(text.strip().rstrip(".") for text in errors) or "no reason given"
        remedy = next((remedy for sign, remedy in _REMEDIES.items() if sign in said.lower()), _DAMAGED)
        raise InternalError(
            f"unable to load model '{model}' from '{path}': unable to create TensorRT engine: {said} "
            f"({remedy.format(version=library.trt.__version__)})"
        )
    return Engine(device, engine, _engine_tensors(library.trt, engine, model))


# -- What a configuration says about how TensorRT is to run (docs/reference/backends.md#tensorrt)


_STRATEGIES = ("STATIC", "ON_PROFILE_CHANGE")
_STRATEGY = "execution_context_allocation_strategy"
_SEVERAL_DEVICES = ("enable_multi_device", "multi_device_gpus", "multi_device_per_rank_engines")


def allocation_strategy(config: ModelConfig) -> str:
    """How an execution context gets its memory: a name of TensorRT's ``ExecutionContextAllocationStrategy``.

    Raises:
        InvalidArgumentError: the parameter has a value that it cannot have.
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
    return strategy


# -- What an engine says about its inputs and outputs


TYPES = {
    "FLOAT": FP32,
    "HALF": FP16,
    "BF16": BF16,
    "INT8": INT8,
    "UINT8": UINT8,
    "INT32": INT32,
    "INT64": INT64,
    "BOOL": BOOL,
}
"""By the names of TensorRT's ``DataType``. The smaller floats and integers that it also has are none of Trireme's."""


class Range(NamedTuple):
    """What a profile allows for one input: its dimensions, or the values of a shape tensor."""

    minimum: Dims
    optimum: Dims
    maximum: Dims


@dataclass(frozen=True, slots=True)
class EngineTensors:
    """Inputs and outputs of an engine.

    Attributes:
        shape_tensors: names of those whose values shapes depend on, or that are shapes.
        on_host: names of those that TensorRT reads or writes in the host's memory.
        shapes: for each profile, what shapes the inputs may have.
        values: for each profile, what values the inputs among the shape tensors may have.
    """

    signature: Signature
    shape_tensors: frozenset[str]
    on_host: frozenset[str]
    shapes: tuple[Mapping[str, Range], ...]
    values: tuple[Mapping[str, Range], ...]


def _engine_tensors(trt: Any, engine: Any, model: str) -> EngineTensors:
    names = [engine.get_tensor_name(at) for at in range(engine.num_io_tensors)]
    inputs: dict[str, GraphTensor] = {}
    outputs: dict[str, GraphTensor] = {}
    for name in names:
        if engine.get_tensor_format(name) != trt.TensorFormat.LINEAR:
            raise UnsupportedError(
                f"unable to load model '{model}': tensor '{name}' has the format "
                f"{engine.get_tensor_format(name).name}, but only LINEAR is supported; build the engine with linear "
                "input and output formats"
            )
        dims = tuple(engine.get_tensor_shape(name))
        element = engine.get_tensor_dtype(name).name
        tensors = inputs if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT else outputs
        tensors[name] = GraphTensor(name, element, TYPES.get(element), dims)
    shape_tensors = frozenset(name for name in names if engine.is_shape_inference_io(name))
    profiles = range(engine.num_optimization_profiles)
    return EngineTensors(
        Signature(inputs, outputs),
        shape_tensors,
        frozenset(name for name in names if engine.get_tensor_location(name) == trt.TensorLocation.HOST),
        tuple(
            {name: Range(*map(tuple, engine.get_tensor_profile_shape(name, at))) for name in inputs} for at in profiles
        ),
        tuple(
            # The arguments are in this order, whatever the names that the binding gives them.
            {
                name: Range(*map(tuple, engine.get_tensor_profile_values(at, name)))
                for name in inputs
                if name in shape_tensors
            }
            for at in profiles
        ),
    )


# Optimisation profiles: which of an instance's fits a batch best (docs/reference/backends.md#tensorrt).
#
# Rules:
#  1. An instance has the profiles that its group names, or the engine's first one.
#  2. A batch fits a profile if every dimension of every input, and every value of every shape tensor, is within what
#     the profile allows.
#  3. Of those that it fits, it takes the one whose optimum is nearest: the sum of all differences, without their signs.
#     Of equals, the first.
#  4. What fits none is refused with what the first one says about it, and logged.


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OptimizationProfile:
    """One profile of an engine.

    Attributes:
        name: as the configuration calls it: its number.
    """

    index: int
    name: str
    shapes: Mapping[str, Range]
    values: Mapping[str, Range]

    def check(self, shapes: InputShapes, values: InputShapes, instance: str) -> None:
        """Check a batch (rule 2).

        Raises:
            InternalError, InvalidArgumentError: it does not fit, in Triton's words.
        """
        for name, shape in shapes.items():
            wrong = _wrong_shape(shape, self.shapes[name])
            if wrong:
                raise InternalError(
                    f"request specifies invalid shape for input '{name}' for {instance}. Error details: {wrong}"
                )
        for name, given in values.items():
            wrong = _wrong_values(given, self.values[name])
            if wrong:
                raise InvalidArgumentError(wrong)

    def distance(self, shapes: InputShapes, values: InputShapes) -> int:
        """How far a batch that fits is from the optimum (rule 3)."""
        pairs = [(shape, self.shapes[name].optimum) for name, shape in shapes.items()]
        pairs += [(given, self.values[name].optimum) for name, given in values.items()]
        return sum(abs(dim - best) for dims, optimum in pairs for dim, best in zip(dims, optimum, strict=True))

    def __str__(self) -> str:
        return f"{self.name}[{self.index}]"


def chosen_profiles(tensors: EngineTensors, names: Sequence[str], instance: str) -> tuple[OptimizationProfile, ...]:
    """The profiles of an instance (rule 1), in order of their numbers, each once.

    Raises:
        InvalidArgumentError: the engine has no such profile.
    """
    found: dict[int, OptimizationProfile] = {}
    for name in names or ("0",):
        index = int(name)
        if index >= len(tensors.shapes):
            raise InvalidArgumentError(
                f"Can not set the specified optimization profile {name}[{index}] for {instance}. Expected optimization "
                f"profile index range 0-{len(tensors.shapes) - 1}"
            )
        if index in found:
            _log.warning(
                "%s maps to profile index %d which has been mapped by %s, existing optimization profile will be reused",
                name,
                index,
                found[index].name,
            )
            continue
        label = name if names else "default"
        found[index] = OptimizationProfile(index, label, tensors.shapes[index], tensors.values[index])
    return tuple(found[index] for index in sorted(found))


def choose(
    profiles: Sequence[OptimizationProfile], shapes: InputShapes, values: InputShapes, instance: str
) -> OptimizationProfile:
    """The profile for a batch (rules 3 and 4).

    Raises:
        InternalError, InvalidArgumentError: it fits none.
    """
    best: OptimizationProfile | None = None
    nearest = 0
    for profile in profiles if len(profiles) > 1 else ():
        try:
            profile.check(shapes, values, instance)
        except TriremeError:
            continue
        distance = profile.distance(shapes, values)
        if best is None or distance < nearest:
            best, nearest = profile, distance
    if best is not None:
        return best
    if len(profiles) > 1:
        _log.error(
            "failed to find any Optimization Profile among [%s] to support the requested dimensions (or shape values), "
            "proceeding with first profile.",
            "".join(f" {profile}" for profile in profiles),
        )
    profiles[0].check(shapes, values, instance)
    return profiles[0]


def wrong_config_dims(dims: Dims, allowed: Range) -> str:
    """What is wrong with the dimensions that a configuration fixes, or nothing; -1 is not fixed."""
    pairs = zip(dims, allowed.minimum, strict=False)
    return _wrong_shape(tuple(least if dim == -1 else dim for dim, least in pairs), allowed)


def _wrong_shape(shape: Dims, allowed: Range) -> str:
    if len(shape) != len(allowed.maximum):
        return f"model expected {len(allowed.maximum)} dimensions but received {len(shape)} dimensions"
    for at, (dim, least, most) in enumerate(zip(shape, allowed.minimum, allowed.maximum, strict=True)):
        if not least <= dim <= most:
            return f"model expected the shape of dimension {at} to be between {least} and {most} but received {dim}"
    return ""


def _wrong_values(values: Dims, allowed: Range) -> str:
    if len(values) != len(allowed.maximum):
        return f"mismatch between the number of shape values. Expecting {len(allowed.maximum)}. Got {len(values)}"
    for at, (value, least, most) in enumerate(zip(values, allowed.minimum, allowed.maximum, strict=True)):
        if not least <= value <= most:
            return f"The shape value at index {at} is expected to be in range from {least} to {most}, Got: {value}"
    return ""
