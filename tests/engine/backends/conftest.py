"""ONNX models made on the fly, and instances to run them on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from collected_answers import NoReply, plain
from onnx import TensorProto, helper

from trireme.engine.backends.interface import InstanceSpec, ModelFiles, ModelInstance
from trireme.engine.backends.onnxruntime import OnnxRuntimeBackend
from trireme.engine.clock import SystemClock
from trireme.engine.config.model import ModelConfig
from trireme.engine.datatypes import BYTES, DataType
from trireme.engine.job import ExecutionBatch, Job
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor

TensorSpec = tuple[str, int, Sequence[int | str] | None]

ONNX_TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
    "BF16": TensorProto.BFLOAT16,
}


class ModelMaker:
    """Writes ONNX files of one model into a directory."""

    def __init__(self, directory: Path) -> None:
        self.files = ModelFiles(directory / "m", 1)
        self.files.version_directory.mkdir(parents=True)

    @property
    def path(self) -> Path:
        return self.files.version_directory / "model.onnx"

    def graph(
        self,
        nodes: Sequence[onnx.NodeProto],
        inputs: Sequence[onnx.ValueInfoProto],
        outputs: Sequence[onnx.ValueInfoProto],
        initializers: Sequence[onnx.TensorProto] = (),
        path: Path | None = None,
        opset: int = 19,
        ir_version: int = 9,
    ) -> ModelFiles:
        """Save a model of these parts."""
        graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
        path = path or self.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(model.SerializeToString())
        return self.files

    def unary(
        self,
        operator: str = "Identity",
        shape: Sequence[int | str] | None = ("n", 4),
        datatype: str = "FP32",
        output_shape: Sequence[int | str] | None = None,
        output_datatype: str | None = None,
        **attributes: Any,
    ) -> ModelFiles:
        """Save Y = operator(X)."""
        out_type = ONNX_TYPES[output_datatype or datatype]
        return self.graph(
            [helper.make_node(operator, ["X"], ["Y"], **attributes)],
            [helper.make_tensor_value_info("X", ONNX_TYPES[datatype], shape)],
            [helper.make_tensor_value_info("Y", out_type, output_shape if output_shape is not None else shape)],
        )


class Runner:
    """One instance, fed with numpy arrays."""

    def __init__(self, instance: ModelInstance) -> None:
        self.instance = instance
        self.batch: ExecutionBatch

    def run(self, *requests: dict[str, Tensor], rows: Sequence[int] = (), ids: Sequence[str] = ()) -> list[Any]:
        """Execute requests as one batch.

        Returns:
            For each request its outputs by name as arrays, or its error.
        """
        jobs = [
            Job(
                InferenceRequest("m", id=ids[at] if ids else ""),
                inputs,
                rows[at] if rows else 1,
                "m",
                1,
                NoReply(),
            )
            for at, inputs in enumerate(requests)
        ]
        self.batch = ExecutionBatch(jobs, "m_0", SystemClock())
        self.instance.execute(self.batch)
        outcomes = {id(job): outcome for job, outcome, _ in self.batch.answers}
        return [plain(outcomes[id(job)]) for job in jobs]


@pytest.fixture
def models(tmp_path: Path) -> ModelMaker:
    return ModelMaker(tmp_path)


@pytest.fixture
def tensor() -> Callable[..., Tensor]:
    """``tensor(name, datatype, values)``, in wire form, as a request brings it."""

    def make(name: str, datatype: DataType, values: Any) -> Tensor:
        if datatype is BYTES:
            array = np.empty(np.shape(values), dtype=object)
            array[...] = values
        else:
            array = np.array(values, dtype=datatype.storage)
        return Tensor(name, datatype, array.shape, bytes(Tensor(name, datatype, array.shape, array=array).buffer))

    return make


@pytest.fixture
def start(models: ModelMaker) -> Callable[..., Runner]:
    """``start(config, options={})``: load the model just made and start an instance of it."""

    def make(config: ModelConfig, options: dict[str, str] | None = None) -> Runner:
        loaded = OnnxRuntimeBackend(options or {}).load(config, models.files)
        return Runner(loaded.create_instance(InstanceSpec("m_0")))

    return make


@pytest.fixture
def run_instance() -> Callable[[ModelInstance], Runner]:
    """A `Runner` of an instance."""
    return Runner
