"""Operators are read from model files; models whose time depends on values stay on their threads."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_configs import read_config
from onnx import TensorProto, helper
from slow_model import write_slow_model

from trireme.engine.backends.interface import InstanceSpec, ModelFiles
from trireme.engine.backends.onnxruntime import OnnxRuntimeBackend
from trireme.engine.backends.onnxruntime.operators import depends_on_values, operators_in
from trireme.engine.config import prepare_for_load

ROOT = Path(__file__).parents[3]


def save(path: Path, nodes: list[onnx.NodeProto], functions: list[onnx.FunctionProto] | None = None) -> Path:
    value = helper.make_tensor_value_info("X", TensorProto.FLOAT, [None, 4])
    result = helper.make_tensor_value_info("Y", TensorProto.FLOAT, [None, 4])
    weights = helper.make_tensor("W", TensorProto.FLOAT, [1000], [0.5] * 1000)
    graph = helper.make_graph(nodes, "g", [value], [result], initializer=[weights])
    model = helper.make_model(graph, functions=functions or [], opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, str(path))
    return path


def test_operators_of_a_plain_graph(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["X"], ["H"]), helper.make_node("Identity", ["H"], ["Y"])]
    path = save(tmp_path / "m.onnx", nodes)
    assert operators_in(path) == {("", "Relu"), ("", "Identity")}
    assert not depends_on_values(path)


def test_operators_inside_a_branch_are_found(tmp_path: Path) -> None:
    inner = helper.make_graph([helper.make_node("Tile", ["X", "R"], ["T"])], "then", [], [])
    branch = helper.make_node("If", ["C"], ["Y"], then_branch=inner, else_branch=inner)
    path = save(tmp_path / "m.onnx", [branch])
    assert operators_in(path) == {("", "If"), ("", "Tile")}
    assert depends_on_values(path)


def test_operators_inside_functions_are_found(tmp_path: Path) -> None:
    function = helper.make_function(
        "", "Mine", ["a"], ["b"], [helper.make_node("Range", ["a", "a", "a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    path = save(tmp_path / "m.onnx", [helper.make_node("Mine", ["X"], ["Y"])], [function])
    assert ("", "Range") in operators_in(path)


@pytest.mark.parametrize("operator", ["Loop", "Scan", "Range", "Tile", "Expand", "Resize", "ConstantOfShape"])
def test_what_the_values_decide_depends_on_values(tmp_path: Path, operator: str) -> None:
    assert depends_on_values(save(tmp_path / "m.onnx", [helper.make_node(operator, ["X"], ["Y"])]))


def test_operators_of_others_are_not_trusted(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [helper.make_node("BeamSearch", ["X"], ["Y"], domain="com.microsoft")])
    assert depends_on_values(path)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "model_repository").glob("*/1/model.onnx")), ids=lambda path: path.parts[-3]
)
def test_the_shipped_models_may_run_in_place(path: Path) -> None:
    assert not depends_on_values(path)


def test_what_cannot_be_read_is_not_trusted(tmp_path: Path) -> None:
    assert depends_on_values(tmp_path / "missing.onnx")
    (tmp_path / "empty.onnx").write_bytes(b"")
    assert depends_on_values(tmp_path / "empty.onnx")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.binary(max_size=200))
def test_rubbish_is_not_trusted_and_does_no_harm(tmp_path: Path, rubbish: bytes) -> None:
    path = tmp_path / "rubbish.onnx"
    path.write_bytes(rubbish)
    try:
        operators = operators_in(path)
    except ValueError:
        assert depends_on_values(path)
    else:
        assert operators


@pytest.mark.parametrize(("name", "bound"), [("slow", True), ("simple", False)])
def test_instances_say_whether_they_are_bound_to_their_thread(tmp_path: Path, name: str, bound: bool) -> None:
    repository = ROOT / "model_repository"
    if name == "slow":
        repository = tmp_path
        write_slow_model(tmp_path)
    config = prepare_for_load(read_config(repository / name), None)
    model = OnnxRuntimeBackend({}).load(config, ModelFiles(repository / name, 1))
    instance = model.create_instance(InstanceSpec(f"{name}_0"))
    assert instance.thread_bound is bound
    instance.close()
    model.close()
