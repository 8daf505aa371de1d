"""The models of the scripted session, twice: as ONNX models for Trireme, and as python-backend models for the real
Triton.

Both sides serve the same names, shapes and configurations and compute the same values, so whatever differs in the
answers is the servers' doing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MODEL_PY = """import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            values = [pb_utils.get_input_tensor_by_name(request, n).as_numpy() for n in INPUTS]
            outputs = COMPUTE
            names = NAMES
            wanted = request.requested_output_names()
            tensors = [pb_utils.Tensor(n, v) for n, v in zip(names, outputs) if n in wanted]
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return responses
"""

ONNX_NAMES = {"BYTES": "STRING", "FP16": "FLOAT16", "BF16": "BFLOAT16", "FP32": "FLOAT", "FP64": "DOUBLE"}


@dataclass(frozen=True)
class SessionModel:
    """`kind` is ``identity`` (each output is its input) or ``add_sub`` (sum and difference of two inputs)."""

    name: str
    kind: str
    datatype: str
    dims: tuple[int, ...]
    max_batch_size: int = 0
    tensors: int = 1
    labels: tuple[str, ...] = ()
    extra: str = ""

    @property
    def inputs(self) -> list[str]:
        return [f"INPUT{index}" for index in range(self.tensors)]

    @property
    def outputs(self) -> list[str]:
        return [f"OUTPUT{index}" for index in range(self.tensors)]

    def config(self, backend: str) -> str:
        """The config.pbtxt for either side."""
        dims = ", ".join(map(str, self.dims))
        lines = [f'name: "{self.name}"', f'backend: "{backend}"', f"max_batch_size: {self.max_batch_size}"]
        type_name = "STRING" if self.datatype == "BYTES" else self.datatype
        tensor = f"data_type: TYPE_{type_name} dims: [ {dims} ]"
        lines += [f'input {{ name: "{name}" {tensor} }}' for name in self.inputs]
        labels = 'label_filename: "labels.txt" ' if self.labels else ""
        lines += [f'output {{ name: "{name}" {tensor} {labels}}}' for name in self.outputs]
        return "\n".join([*lines, "instance_group { count: 1 kind: KIND_CPU }", self.extra, ""])

    def write_python(self, repository: Path) -> None:
        """As a python-backend model."""
        version = self._write(repository, "python")
        compute = "values" if self.kind == "identity" else "[values[0] + values[1], values[0] - values[1]]"
        text = (
            MODEL_PY.replace("COMPUTE", compute)
            .replace("NAMES", repr(self.outputs))
            .replace("INPUTS", repr(self.inputs))
        )
        (version / "model.py").write_text(text)

    def write_onnx(self, repository: Path) -> None:
        """As an ONNX model."""
        import onnx
        from onnx import TensorProto, helper

        element = ONNX_NAMES.get(self.datatype, self.datatype)
        number = getattr(TensorProto, element)
        shape = [None if dim < 0 else dim for dim in self.dims]
        if self.max_batch_size:
            shape.insert(0, None)
        if self.kind == "identity":
            nodes = [helper.make_node("Identity", [a], [b]) for a, b in zip(self.inputs, self.outputs, strict=True)]
        else:
            operators = zip(("Add", "Sub"), self.outputs, strict=True)
            nodes = [helper.make_node(operator, self.inputs, [output]) for operator, output in operators]
        graph = helper.make_graph(
            nodes,
            self.name,
            [helper.make_tensor_value_info(name, number, shape) for name in self.inputs],
            [helper.make_tensor_value_info(name, number, shape) for name in self.outputs],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, str(self._write(repository, "onnxruntime") / "model.onnx"))

    def _write(self, repository: Path, backend: str) -> Path:
        directory = repository / self.name
        (directory / "1").mkdir(parents=True)
        (directory / "config.pbtxt").write_text(self.config(backend))
        if self.labels:
            (directory / "labels.txt").write_text("\n".join(self.labels) + "\n")
        return directory / "1"


MODELS = (
    SessionModel("add_sub", "add_sub", "INT32", (16,), 8, 2, extra="dynamic_batching { }"),
    SessionModel("identity_fp32", "identity", "FP32", (16,), 64, extra="dynamic_batching { }"),
    SessionModel("identity_bytes", "identity", "BYTES", (-1,), 8),
    SessionModel("one_string", "identity", "BYTES", (1,), 8),
    SessionModel("ranked", "identity", "FP32", (4,), 8, labels=("zero", "one", "", "three")),
    SessionModel("ranked_int", "identity", "INT32", (4,), labels=("a", "b")),
    SessionModel("plain", "identity", "FP32", (2, 2)),
    SessionModel("wide", "identity", "FP32", (-1, 4)),
    SessionModel("wider", "identity", "FP32", (-1, -1)),
    SessionModel("pair", "identity", "FP32", (-1,), 4, 2),
    SessionModel("type_bool", "identity", "BOOL", (-1,)),
    SessionModel("type_uint8", "identity", "UINT8", (-1,)),
    SessionModel("type_int8", "identity", "INT8", (-1,)),
    SessionModel("type_uint64", "identity", "UINT64", (-1,)),
    SessionModel("type_int64", "identity", "INT64", (-1,)),
    SessionModel("type_fp16", "identity", "FP16", (-1,)),
    SessionModel("type_fp64", "identity", "FP64", (-1,)),
)
