"""Writes the models before and after `digits` in the ensemble `digits_pipeline`, which reads image files.

    python model_repository/make_digits_pipeline.py [REPOSITORY]

Like `make_simple.py`: the graphs are put together by hand and written to ``REPOSITORY/NAME/1/model.onnx``; the
``config.pbtxt`` beside each, and that of the ensemble, is written by hand. Needs the package ``onnx``.

| model         | input                            | output                                             |
|---------------|----------------------------------|----------------------------------------------------|
| digits_decode | FILE: UINT8[-1], a PGM file (P5) | IMAGE: FP32[8,8], from 0 for white to 16 for black |
| digits_label  | PROBABILITIES: FP32[10]          | LABEL: the most probable digit's English name      |
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, checker, helper, numpy_helper

OPSET = 17
IR_VERSION = 8

SIDE = 8
WHITE = 255
INK = 16
LABELS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def make_model(
    name: str,
    given: ValueInfoProto,
    made: ValueInfoProto,
    nodes: Sequence[NodeProto],
    constants: Sequence[TensorProto],
) -> ModelProto:
    """A checked model."""
    graph = helper.make_graph(nodes, name, [given], [made], constants)
    model = helper.make_model(graph, producer_name="trireme", opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = IR_VERSION
    checker.check_model(model, full_check=True)
    return model


def make_decode() -> ModelProto:
    """The pixels of a binary PGM file are its last bytes, whatever comes before. A file with fewer is an error."""
    pixels = SIDE * SIDE
    constants = [
        helper.make_tensor("first", TensorProto.INT64, [1], [-pixels]),
        helper.make_tensor("end", TensorProto.INT64, [1], [2**62]),
        helper.make_tensor("axis", TensorProto.INT64, [1], [1]),
        helper.make_tensor("white", TensorProto.FLOAT, [], [WHITE]),
        helper.make_tensor("ink", TensorProto.FLOAT, [], [INK]),
        helper.make_tensor("shape", TensorProto.INT64, [3], [0, SIDE, SIDE]),  # 0: as many images as files
    ]
    nodes = [
        helper.make_node("Slice", ["FILE", "first", "end", "axis"], ["pixels"], "pixels"),
        helper.make_node("Cast", ["pixels"], ["brightness"], "brightness", to=TensorProto.FLOAT),
        helper.make_node("Sub", ["white", "brightness"], ["darkness"], "darkness"),
        helper.make_node("Mul", ["darkness", "ink"], ["scaled"], "scaled"),
        helper.make_node("Div", ["scaled", "white"], ["inked"], "inked"),
        helper.make_node("Reshape", ["inked", "shape"], ["IMAGE"], "IMAGE"),
    ]
    given = helper.make_tensor_value_info("FILE", TensorProto.UINT8, ["batch", "length"])
    made = helper.make_tensor_value_info("IMAGE", TensorProto.FLOAT, ["batch", SIDE, SIDE])
    return make_model("digits_decode", given, made, nodes, constants)


def make_label() -> ModelProto:
    """The label at the place of the greatest probability."""
    labels = numpy_helper.from_array(np.array(LABELS, object), "labels")
    nodes = [
        helper.make_node("ArgMax", ["PROBABILITIES"], ["digit"], "digit", axis=1, keepdims=1),
        helper.make_node("Gather", ["labels", "digit"], ["LABEL"], "LABEL"),
    ]
    given = helper.make_tensor_value_info("PROBABILITIES", TensorProto.FLOAT, ["batch", len(LABELS)])
    made = helper.make_tensor_value_info("LABEL", TensorProto.STRING, ["batch", 1])
    return make_model("digits_label", given, made, nodes, [labels])


def make_all() -> list[ModelProto]:
    """Every model of this script; a graph's name is its model's name."""
    return [make_decode(), make_label()]


def main(repository: Path) -> None:
    for model in make_all():
        path = repository / model.graph.name / "1" / "model.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(model.SerializeToString(deterministic=True))
        print(f"wrote {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
