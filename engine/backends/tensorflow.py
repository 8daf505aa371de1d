"""The backend ``tensorflow``: how models are loaded and checked, and how instances use sessions
(docs/reference/backends.md#tensorflow)."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from ..config.files import path_within
from ..config.model import ModelConfig
from ..config.sequence import SequenceBatching, sequence_batching
from ..datatypes import BF16, BY_NAME, BYTES, DataType
from ..errors import InternalError, InvalidArgumentError
from ..plugins import import_package
from .framework import FrameworkModel, GraphBackend, ModelTensors, ThreadInstance, find_file
from .interface import Completion, InstanceSpec, ModelFiles
from .parameters import parse_int
from .signature import GraphTensor, Signature, check_model, fed_types

_GRAPHDEF = "tensorflow_graphdef"
_NAMES = {"bool": "BOOL", "half": "FP16", "float16": "FP16", "float32": "FP32", "float64": "FP64", "string": "BYTES"}


class TensorFlowBackend(GraphBackend):
    """Runs TensorFlow models in sessions, as Triton's own backend did.

    Options: ``default-max-batch-size`` (4).
    """

    name = "tensorflow"
    shares_threads = True

    def auto_complete(self, config: ModelConfig, files: ModelFiles) -> Completion | None:
        """Frozen graphs tell nothing."""
        return None if config.platform == _GRAPHDEF else super().auto_complete(config, files)

    def signature(self, config: ModelConfig, files: ModelFiles) -> Signature:
        return _load(self.library, config, files, InstanceSpec(config.name)).signature

    def uses_gpus(self) -> bool:
        return bool(self.library.config.list_physical_devices("GPU"))

    def load(self, config: ModelConfig, files: ModelFiles) -> TensorFlowModel:
        return TensorFlowModel(self.library, config, files)

    def import_library(self) -> Any:
        for key, value in _QUIET.items():
            os.environ.setdefault(key, value)
        logging.getLogger("tensorflow").setLevel(logging.ERROR)  # its warnings are for those who write models
        return import_package("tensorflow", "the backend 'tensorflow' needs", "tensorflow")


class TensorFlowModel(FrameworkModel["LoadedGraph"]):
    """A model; its programs are sessions."""

    def __init__(self, tf: Any, config: ModelConfig, files: ModelFiles) -> None:
        super().__init__(config, files, share=TensorFlowSettings.of(config, files).share)
        self._tf = tf
        signature = self.first_program().signature
        sequences = self.tensors.sequences
        if sequences.states:
            raise InvalidArgumentError(
                f"unable to load model '{config.name}', the TensorFlow backend does not support implicit state"
            )
        expected = len(config.input) + len(sequences.controls)
        if expected > len(signature.inputs) and config.platform != _GRAPHDEF:
            raise InvalidArgumentError(
                f"unable to load model '{config.name}', configuration expects {expected} inputs, model provides at "
                f"most {len(signature.inputs)}"
            )
        check_model(config, signature, sequences, every_input=False)
        self.tensors.scalars = signature.scalars

    def create_instance(self, spec: InstanceSpec) -> TensorFlowInstance:
        return TensorFlowInstance(self._tf, spec.name, self.tensors, self.program(spec))

    def make(self, spec: InstanceSpec) -> LoadedGraph:
        return _load(self._tf, self.config, self.files, spec)


class TensorFlowInstance(ThreadInstance):
    """An instance; `execute` and `close` on the instance's thread."""

    def __init__(self, tf: Any, name: str, tensors: ModelTensors, graph: LoadedGraph) -> None:
        super().__init__(name, tensors, self._call_graph, error_types(tf))
        self._fetches = True
        self._graph: LoadedGraph | None = graph
        self._fetched = [graph.outputs[name] for name in tensors.outputs]
        fed = [graph.inputs[name] for name in tensors.inputs]
        self._call: Any = graph.session.make_callable(self._fetched, feed_list=fed)

    def close(self) -> None:
        super().close()
        self._graph = self._call = None

    def _call_graph(self, inputs: dict[str, Any]) -> Sequence[Any]:
        assert self._graph is not None, "a closed instance executes nothing"
        if len(inputs) == len(self._tensors.inputs):
            return self._call(*[inputs[name] for name in self._tensors.inputs])
        feed = {self._graph.inputs[name]: array for name, array in inputs.items()}
        return self._graph.session.run(self._fetched, feed)  # an optional input is absent

    def _failure(self, error: Exception) -> InternalError:
        return InternalError(f"tensorflow error: {_reason(error)}")

    def _fetch(self, outputs: Sequence[Any]) -> list[np.ndarray]:
        types = self._tensors.outputs.values()
        return [_to_array(value, datatype) for value, datatype in zip(outputs, types, strict=True)]


# -- Graphs in sessions: a SavedModel's by its signature, a frozen graph's by the names of its nodes


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


def _load(tf: Any, config: ModelConfig, files: ModelFiles, spec: InstanceSpec) -> LoadedGraph:
    """Load a SavedModel directory; or a ``model.graphdef``, whose signature are the nodes that the configuration names.

    Raises:
        InternalError: TensorFlow cannot load it.
        InvalidArgumentError: it has no such signature, node or GPU.
    """
    settings = TensorFlowSettings.of(config, files)
    frozen = config.platform == _GRAPHDEF
    path = find_file(config, files, spec, "model.graphdef" if frozen else "model.savedmodel", directory=True)
    there = len(tf.config.list_physical_devices("GPU")) if spec.gpu is not None else 0
    if spec.gpu is not None and spec.gpu >= there:
        raise InvalidArgumentError(
            f"unable to load model '{config.name}', instance '{spec.name}' is to run on GPU {spec.gpu}, and TensorFlow "
            f"{tf.__version__} finds {there or 'none'}"
        )
    v1, graph, device = tf.compat.v1, tf.Graph(), device_name(spec)
    meta: Any = None
    try:
        session = v1.Session(graph=graph, config=settings.session_config(tf, spec))
        with graph.as_default(), graph.device(device):
            if frozen:
                tf.import_graph_def(_frozen_graph(tf, path, keep_devices=device is None), name="")
            else:
                meta = v1.saved_model.load(session, [settings.tag], str(path), clear_devices=device is not None)
        for name in settings.init_ops:
            session.run(name)
    except (*error_types(tf), DecodeError) as error:
        raise InternalError(f"unable to load model '{config.name}': {_reason(error)}") from error
    if frozen:
        fed = fed_types(config, sequence_batching(config) or SequenceBatching())
        inputs = {name: _node(graph, name, "input") for name in fed}
        outputs = {tensor.name: _node(graph, tensor.name, "output") for tensor in config.output}
        taken, given = {name: f"{name}:0" for name in inputs}, {name: f"{name}:0" for name in outputs}
        return LoadedGraph(session, Signature(inputs, outputs), taken, given)
    chosen = meta.signature_def.get(settings.signature)
    if chosen is None:
        there = ", ".join(sorted(name for name in meta.signature_def if not name.startswith("__")))
        raise InvalidArgumentError(
            f"unable to load model '{config.name}', the SavedModel has no signature '{settings.signature}', "
            f"only: {there}"
        )
    inputs = {name: _described(tf, name, info) for name, info in sorted(chosen.inputs.items())}
    outputs = {name: _described(tf, name, info) for name, info in sorted(chosen.outputs.items())}
    taken = {name: info.name for name, info in chosen.inputs.items()}
    given = {name: info.name for name, info in chosen.outputs.items()}
    return LoadedGraph(session, Signature(inputs, outputs), taken, given)


def _frozen_graph(tf: Any, path: Path, *, keep_devices: bool) -> Any:
    definition = tf.compat.v1.GraphDef()
    definition.ParseFromString(path.read_bytes())
    if not keep_devices:
        for node in definition.node:
            node.device = ""
    return definition


def device_name(spec: InstanceSpec) -> str | None:
    """Where an instance's operations are to be; None for wherever the model, or TensorFlow, wants. What functions of a
    SavedModel say about the device of their own operations stands.

    A session cannot be shown one GPU alone: those of one process must all see the same GPUs.
    """
    return None if spec.gpu is None else f"/device:GPU:{spec.gpu}"


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


def _to_array(value: Any, datatype: DataType) -> np.ndarray:
    """An output as an array, dtype `DataType.storage`; of BYTES, objects. Raises `InternalError`: it is of another
    type."""
    array = np.asarray(value, object) if datatype is BYTES else np.asarray(value)
    if array.dtype != datatype.storage:
        raise InternalError(f"tensorflow error: an output is {array.dtype}, expected {datatype.storage}")
    return array.reshape(1) if array.ndim == 0 else array


# -- How the tensorflow package is to behave, and its errors in plain words


_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}
"""Errors only; and results that do not depend on the processor. What the environment says goes before."""

_ANNOUNCEMENTS = ("Graph execution error:", "Detected at node", "Node: ", "[[")


def error_types(tf: Any) -> tuple[type[Exception], ...]:
    """What its calls raise."""
    return (tf.errors.OpError, RuntimeError, ValueError, TypeError, LookupError, OSError)


def _reason(error: Exception) -> str:
    """What went wrong, without the announcements before it and the list of graph nodes that follows it."""
    text = str(getattr(error, "message", "") or error)
    lines = [line.strip() for line in text.splitlines()]
    telling = [line for line in lines if line and not line.startswith(_ANNOUNCEMENTS)]
    return telling[0] if telling else type(error).__name__


# -- What a configuration says about how TensorFlow is to run (docs/reference/backends.md#tensorflow)


_YES = ("yes", "1", "on", "true")
_NO = ("no", "0", "off", "false")
_MIXED_PRECISION = "auto_mixed_precision"
_NEEDS_NOTHING = "gpu_io"


@dataclass(frozen=True, slots=True)
class TensorFlowSettings:
    """Parameters of one model.

    Attributes:
        intra_threads, inter_threads: 0 for TensorFlow's choice.
        tag, signature: which graph of a SavedModel, and which of its signatures.
        share: instances that use one session.
        xla: True and False for the just-in-time compiler on and off, None for TensorFlow's choice.
    """

    intra_threads: int = 0
    inter_threads: int = 0
    own_threads: bool = False
    tag: str = "serve"
    signature: str = "serving_default"
    share: int = 1
    init_ops: tuple[str, ...] = ()
    xla: bool | None = None
    mixed_precision: bool = False

    @classmethod
    def of(cls, config: ModelConfig, files: ModelFiles) -> TensorFlowSettings:
        """Read them.

        Raises:
            InvalidArgumentError: a value is none of those that its parameter may have.
        """
        known = config.parameters
        for accelerator in config.cpu_accelerators:
            raise InvalidArgumentError(f"unknown Execution Accelerator '{accelerator.name}' is requested")
        return cls(
            intra_threads=_count(known, "TF_NUM_INTRA_THREADS"),
            inter_threads=_count(known, "TF_NUM_INTER_THREADS"),
            own_threads=_flag(known, "TF_USE_PER_SESSION_THREADS"),
            tag=known.get("TF_GRAPH_TAG", "serve"),
            signature=known.get("TF_SIGNATURE_DEF", "serving_default"),
            share=max(_count(known, "MAX_SESSION_SHARE_COUNT"), 1),
            init_ops=_init_ops(known.get("TF_INIT_OPS_FILE", ""), files),
            xla=None if config.graph_level == 0 else config.graph_level > 0,
            mixed_precision=_mixed_precision(config),
        )

    def session_config(self, tf: Any, spec: InstanceSpec) -> Any:
        v1 = tf.compat.v1
        made = v1.ConfigProto(
            intra_op_parallelism_threads=self.intra_threads,
            inter_op_parallelism_threads=self.inter_threads,
            use_per_session_threads=self.own_threads,
            allow_soft_placement=True,
        )
        if spec.kind == "KIND_CPU":
            made.device_count["GPU"] = 0
        else:  # alike in all sessions that see GPUs: what the first one says of them holds for the process
            made.gpu_options.allow_growth = True
        if self.xla is not None:
            options = v1.OptimizerOptions
            made.graph_options.optimizer_options.global_jit_level = options.ON_1 if self.xla else options.OFF
        if self.mixed_precision and spec.kind == "KIND_GPU":
            made.graph_options.rewrite_options.auto_mixed_precision = 1
        return made


def _count(known: Mapping[str, str], key: str) -> int:
    number = parse_int(known.get(key, "0"))
    if number < 0:
        raise InvalidArgumentError(f"parameter '{key}' must be a non-negative number, got {number}")
    return number


def _flag(known: Mapping[str, str], key: str) -> bool:
    value = known.get(key, "no").lower()
    if value not in (*_YES, *_NO):
        raise InvalidArgumentError(f"parameter '{key}' must be yes or no, 1 or 0, on or off, got '{known[key]}'")
    return value in _YES


def _mixed_precision(config: ModelConfig) -> bool:
    names = [accelerator.name for accelerator in config.gpu_accelerators]
    for name in names:
        if name == "tensorrt":
            raise InvalidArgumentError(
                f"unable to load model '{config.name}', TensorFlow from PyPI is built without TensorRT, so the "
                "execution accelerator 'tensorrt' cannot be used"
            )
        if name not in (_MIXED_PRECISION, _NEEDS_NOTHING):
            raise InvalidArgumentError(f"unknown Execution Accelerator '{name}' is requested")
    return _MIXED_PRECISION in names


def _init_ops(filename: str, files: ModelFiles) -> tuple[str, ...]:
    """Names of operations from a JSON file of the version's directory, else of the model's."""
    if not filename:
        return ()
    for folder in (str(files.version), ""):
        path = path_within(files.model_directory, folder, filename)
        if path is not None and path.is_file():
            return _read_init_ops(path)
    raise InvalidArgumentError(
        f"TF_INIT_OPS_FILE '{filename}' is neither in {files.version_directory} nor in {files.model_directory}"
    )


def _read_init_ops(path: Path) -> tuple[str, ...]:
    try:
        names = json.loads(path.read_text())["init_ops"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise InvalidArgumentError(f"{path} must be a JSON object with a list 'init_ops': {error}") from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(f"'init_ops' in {path} must be a list of operation names")
    return tuple(names)
