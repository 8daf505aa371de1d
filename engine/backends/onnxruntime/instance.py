"""One session in use: gather, run, scatter. This is the path of every request; what can be known before is."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...config.model import ModelConfig
from ...config.sequence import ImplicitState
from ...datatypes import BF16, BYTES
from ...errors import InternalError
from ...execution import ExecutionBatch, Phase
from ...job import Job
from ...scheduling.batch import BatchLayout, encode_text
from ...scheduling.sequence.state import keep_states
from ...tensor import Tensor
from ..interface import InstanceSpec, ModelInstance
from ..signature import Signature
from .library import error_types, reason
from .session import run_options

_ONNX_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16


class OnnxRuntimeInstance(ModelInstance):
    """An instance; `execute` and `close` on one thread at a time.

    ``InferenceSession.run`` on numpy arrays is the fastest way for small tensors on the CPU (4 µs with one FP32[16]
    row, where I/O binding and ``run_with_ort_values`` need more than 35 µs); only BF16 goes the longer way, because
    numpy has no such type.

    Args:
        states: the implicit states of the model's sequences.

    Attributes:
        session: the ``onnxruntime.InferenceSession``; None once closed.
    """

    def __init__(
        self,
        runtime: Any,
        config: ModelConfig,
        spec: InstanceSpec,
        session: Any,
        signature: Signature,
        layout: BatchLayout,
        states: Sequence[ImplicitState] = (),
    ) -> None:
        self._name = spec.name
        self._batching = config.max_batch_size > 0
        self._max_rows = max(config.max_batch_size, 1)
        self._layout = layout
        self._errors = error_types(runtime)
        self._runtime = runtime
        self.session: Any = session
        self._run_options = run_options(runtime, config)
        self._output_count = len(config.output)
        self._output_names = [output.name for output in config.output]
        self._output_names += [state.output_name for state in states if config.find_output(state.output_name) is None]
        self._states = [(self._output_names.index(state.output_name), state) for state in states]
        types = {output.name: output.datatype for output in config.output}
        types.update((state.output_name, state.datatype) for state in states)
        self._scalar_inputs = [
            tensor.name for tensor in (*signature.inputs.values(), *signature.initializers.values()) if not tensor.dims
        ]
        self._bf16_inputs = [tensor.name for tensor in config.input if tensor.datatype is BF16]
        self._bf16_inputs += [state.input_name for state in states if state.datatype is BF16]
        self._text_outputs = [at for at, name in enumerate(self._output_names) if types[name] is BYTES]
        self._run = self._run_bound if BF16 in types.values() else self._run_arrays

    def execute(self, batch: ExecutionBatch) -> None:
        if batch.rows > self._max_rows:
            raise InternalError(f"batch size {batch.rows} for '{self._name}', max allowed is {self._max_rows}")
        jobs, inputs = self._layout.gather(batch.jobs)
        if not jobs:
            return
        if self._scalar_inputs or self._bf16_inputs:
            self._convert(inputs)
        batch.mark(Phase.INFER_START)
        try:
            outputs = self._run(inputs)
        except self._errors as error:
            raise InternalError(reason(error)) from None
        batch.mark(Phase.OUTPUT_START)
        for at in self._text_outputs:
            outputs[at] = encode_text(outputs[at])
        if self._states:
            self._keep_and_scatter(jobs, outputs)
        else:
            self._layout.scatter(jobs, outputs)

    def close(self) -> None:
        self.session = None

    def _keep_and_scatter(self, jobs: Sequence[Job], outputs: list[np.ndarray]) -> None:
        """What a batch leaves behind is kept only once nothing can go wrong with it any more."""
        shares = self._layout.split(jobs, outputs[: self._output_count])
        kept = [(state, outputs[at]) for at, state in self._states]
        tensors = [Tensor(state.output_name, state.datatype, array.shape, array=array) for state, array in kept]
        keep_states(jobs, tensors, self._batching)
        self._layout.answer(shares)

    def _convert(self, inputs: dict[str, Any]) -> None:
        """What configurations call [1] and graphs a scalar; and BF16, whose bits come as UINT16."""
        for name in self._scalar_inputs:
            if name in inputs:
                inputs[name] = inputs[name].reshape(())
        for name in self._bf16_inputs:
            if name in inputs:
                bits = np.ascontiguousarray(inputs[name]).reshape(inputs[name].shape)
                inputs[name] = self._runtime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, _ONNX_BFLOAT16)

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
        return [_to_array(value) for value in binding.get_outputs()]


def _to_array(value: Any) -> np.ndarray:
    """An ``OrtValue`` on the CPU as an array; BF16 as UINT16, a view that keeps the value alive."""
    if value.element_type() != _ONNX_BFLOAT16:
        return value.numpy()
    shape = value.shape()
    count = int(np.prod(shape, dtype=np.int64))
    if not count:
        return np.empty(shape, BF16.storage)
    memory = (ctypes.c_uint16 * count).from_address(value.data_ptr())
    memory.owner = value  # pyright: ignore[reportAttributeAccessIssue]  what the array is a view of must outlive it
    return np.ctypeslib.as_array(memory).reshape(shape)
