"""Graphs in sessions: a SavedModel's by its signature, a frozen graph's by the names of its nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from ...config.model import ModelConfig
from ...config.sequence import SequenceBatching, sequence_batching
from ...datatypes import BF16, BY_NAME, BYTES, DataType
from ...errors import InternalError, InvalidArgumentError
from ..interface import InstanceSpec
from ..signature import GraphTensor, Signature, fed_inputs
from .library import Settings, error_types, load_error

_NAMES = {"bool": "BOOL", "half": "FP16", "float16": "FP16", "float32": "FP32", "float64": "FP64", "string": "BYTES"}


@dataclass(frozen=True, slots=True)
class LoadedGraph:
    """A session and how to use it; sessions may be used by several threads at once.

    Attributes:
        inputs, outputs: by the names that clients use, the graph's own (``serving_default_x:0``).
    """

    session: Any
    signature: Signature
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]

    def callable(self, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
        """A function of arrays, in the order of `inputs`, that gives the outputs."""
        return self.session.make_callable(
            [self.outputs[name] for name in outputs], feed_list=[self.inputs[name] for name in inputs]
        )

    def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> list[Any]:
        """Run with whatever inputs there are."""
        feed = {self.inputs[name]: array for name, array in inputs.items()}
        return self.session.run([self.outputs[name] for name in outputs], feed)


def load_saved_model(tf: Any, path: Path, config: ModelConfig, settings: Settings, spec: InstanceSpec) -> LoadedGraph:
    """Load a SavedModel directory.

    Raises:
        InternalError: TensorFlow cannot load it.
        InvalidArgumentError: it has no such signature.
    """
    v1 = tf.compat.v1
    try:
        graph = tf.Graph()
        session = v1.Session(graph=graph, config=settings.session_config(tf, spec))
        device = device_name(spec)
        with graph.as_default(), graph.device(device):
            meta = v1.saved_model.load(session, [settings.tag], str(path), clear_devices=device is not None)
        _run_init_ops(session, settings)
    except error_types(tf) as error:
        raise load_error(config.name, error) from error
    chosen = meta.signature_def.get(settings.signature)
    if chosen is None:
        there = ", ".join(sorted(name for name in meta.signature_def if not name.startswith("__")))
        raise InvalidArgumentError(
            f"unable to load model '{config.name}', the SavedModel has no signature '{settings.signature}', "
            f"only: {there}"
        )
    return LoadedGraph(
        session,
        Signature(
            {name: _described(tf, name, info) for name, info in sorted(chosen.inputs.items())},
            {name: _described(tf, name, info) for name, info in sorted(chosen.outputs.items())},
        ),
        {name: info.name for name, info in chosen.inputs.items()},
        {name: info.name for name, info in chosen.outputs.items()},
    )


def load_frozen_graph(tf: Any, path: Path, config: ModelConfig, settings: Settings, spec: InstanceSpec) -> LoadedGraph:
    """Load a ``model.graphdef``; its signature are the nodes that the configuration names.

    Raises:
        InternalError: TensorFlow cannot load it.
        InvalidArgumentError: a node is not there.
    """
    v1 = tf.compat.v1
    try:
        definition = v1.GraphDef()
        definition.ParseFromString(path.read_bytes())
        graph = tf.Graph()
        device = device_name(spec)
        if device is not None:
            for node in definition.node:
                node.device = ""
        with graph.as_default(), graph.device(device):
            tf.import_graph_def(definition, name="")
        session = v1.Session(graph=graph, config=settings.session_config(tf, spec))
        _run_init_ops(session, settings)
    except (*error_types(tf), DecodeError) as error:
        raise load_error(config.name, error) from error
    fed = fed_inputs(config, sequence_batching(config) or SequenceBatching())
    inputs = {name: _node(graph, name, "input") for name in fed}
    outputs = {tensor.name: _node(graph, tensor.name, "output") for tensor in config.output}
    return LoadedGraph(
        session,
        Signature(inputs, outputs),
        {name: f"{name}:0" for name in inputs},
        {name: f"{name}:0" for name in outputs},
    )


def device_name(spec: InstanceSpec) -> str | None:
    """Where an instance's operations are to be; None for wherever the model, or TensorFlow, wants. What functions of a
    SavedModel say about the device of their own operations stands.

    A session cannot be shown one GPU alone: those of one process must all see the same GPUs.
    """
    return None if spec.gpu is None else f"/device:GPU:{spec.gpu}"


def _run_init_ops(session: Any, settings: Settings) -> None:
    for name in settings.init_ops:
        session.run(name)


def _described(tf: Any, name: str, info: Any) -> GraphTensor:
    shape = info.tensor_shape
    dims = None if shape.unknown_rank else tuple(dim.size for dim in shape.dim)
    return _graph_tensor(name, tf.as_dtype(info.dtype).name, dims)


def _node(graph: Any, name: str, role: str) -> GraphTensor:
    try:
        tensor = graph.get_tensor_by_name(f"{name}:0")
    except (KeyError, ValueError):
        raise InvalidArgumentError(
            f"unexpected inference {role} '{name}', the graph has no node of that name"
        ) from None
    shape = tensor.shape
    dims = None if shape.rank is None else tuple(-1 if dim is None else dim for dim in shape.as_list())
    return _graph_tensor(name, tensor.dtype.name, dims)


def _graph_tensor(name: str, element: str, dims: tuple[int, ...] | None) -> GraphTensor:
    known: DataType | None = BY_NAME.get(_NAMES.get(element, element.upper()))
    return GraphTensor(name, element.upper(), None if known is BF16 else known, dims or (), any_rank=dims is None)


def to_array(value: Any, datatype: DataType) -> np.ndarray:
    """An output as an array, dtype `DataType.storage`; of BYTES, objects.

    Raises:
        InternalError: it is of another type.
    """
    array = np.asarray(value, object) if datatype is BYTES else np.asarray(value)
    if array.dtype != datatype.storage:
        raise InternalError(f"tensorflow error: an output is {array.dtype}, expected {datatype.storage}")
    return array.reshape(1) if array.ndim == 0 else array
