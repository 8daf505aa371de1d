"""What an instance has to know of a model's tensors, worked out once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...config.model import ModelConfig
from ...config.sequence import ImplicitState, SequenceBatching
from ...datatypes import BF16, BYTES, DataType
from ...job import Job
from ...scheduling.batch import BatchLayout
from ...scheduling.sequence.state import keep_arrays
from ..signature import Signature

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
