"""One instance: gather, run the session, scatter."""

from __future__ import annotations

from typing import Any

from ...config.model import ModelConfig
from ...config.sequence import SequenceBatching, sequence_batching
from ...errors import InternalError
from ...execution import ExecutionBatch, Phase
from ...scheduling.batch import BatchLayout
from ..interface import InstanceSpec, ModelInstance
from ..signature import fed_inputs
from .graph import LoadedGraph, to_array
from .library import error_types, execute_error


class TensorFlowInstance(ModelInstance):
    """An instance; `execute` and `close` on the instance's thread."""

    def __init__(
        self, tf: Any, config: ModelConfig, spec: InstanceSpec, graph: LoadedGraph, layout: BatchLayout
    ) -> None:
        self._name = spec.name
        self._errors = error_types(tf)
        self._max_rows = max(config.max_batch_size, 1)
        self._layout = layout
        self._graph: LoadedGraph | None = graph
        self._types = [output.datatype for output in config.output]
        self._outputs = [output.name for output in config.output]
        self._inputs = fed_inputs(config, sequence_batching(config) or SequenceBatching())
        self._call: Any = graph.callable(self._inputs, self._outputs)
        self._scalars = frozenset(name for name, tensor in graph.signature.inputs.items() if tensor.is_scalar)

    def execute(self, batch: ExecutionBatch) -> None:
        graph = self._graph
        assert graph is not None, "a closed instance executes nothing"
        if batch.rows > self._max_rows:
            raise InternalError(f"batch size {batch.rows} for '{self._name}', max allowed is {self._max_rows}")
        jobs, inputs = self._layout.gather(batch.jobs)
        if not jobs:
            return
        for name in self._scalars:
            if name in inputs and inputs[name].size == 1:
                inputs[name] = inputs[name].reshape(())
        batch.mark(Phase.INFER_START)
        try:
            if len(inputs) == len(self._inputs):
                values = self._call(*[inputs[name] for name in self._inputs])
            else:
                values = graph.run(inputs, self._outputs)  # an optional input is absent
        except self._errors as error:
            raise execute_error(error) from None
        batch.mark(Phase.OUTPUT_START)
        outputs = [to_array(value, datatype) for value, datatype in zip(values, self._types, strict=True)]
        self._layout.scatter(jobs, outputs)

    def close(self) -> None:
        self._graph = None
        self._call = None
