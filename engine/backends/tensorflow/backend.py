"""The backend ``tensorflow``: how models are loaded and checked, and how instances share sessions
(docs/reference/backends.md#tensorflow)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from ...config.model import ModelConfig
from ...config.sequence import SequenceBatching, sequence_batching
from ...errors import InternalError, InvalidArgumentError, UnavailableError
from ...execution import ExecutionBatch, Phase
from ...instances.orders import first_instance
from ...scheduling.batch import BatchLayout
from ..interface import Backend, Completion, InstanceSpec, LoadedModel, ModelFiles, ModelInstance
from ..parameters import parse_int
from ..signature import check_tensors, complete, fed_inputs, needs_completion
from .graph import (
    LoadedGraph,
    Settings,
    error_types,
    execute_error,
    import_tensorflow,
    load_frozen_graph,
    load_saved_model,
    to_array,
)

_GRAPHDEF = "tensorflow_graphdef"


class TensorFlowBackend(Backend):
    """Runs TensorFlow models in sessions, as Triton's own backend did.

    Options: ``default-max-batch-size`` (4).
    """

    name = "tensorflow"

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._default_max_batch_size = max(parse_int(options.get("default-max-batch-size", "4")), 0)

    def auto_complete(self, config: ModelConfig, files: ModelFiles) -> Completion | None:
        """See docs/reference/model-configuration.md#completion-by-backends; frozen graphs tell nothing.

        Raises:
            TriremeError: the model cannot be read, or cannot batch although the configuration wants it to.
        """
        if config.platform == _GRAPHDEF or not needs_completion(config):
            return None
        graph = _load(import_tensorflow(), config, files, InstanceSpec(config.name))
        return complete(config, graph.signature, self._default_max_batch_size)

    def uses_gpus(self) -> bool:
        return bool(import_tensorflow().config.list_physical_devices("GPU"))

    def load(self, config: ModelConfig, files: ModelFiles) -> TensorFlowModel:
        return TensorFlowModel(import_tensorflow(), config, files)


class TensorFlowModel(LoadedModel):
    """A model whose configuration fits its graph. The session of the check is the first instance's."""

    def __init__(self, tf: Any, config: ModelConfig, files: ModelFiles) -> None:
        self._tf = tf
        self._config = config
        self._files = files
        self._share = Settings.of(config, files).share
        self._layout = BatchLayout(config)
        spec = first_instance(config)
        graph = _load(tf, config, files, spec)
        sequences = sequence_batching(config) or SequenceBatching()
        if sequences.states:
            raise InvalidArgumentError(
                f"unable to load model '{config.name}', the TensorFlow backend does not support implicit state"
            )
        _check_count(config, graph, sequences)
        check_tensors(config, graph.signature, sequences)
        self._lock = threading.Lock()
        self._shared: dict[tuple[str, int], tuple[LoadedGraph, int]] = {(spec.kind, spec.device_id): (graph, 0)}

    def create_instance(self, spec: InstanceSpec) -> TensorFlowInstance:
        return TensorFlowInstance(self._tf, self._config, spec, self._graph(spec), self._layout)

    def _graph(self, spec: InstanceSpec) -> LoadedGraph:
        """A session for an instance: one that has not enough of them yet, or a new one."""
        key = (spec.kind, spec.device_id)
        with self._lock:
            graph, users = self._shared.get(key, (None, 0))
            if graph is None or users >= self._share:
                graph, users = _load(self._tf, self._config, self._files, spec), 0
            self._shared[key] = (graph, users + 1)
            return graph

    def close(self) -> None:
        self._shared = {}


def _load(tf: Any, config: ModelConfig, files: ModelFiles, spec: InstanceSpec) -> LoadedGraph:
    settings = Settings.of(config, files)
    frozen = config.platform == _GRAPHDEF
    path = files.model_path(config, spec, "model.graphdef" if frozen else "model.savedmodel")
    if not path.exists():
        raise UnavailableError(f"unable to find '{path}' for model instance '{config.name}'")
    there = len(tf.config.list_physical_devices("GPU")) if spec.gpu is not None else 0
    if spec.gpu is not None and spec.gpu >= there:
        raise InvalidArgumentError(
            f"unable to load model '{config.name}', instance '{spec.name}' is to run on GPU {spec.gpu}, and TensorFlow "
            f"{tf.__version__} finds {there or 'none'}"
        )
    return (load_frozen_graph if frozen else load_saved_model)(tf, path, config, settings, spec)


def _check_count(config: ModelConfig, graph: LoadedGraph, sequences: SequenceBatching) -> None:
    expected = len(config.input) + len(sequences.controls)
    if expected > len(graph.signature.inputs) and config.platform != _GRAPHDEF:
        raise InvalidArgumentError(
            f"unable to load model '{config.name}', configuration expects {expected} inputs, model provides at most "
            f"{len(graph.signature.inputs)}"
        )


# -- One instance: gather, run the session, scatter


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
