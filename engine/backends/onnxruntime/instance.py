"""One session in use: gather, run, scatter. This is the path of every request; what can be known before is."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...config.model import ModelConfig
from ...config.sequence import ImplicitState, SequenceBatching
from ...datatypes import BF16, BYTES, DataType
from ...errors import InternalError
from ...execution import ExecutionBatch, Phase
from ...job import Job
from ...scheduling.batch import BatchLayout, encode_text
from ...scheduling.sequence.state import keep_arrays
from ..interface import InstanceSpec, ModelInstance
from ..signature import Signature
from .session import error_types, reason, run_options


class OnnxRuntimeInstance(ModelInstance):
    """An instance; `execute` and `close` on one thread at a time.

    ``InferenceSession.run`` on numpy arrays is the fastest way for small tensors on the CPU (4 µs with one FP32[16]
    row, where I/O binding and ``run_with_ort_values`` need more than 35 µs); only BF16 goes the longer way, because
    numpy has no such type.

    Attributes:
        session: the ``onnxruntime.InferenceSession``; None once closed.
    """

    def __init__(
        self,
        runtime: Any,
        config: ModelConfig,
        spec: InstanceSpec,
        session: Any,
        wiring: Wiring,
        layout: BatchLayout,
    ) -> None:
        self._name = spec.name
        self._max_rows = max(config.max_batch_size, 1)
        self._layout = layout
        self._errors = error_types(runtime)
        self._runtime = runtime
        self.session: Any = session
        self._run_options = run_options(runtime, config)
        self._wiring = wiring
        self._output_names = list(wiring.outputs)
        self._to_convert = bool(wiring.scalar_inputs or wiring.bf16_inputs)
        types = wiring.types
        self._text_outputs = [at for at, name in enumerate(self._output_names) if types[name] is BYTES]
        self._run = self._run_bound if BF16 in types.values() else self._run_arrays

    def execute(self, batch: ExecutionBatch) -> None:
        if batch.rows > self._max_rows:
            raise InternalError(f"batch size {batch.rows} for '{self._name}', max allowed is {self._max_rows}")
        jobs, inputs = self._layout.gather(batch.jobs)
        if not jobs:
            return
        if self._to_convert:
            self._convert(inputs)
        batch.mark(Phase.INFER_START)
        try:
            outputs = self._run(inputs)
        except self._errors as error:
            raise InternalError(reason(error)) from None
        batch.mark(Phase.OUTPUT_START)
        for at in self._text_outputs:
            outputs[at] = encode_text(outputs[at])
        self._wiring.scatter(self._layout, jobs, outputs)

    def close(self) -> None:
        self.session = None

    def _convert(self, inputs: dict[str, Any]) -> None:
        """What configurations call [1] and graphs a scalar; and BF16, whose bits come as UINT16."""
        for name in self._wiring.scalar_inputs:
            if name in inputs:
                inputs[name] = inputs[name].reshape(())
        for name in self._wiring.bf16_inputs:
            if name in inputs:
                inputs[name] = as_bf16(self._runtime, inputs[name])

    def _run_arrays(self, inputs: dict[str, Any]) -> list[np.ndarray]:
        return self.session.run(self._output_names, inputs, self._run_options)

    def _run_bound(self, inputs: dict[str, Any]) -> list[np.ndarray]:
        binding = self.session.io_binding()
        for name, value in inputs.items():
            if isinstance(value, np.ndarray):
                binding.bind_cpu_input(name, value)
            else:
                binding.bind_ortvalue_input(name, value)
        for name in self._output_names:
            binding.bind_output(name)
        self.session.run_with_iobinding(binding, self._run_options)
        return [to_array(value) for value in binding.get_outputs()]


def to_array(value: Any) -> np.ndarray:
    """An ``OrtValue`` on the CPU as an array; BF16 as UINT16, a view that keeps the value alive."""
    if value.element_type() != ONNX_BFLOAT16:
        return value.numpy()
    shape = value.shape()
    count = int(np.prod(shape, dtype=np.int64))
    if not count:
        return np.empty(shape, BF16.storage)
    memory = (ctypes.c_uint16 * count).from_address(value.data_ptr())
    memory.owner = value  # pyright: ignore[reportAttributeAccessIssue]  what the array is a view of must outlive it
    return np.ctypeslib.as_array(memory).reshape(shape)


# -- What an instance has to know of a model's tensors, worked out once


ONNX_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16


@dataclass(frozen=True, slots=True)
class Wiring:
    """See `wire`.

    Attributes:
        outputs: names of the graph's outputs to ask for: the configuration's, then those of states.
        client_outputs: how many of them are the configuration's.
        types: of the outputs, by name.
        states: where in `outputs` each state is.
        scalar_inputs: what configurations call [1] and graphs a scalar.
        bf16_inputs: whose elements come as UINT16.
    """

    outputs: tuple[str, ...]
    client_outputs: int
    types: Mapping[str, DataType]
    states: tuple[tuple[int, ImplicitState], ...]
    scalar_inputs: tuple[str, ...]
    bf16_inputs: tuple[str, ...]
    batching: bool

    def scatter(self, layout: BatchLayout, jobs: Sequence[Job], outputs: Sequence[Any]) -> None:
        """Answer the jobs of a batch with its outputs, in the order of `Wiring.outputs`: see `BatchLayout.split`."""
        if not self.states:
            layout.scatter(jobs, outputs)
            return
        # What a batch leaves behind is kept only once nothing can go wrong with it any more.
        shares = layout.split(jobs, outputs[: self.client_outputs])
        keep_arrays(jobs, [(state, outputs[at]) for at, state in self.states], self.batching)
        layout.answer(shares)


def wire(config: ModelConfig, signature: Signature, states: Sequence[ImplicitState]) -> Wiring:
    """The wiring of a model whose configuration fits its graph."""
    outputs = [output.name for output in config.output]
    outputs += [state.output_name for state in states if config.find_output(state.output_name) is None]
    types = {output.name: output.datatype for output in config.output}
    types.update((state.output_name, state.datatype) for state in states)
    graph_inputs = (*signature.inputs.values(), *signature.initializers.values())
    bf16_inputs = [tensor.name for tensor in config.input if tensor.datatype is BF16]
    bf16_inputs += [state.input_name for state in states if state.datatype is BF16]
    return Wiring(
        outputs=tuple(outputs),
        client_outputs=len(config.output),
        types=types,
        states=tuple((outputs.index(state.output_name), state) for state in states),
        scalar_inputs=tuple(tensor.name for tensor in graph_inputs if not tensor.dims),
        bf16_inputs=tuple(bf16_inputs),
        batching=config.max_batch_size > 0,
    )


def text_tensors(config: ModelConfig, sequences: SequenceBatching) -> list[str]:
    """Names of the tensors that hold strings, inputs and outputs."""
    tensors = [*((tensor.name, tensor.datatype) for tensor in (*config.input, *sequences.controls, *config.output))]
    tensors += [(state.input_name, state.datatype) for state in sequences.states]
    return [name for name, datatype in tensors if datatype is BYTES]


def as_bf16(runtime: Any, bits: np.ndarray) -> Any:
    """An ``OrtValue`` on the CPU over BF16 elements that come as UINT16."""
    whole = np.ascontiguousarray(bits).reshape(bits.shape)
    return runtime.OrtValue.ortvalue_from_numpy_with_onnx_type(whole, ONNX_BFLOAT16)
