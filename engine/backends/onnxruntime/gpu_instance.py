"""One session on a GPU: inputs and outputs are bound in the device's memory, and its kernels go into our stream.

Rules:
 1. The CUDA and TensorRT providers enqueue on the stream that they were given (``user_compute_stream``), and a run does
    not wait for it (``disable_synchronize_execution_providers``). So a batch is launched when its run has returned. A
    build of ONNX Runtime that waits all the same costs overlap, and nothing else.
 2. An input is bound where the graph takes it, which the session says. What a node on the CPU takes is bound there: a
    copy by ONNX Runtime would not wait for ours, which is on another stream. So are initializers that a configuration
    makes inputs, of which the session does not say it: ONNX Runtime copies them at once.
 3. An output is bound where the graph makes it, and ONNX Runtime allocates it, since only it knows the shape. One on
    the CPU is looked at when the batch has landed: what makes it may be in the stream as well.
 4. Two batches may be on their way: each has a binding, inputs and outputs of its own, and whatever else the session
    holds is used in the order of the stream. A model with implicit state has one: its next requests need what this
    batch leaves behind, so there would be nothing to overlap.

Written after ONNX Runtime's reference and sources (1.31) and tested against a stand-in for its GPU build, which
computes with the real one; no GPU has seen it yet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ...config.model import ModelConfig
from ...errors import FailureReason, InternalError, TriremeError, UnavailableError
from ...execution import ExecutionBatch
from ...gpu.cupy_device import CupyDevice
from ...gpu.device import DeviceArray, OutOfDeviceMemoryError, Stream
from ...gpu.pipeline import Flight, Pipeline
from ...job import Job
from ...memory.tensors import PlacedOutput
from ...scheduling.batch import BatchLayout
from ..interface import InstanceSpec, StreamInstance
from .instance import ONNX_BFLOAT16, Wiring, as_bf16, to_array
from .session import error_types, reason, run_options

_NOT_SYNCHRONIZED = "disable_synchronize_execution_providers"

# "CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; hostname=..."
_CUDA_FAILURE = re.compile(r"\bCUDA failure (\d+)")
_OUT_OF_MEMORY = ("Failed to allocate memory", "smaller than requested bytes", "_ALLOC_FAILED", "out of memory")


@dataclass(slots=True)
class Run:
    """What ONNX Runtime has of a batch.

    Attributes:
        host_inputs: arrays by name, of the inputs that the graph takes on the CPU.
        host_outputs: ``OrtValue`` by name, of the outputs that it makes there.
        binding: keeps alive what is bound.
    """

    host_inputs: Mapping[str, np.ndarray]
    host_outputs: dict[str, Any] = field(default_factory=dict)
    binding: Any = None


@dataclass(frozen=True, slots=True)
class Launched:
    jobs: Sequence[Job]
    run: Run
    flight: Flight


class OnnxRuntimeGpuInstance(StreamInstance):
    """An instance; see `StreamInstance` for who calls what.

    Args:
        session: made for the compute stream of `pipeline`.

    Attributes:
        session: the ``onnxruntime.InferenceSession``; None once closed.

    Raises:
        UnavailableError: the installed ONNX Runtime is too old to say where inputs and outputs are.
    """

    def __init__(
        self,
        runtime: Any,
        config: ModelConfig,
        spec: InstanceSpec,
        session: Any,
        pipeline: Pipeline,
        device: CupyDevice,
        wiring: Wiring,
        layout: BatchLayout,
    ) -> None:
        if wiring.states:
            self.credits = 1
        self._name = spec.name
        self._max_rows = max(config.max_batch_size, 1)
        self._device = device
        self._pipeline = pipeline
        self._wiring = wiring
        self._layout = layout
        self._runtime = runtime
        self._errors = error_types(runtime)
        self._run_options = run_options(runtime, config)
        self._run_options.add_run_config_entry(_NOT_SYNCHRONIZED, "1")
        self.session: Any = session
        self._device_inputs, device_outputs = _places(session)
        self._all_on_device = not wiring.scalar_inputs and len(self._device_inputs) == len(session.get_inputs())
        self._device_outputs = [name for name in wiring.outputs if name in device_outputs]

    def launch(self, batch: ExecutionBatch, on_landed: Callable[[], None]) -> Launched:
        if batch.rows > self._max_rows:
            raise InternalError(f"batch size {batch.rows} for '{self._name}', max allowed is {self._max_rows}")
        gpu = self._device.index if self._all_on_device else None
        jobs, inputs = self._layout.gather(batch.jobs, self._device.pinned, gpu)
        for name in self._wiring.scalar_inputs:
            if name in inputs:
                inputs[name] = inputs[name].reshape(())
        names = [name for name in inputs if name in self._device_inputs]
        pinned = [inputs.pop(name) for name in names]
        run = Run(inputs)
        compute = partial(self._compute, run, names)
        place = partial(self._place, jobs) if self._layout.wants_place(jobs) else None
        return Launched(jobs, run, self._pipeline.launch(pinned, compute, on_landed, place))

    def collect(self, batch: ExecutionBatch, launched: Launched) -> None:
        arrays = dict(zip(self._device_outputs, launched.flight.collect(batch), strict=True))
        for name, value in launched.run.host_outputs.items():
            arrays[name] = to_array(value)
        self._wiring.scatter(self._layout, launched.jobs, [arrays[name] for name in self._wiring.outputs])

    def healthy(self, launched: Launched) -> None:
        launched.flight.reached()

    def close(self) -> None:
        self.session = None

    def _compute(
        self, run: Run, names: Sequence[str], stream: Stream, arrays: Sequence[DeviceArray]
    ) -> list[DeviceArray]:
        """See `pipeline.Compute`. The stream is the one that the session was made for."""
        run.binding = self.session.io_binding()
        try:
            self._bind(run.binding, names, arrays, run.host_inputs)
            with self._device.active():
                self.session.run_with_iobinding(run.binding, self._run_options)
        except self._errors as error:
            raise self._failure(reason(error)) from None
        results = []
        for name, value in zip(self._wiring.outputs, run.binding.get_outputs(), strict=True):
            if name in self._device_outputs:
                results.append(self._view(name, value))
            else:
                run.host_outputs[name] = value
        return results

    def _place(self, jobs: Sequence[Job], results: Sequence[DeviceArray]) -> list[PlacedOutput | None]:
        """See `pipeline.Place`."""
        shapes = {name: result.shape for name, result in zip(self._device_outputs, results, strict=True)}
        return self._layout.place(jobs, self._device.index, shapes)

    def _bind(
        self,
        binding: Any,
        names: Sequence[str],
        arrays: Sequence[DeviceArray],
        host_inputs: Mapping[str, np.ndarray],
    ) -> None:
        """Rules 2 and 3."""
        for name, array in zip(names, arrays, strict=True):
            kind = ONNX_BFLOAT16 if name in self._wiring.bf16_inputs else array.dtype
            address = self._device.address(array)
            binding.bind_input(name, "cuda", self._device.index, kind, list(array.shape), address)
        for name, array in host_inputs.items():
            # As a value, because `bind_cpu_input` knows nothing of initializers that a configuration makes inputs.
            bf16 = name in self._wiring.bf16_inputs
            value = as_bf16(self._runtime, array) if bf16 else self._runtime.OrtValue.ortvalue_from_numpy(array)
            binding.bind_ortvalue_input(name, value)
        for name in self._wiring.outputs:
            if name in self._device_outputs:
                binding.bind_output(name, "cuda", self._device.index)
            else:
                binding.bind_output(name)

    def _view(self, name: str, value: Any) -> DeviceArray:
        """An ``OrtValue`` on the device as an array; BF16 as UINT16."""
        if value.device_name() != "cuda":
            raise InternalError(
                f"output '{name}' of '{self._name}' is on '{value.device_name()}', though bound to cuda"
            )
        return self._device.view(value.data_ptr(), value.shape(), self._wiring.types[name].storage, value)

    def _failure(self, text: str) -> TriremeError:
        """The error that one of ONNX Runtime's is: the batch's, or the device's."""
        cuda = _CUDA_FAILURE.search(text)
        if cuda is not None:
            return self._device.failure(int(cuda[1]), text)
        if any(sign in text for sign in _OUT_OF_MEMORY):
            return OutOfDeviceMemoryError(f"GPU {self._device.index}: {text}")
        return InternalError(text, reason=FailureReason.BACKEND)


def _places(session: Any) -> tuple[frozenset[str], frozenset[str]]:
    """Names of the inputs that the graph takes, and of the outputs that it makes, in the GPU's memory."""
    try:
        inputs, outputs = session.get_input_memory_infos(), session.get_output_memory_infos()
    except AttributeError:
        raise UnavailableError("instances on GPUs need ONNX Runtime 1.23 or later: pip install trireme[gpu]") from None
    return (
        frozenset(_on_device(session.get_inputs(), inputs)),
        frozenset(_on_device(session.get_outputs(), outputs)),
    )


def _on_device(arguments: Sequence[Any], infos: Sequence[Any]) -> Iterator[str]:
    for argument, info in zip(arguments, infos, strict=True):
        where = info.name.lower()
        # Pinned memory has had names and types of many kinds ("CudaPinned", host accessible); it is the CPU's.
        if "cpu" not in where and "pinned" not in where and "host" not in str(info.device_mem_type).lower():
            yield argument.name
