"""Models for `foresight.py`: ONNX graphs of a chosen weight, and Python models that sleep or compute."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH = 16
_WIDE, _LAYERS = 512, 320
"""A matrix of 1 MiB, which a core keeps in its own cache. One of 4 MiB is read from the cache that all machines of a
host share: then a batch takes 5 ms in one second and 7 in another."""
_ONE_THREAD = 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }\n'
_SLEEP = """import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0") for request in requests]
        time.sleep(0.006 + 0.0005 * sum(len(each.as_numpy()) for each in inputs))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each.as_numpy())]) for each in inputs]
"""
_COMPUTE = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0") for request in requests]
        for _ in range(20 + 10 * sum(len(each.as_numpy()) for each in inputs)):
            total = sum(index * index for index in range(2_000))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each.as_numpy())]) for each in inputs]
"""
_SEQUENCE = Path(__file__).parents[1] / "model_repository" / "simple_sequence"


def write_models(repository: Path) -> None:
    """Write all of them, replacing what is there."""
    _onnx(repository / "light", width=64, layers=2, instances=1, largest=8)
    _onnx(repository / "heavy", instances=1, largest=8, width=_WIDE, layers=_LAYERS)
    _onnx(repository / "heavy_two", instances=2, largest=8, width=_WIDE, layers=_LAYERS)
    _onnx(repository / "heavy_other", instances=1, largest=4, width=_WIDE, layers=200)
    levels = "priority_levels: 2 default_priority_level: 2"
    _onnx(repository / "levels", instances=1, largest=8, batching=levels, width=_WIDE, layers=_LAYERS)
    limit = "default_queue_policy { max_queue_size: 48 }"
    _onnx(repository / "limited", instances=1, largest=8, batching=limit, width=_WIDE, layers=_LAYERS)
    _python(repository / "sleeping", _SLEEP, instances=2)
    _python(repository / "computing", _COMPUTE, instances=1)
    _ensemble(repository / "chain")
    shutil.copytree(_SEQUENCE, repository / "simple_sequence", dirs_exist_ok=True)


def _config(path: Path, backend: str, instances: int, largest: int, batching: str, width: int, more: str) -> None:
    (path / "1").mkdir(parents=True, exist_ok=True)
    tensor = f"data_type: TYPE_FP32 dims: [ {width} ]"
    (path / "config.pbtxt").write_text(
        f'backend: "{backend}"\nmax_batch_size: {largest}\n'
        f'input {{ name: "INPUT0" {tensor} }}\noutput {{ name: "OUTPUT0" {tensor} }}\n'
        f"instance_group {{ kind: KIND_CPU count: {instances} }}\ndynamic_batching {{ {batching} }}\n{more}"
    )


def _onnx(path: Path, *, width: int, layers: int, instances: int, largest: int, batching: str = "") -> None:
    """Some layers of one matrix each: the wider, the longer they take."""
    _config(path, "onnxruntime", instances, largest, batching, width, _ONE_THREAD)
    # Values that neither grow nor shrink from layer to layer: numbers near 0 take a processor far longer.
    matrix = (np.random.default_rng(1).random((width, width), np.float32) - 0.5) * np.float32((12 / width) ** 0.5)
    nodes, name = [], "INPUT0"
    for layer in range(layers):
        after = "OUTPUT0" if layer == layers - 1 else f"layer{layer}"
        nodes.append(helper.make_node("MatMul", [name, "matrix"], [after]))
        name = after
    ends = [helper.make_tensor_value_info(each, TensorProto.FLOAT, [None, width]) for each in ("INPUT0", "OUTPUT0")]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], [numpy_helper.from_array(matrix, "matrix")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path / "1" / "model.onnx"))


def _python(path: Path, code: str, *, instances: int) -> None:
    _config(path, "python", instances, 8, "", WIDTH, "")
    (path / "1" / "model.py").write_text(code)


def _ensemble(path: Path) -> None:
    """The heavy model, and then the one that is like it."""
    (path / "1").mkdir(parents=True, exist_ok=True)
    tensor = f"data_type: TYPE_FP32 dims: [ {_WIDE} ]"
    steps = "".join(
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "INPUT0" value: "{source}" }} '
        f'output_map {{ key: "OUTPUT0" value: "{target}" }} }}\n'
        for model, source, target in (("heavy", "IN", "between"), ("heavy_other", "between", "OUT"))
    )
    (path / "config.pbtxt").write_text(
        f'platform: "ensemble"\nmax_batch_size: 4\ninput {{ name: "IN" {tensor} }}\noutput {{ name: "OUT" {tensor} }}\n'
        f"ensemble_scheduling {{\n{steps}}}\n"
    )
