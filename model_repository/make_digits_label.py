"""Writes the model behind `digits` in the ensemble `digits_pipeline`, which says its answer in English.

    python model_repository/make_digits_label.py [REPOSITORY]

Like `make_simple.py`: the graph is put together by hand and written to ``REPOSITORY/digits_label/1/model.onnx``; the
``config.pbtxt`` beside it, and that of the ensemble, is written by hand. Needs the package ``onnx``.

| model        | input                   | output                                        |
|--------------|-------------------------|-----------------------------------------------|
| digits_label | PROBABILITIES: FP32[10] | LABEL: the most probable digit's English name |
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, checker, helper, numpy_helper

OPSET = 17
IR_VERSION = 8

LABELS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def make_label() -> ModelProto:
    """The label at the place of the greatest probability."""
    labels = numpy_helper.from_array(np.array(LABELS, object), "labels")
    nodes = [
        helper.make_node("ArgMax", ["PROBABILITIES"], ["digit"], "digit", axis=1, keepdims=1),
        helper.make_node("Gather", ["labels", "digit"], ["LABEL"], "LABEL"),
    ]
    given = helper.make_tensor_value_info("PROBABILITIES", TensorProto.FLOAT, ["batch", len(LABELS)])
    made = helper.make_tensor_value_info("LABEL", TensorProto.STRING, ["batch", 1])
    graph = helper.make_graph(nodes, "digits_label", [given], [made], [labels])
    model = helper.make_model(graph, producer_name="trireme", opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = IR_VERSION
    checker.check_model(model, full_check=True)
    return model


def main(repository: Path) -> None:
    path = repository / "digits_label" / "1" / "model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(make_label().SerializeToString(deterministic=True))
    print(f"wrote {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
