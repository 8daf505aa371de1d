"""The backend ``tensorflow``: how models are loaded and checked, and how instances share sessions
(docs/reference/backends.md#tensorflow)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from ...config.model import ModelConfig
from ...config.sequence import SequenceBatching, sequence_batching
from ...errors import InvalidArgumentError, UnavailableError
from ...instance_orders import first_instance
from ...scheduling.batch import BatchLayout
from ..checks import check_tensors
from ..completion import complete, needs_completion
from ..interface import Backend, Completion, InstanceSpec, LoadedModel, ModelFiles
from ..parameters import parse_int
from .graph import LoadedGraph, load_frozen_graph, load_saved_model
from .instance import TensorFlowInstance
from .library import import_tensorflow
from .settings import Settings

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
