"""What a model file becomes on a device: something that takes named arrays and gives outputs in order; how it is run;
and how arrays become torch tensors, and tensors arrays."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...config.model import ModelConfig
from ...datatypes import BOOL, BYTES, FP16, FP32, FP64, INT8, INT16, INT32, INT64, UINT8, DataType
from ...errors import InternalError, InvalidArgumentError, TriremeError
from ...gpu.device import SickDeviceError
from ...gpu.torch_device import TorchDevice
from ..parameters import parse_bool, parse_int

Values = Mapping[str, Any]
"""By the name that the configuration gives it: a torch tensor, or a list of `str`."""


class Program(ABC):
    """A module on its device. Used by one thread at a time, unless instances share it."""

    device: Any

    @abstractmethod
    def run(self, inputs: Values) -> Sequence[Any]:
        """Execute the model.

        Returns:
            The outputs, in the order of `ModelTensors.outputs`.
        """


# -- torch's errors in plain words


def error_types(torch: Any) -> tuple[type[Exception], ...]:
    """What torch raises when it loads or runs a model: its own errors, and what the model's code may raise."""
    return (torch.jit.Error, RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError)


def load_error(model_name: str, error: Exception) -> InternalError:
    return InternalError(f"failed to load model '{model_name}': {str(error).strip()}")


def execute_error(error: Exception) -> InternalError:
    return InternalError(f"PyTorch execute failure: {str(error).strip() or type(error).__name__}")


# -- Runs a program as the model's parameters say: without gradients, in mixed precision, with or without cuDNN


@dataclass(slots=True, eq=False)
class ProgramRunner:
    """A program and how it is run, on a GPU if it is on one. On one thread at a time."""

    _torch: Any
    program: Program
    _settings: PyTorchSettings
    _gpu: TorchDevice | None

    def run(self, inputs: Values) -> Sequence[Any]:
        """Execute the model; on a GPU, enqueue it on the current stream.

        Raises:
            InternalError: whatever the model raised.
            OutOfDeviceMemoryError, SickDeviceError: see `TorchDevice.errors`.
        """
        torch, settings, gpu = self._torch, self._settings, self._gpu
        try:
            with ExitStack() as stack:
                stack.enter_context(torch.inference_mode() if settings.inference_mode else torch.no_grad())
                stack.enter_context(torch.jit.optimized_execution(settings.optimized_execution))
                if settings.mixed_precision:
                    dtype = getattr(torch, settings.mixed_precision)
                    stack.enter_context(torch.autocast(self.program.device.type, dtype=dtype))
                if gpu is not None:
                    stack.enter_context(gpu.errors())
                    stack.enter_context(gpu.active())
                    if not settings.cudnn:
                        stack.enter_context(torch.backends.cudnn.flags(enabled=False))
                return self.program.run(inputs)
        except TriremeError:
            raise
        except error_types(torch) as error:
            raise execute_error(error) from error

    def clean(self) -> None:
        """``ENABLE_CACHE_CLEANING``, after each run; left out while something is captured, which no batch waits for."""
        if self._gpu is not None and self._settings.clean_cache:
            self._gpu.give_back(wait=False)

    def close(self) -> None:
        """Drop the program, and give back what the device's allocator keeps; one that is sick has nothing to give."""
        del self.program
        if self._gpu is not None:
            with suppress(SickDeviceError, RuntimeError):
                self._gpu.give_back()


# -- What a configuration's parameters say about how PyTorch is to run (docs/reference/backends.md#pytorch)


@dataclass(frozen=True, slots=True)
class PyTorchSettings:
    """Parameters of one model.

    Attributes:
        inference_mode: run under ``torch.inference_mode`` instead of ``no_grad``.
        intra_op_threads, inter_op_threads: 0 for no opinion.
        jit_executor, jit_profiling, tensor_fuser: None for torch's own choice.
        mixed_precision: ``bfloat16`` or ``float16`` for automatic mixed precision, else empty.
        compile: options for ``torch.compile``; None not to compile.
    """

    optimized_execution: bool = True
    inference_mode: bool = True
    cudnn: bool = True
    share_weights: bool = False
    clean_cache: bool = False
    intra_op_threads: int = 0
    inter_op_threads: int = 0
    jit_executor: bool | None = None
    jit_profiling: bool | None = None
    tensor_fuser: bool | None = None
    mixed_precision: str = ""
    compile: Mapping[str, Any] | None = field(default=None)

    @classmethod
    def of(cls, config: ModelConfig) -> PyTorchSettings:
        """Read them.

        Raises:
            InvalidArgumentError: a value is not of its parameter's type.
        """
        known = config.parameters

        def flag(key: str) -> bool | None:
            return parse_bool(known[key]) if key in known else None

        def number(*keys: str) -> int:
            return next((max(parse_int(known[key]), 0) for key in keys if key in known), 0)

        return cls(
            optimized_execution=not flag("DISABLE_OPTIMIZED_EXECUTION"),
            inference_mode=flag("INFERENCE_MODE") is not False,
            cudnn=not flag("DISABLE_CUDNN"),
            share_weights=bool(flag("ENABLE_WEIGHT_SHARING")),
            clean_cache=bool(flag("ENABLE_CACHE_CLEANING")),
            intra_op_threads=number("INTRA_OP_THREAD_COUNT", "NUM_THREADS"),
            inter_op_threads=number("INTER_OP_THREAD_COUNT", "NUM_INTEROP_THREADS"),
            jit_executor=flag("ENABLE_JIT_EXECUTOR"),
            jit_profiling=flag("ENABLE_JIT_PROFILING"),
            tensor_fuser=flag("ENABLE_TENSOR_FUSER"),
            mixed_precision=_mixed_precision(known.get("AUTOMATIC_MIXED_PRECISION", "")),
            compile=_compile_options(known),
        )

    def lines(self, config: ModelConfig) -> Iterator[str]:
        """What the log says of them at a load, in Triton's words; of the last ones only what `config` gives."""
        switches = [
            ("Optimized execution", self.optimized_execution, True),
            ("Cache Cleaning", self.clean_cache, True),
            ("Inference Mode", self.inference_mode, True),
            ("cuDNN", self.cudnn, True),
            ("Tensor fuser", self.tensor_fuser, self.tensor_fuser is not None),
            ("Weight sharing", self.share_weights, "ENABLE_WEIGHT_SHARING" in config.parameters),
            ("Jit profiling", self.jit_profiling, self.jit_profiling is not None),
            ("Jit executor", self.jit_executor, self.jit_executor is not None),
        ]
        for what, on, given in switches:
            if given:
                yield f"{what} is {'enabled' if on else 'disabled'} for model instance '{config.name}'"
        for what, count in (("Intra", self.intra_op_threads), ("Inter", self.inter_op_threads)):
            if count:
                yield f"{what} op thread count is set to {count} for model instance '{config.name}'"


def _mixed_precision(value: str) -> str:
    names = {"": "", "off": "", "bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16", "float16": "float16"}
    if value.lower() not in names:
        raise InvalidArgumentError(f"AUTOMATIC_MIXED_PRECISION must be BF16, FP16 or OFF, got '{value}'")
    return names[value.lower()]


def _compile_options(parameters: Mapping[str, str]) -> Mapping[str, Any] | None:
    """``TORCH_COMPILE_OPTIONAL_PARAMETERS``, a JSON object; ``TORCH_COMPILE`` alone compiles without options."""
    text = parameters.get("TORCH_COMPILE_OPTIONAL_PARAMETERS")
    wanted = parse_bool(parameters.get("TORCH_COMPILE", "true" if text is not None else "false"))
    if not wanted:
        return None
    try:
        options = json.loads(text or "{}")
    except ValueError as error:
        raise InvalidArgumentError(f"TORCH_COMPILE_OPTIONAL_PARAMETERS is not valid JSON: {error}") from None
    if not isinstance(options, dict):
        raise InvalidArgumentError("TORCH_COMPILE_OPTIONAL_PARAMETERS must be a JSON object")
    if "model" in options:
        raise InvalidArgumentError("'model' is not an optional parameter for 'torch.compile'")
    return options


# Arrays to torch tensors and back. Arrays and tensors on the CPU share memory. BYTES are lists of `str` in TorchScript,
# which has no tensors of text.


TORCH_NAMES = {
    BOOL: "bool",
    UINT8: "uint8",
    INT8: "int8",
    INT16: "int16",
    INT32: "int32",
    INT64: "int64",
    FP16: "float16",
    FP32: "float32",
    FP64: "float64",
}


def to_torch(torch: Any, array: np.ndarray, device: Any, *, own: bool = False) -> Any:
    """A tensor on `device`, or of text a list of `str`.

    Args:
        array: dtype `DataType.storage`, but elements of BYTES are `str`, one dimension (but for the batch's).
        own: no other code reads it. A model may write to its inputs, and what one gets in an ensemble, another one may
            get as well.
    """
    if array.dtype.hasobject:
        return array.ravel().tolist()
    if not own or not array.flags.writeable or not array.flags.c_contiguous:
        array = array.copy()  # torch has no read-only tensors
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.to(device)


class OutputCheck:
    """Makes an array of one output, if it is what the configuration promises."""

    def __init__(self, torch: Any, name: str, datatype: DataType, batching: bool) -> None:
        self._torch = torch
        self._name = name
        self._datatype = datatype
        self._batching = batching
        self._dtype = None if datatype is BYTES else getattr(torch, TORCH_NAMES[datatype])

    def array(self, value: Any) -> np.ndarray:
        """The output as an array of its own, dtype `DataType.storage`: a model may keep what it has returned, and write
        to it when it is run again, while the answer is still being sent.

        Raises:
            InvalidArgumentError: it is of another type, or a scalar.
            InternalError: it is no tensor at all.
        """
        if self._dtype is None and _is_text(value):
            array = np.empty(len(value), object)
            array[:] = [each.encode() for each in value]
            return array.reshape(-1, 1) if self._batching else array
        value = self._checked(value)
        array = value.cpu().contiguous()
        return (array.clone() if array.data_ptr() == value.data_ptr() else array).numpy()

    def on_device(self, value: Any, device: Any) -> Any:
        """The output as a contiguous tensor on a GPU, of its own as that of `array`. Raises as that does."""
        value = self._checked(value).contiguous()
        return value.clone() if value.device == device else value.to(device)

    def _checked(self, value: Any) -> Any:
        if _is_text(value):
            raise self._mismatch(BYTES.config_name)
        if not self._torch.is_tensor(value):
            raise InternalError(
                "PyTorch execute failure: output must be of type Tensor, List[str] or Tuple containing one of these "
                "two types. It should not be a List / Dictionary of Tensors or a Scalar"
            )
        if value.dim() == 0:
            raise InvalidArgumentError(f"output '{self._name}' is a scalar which is not supported.")
        if value.dtype is not self._dtype:
            raise self._mismatch(_config_name(value.dtype))
        return value.detach()

    def _mismatch(self, provided: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"configuration expects datatype {self._datatype.config_name} for output '{self._name}', model provides "
            f"{provided}"
        )


def _is_text(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _config_name(dtype: Any) -> str:
    """``TYPE_…`` of a torch dtype, or torch's own name."""
    name = str(dtype).removeprefix("torch.")
    return next((datatype.config_name for datatype, known in TORCH_NAMES.items() if known == name), name)
