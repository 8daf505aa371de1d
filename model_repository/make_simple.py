"""Writes the small models: those that Triton's example clients ask for, and `identity_fp32` for measuring.

    python model_repository/make_simple.py [REPOSITORY]

Each graph is put together by hand from ONNX operators and written to ``REPOSITORY/NAME/1/model.onnx`` (by default into
the repository that this file lies in). The ``config.pbtxt`` beside each is written by hand. Needs the package ``onnx``.

| model           | inputs                     | outputs                                              |
|-----------------|----------------------------|------------------------------------------------------|
| simple          | INPUT0, INPUT1: INT32[16]  | OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1 |
| simple_int8     | the same in INT8           | the same in INT8, wrapping around                    |
| simple_string   | the same as decimal text   | the same as decimal text                             |
| simple_identity | INPUT0: BYTES[-1]          | OUTPUT0 = INPUT0                                     |
| identity_fp32   | INPUT0: FP32[16]           | OUTPUT0 = INPUT0                                     |
"""

from __future__ import annotations

import sys
from pathlib import Path

from onnx import ModelProto, NodeProto, TensorProto, checker, helper

OPSET = 17
IR_VERSION = 8
"""Old enough for every ONNX Runtime that Trireme accepts, new enough for every operator used here."""

ELEMENTS = 16


def make_model(
    name: str, element_type: int, inputs: list[str], outputs: list[str], nodes: list[NodeProto]
) -> ModelProto:
    """A checked model whose tensors are all `element_type` of shape [batch, 16]; [batch, n] for text identity."""
    length = "n" if name == "simple_identity" else ELEMENTS
    tensors = [helper.make_tensor_value_info(tensor, element_type, ["batch", length]) for tensor in inputs + outputs]
    graph = helper.make_graph(nodes, name, tensors[: len(inputs)], tensors[len(inputs) :])
    model = helper.make_model(graph, producer_name="trireme", opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = IR_VERSION
    checker.check_model(model, full_check=True)
    return model


def make_identity(name: str, element_type: int) -> ModelProto:
    """OUTPUT0 is INPUT0."""
    return make_model(
        name, element_type, ["INPUT0"], ["OUTPUT0"], [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"], "identity")]
    )


def make_sum_and_difference(name: str, element_type: int, compute_type: int) -> ModelProto:
    """OUTPUT0 is the sum of the inputs, OUTPUT1 their difference.

    Where ONNX Runtime cannot add the element type (8-bit integers, text), the inputs are cast to `compute_type` first
    and the results are cast back.
    """
    direct = element_type == compute_type
    operands = ["INPUT0", "INPUT1"] if direct else ["number0", "number1"]
    results = ["OUTPUT0", "OUTPUT1"] if direct else ["sum", "difference"]
    nodes = [
        helper.make_node("Add", operands, results[:1], "sum"),
        helper.make_node("Sub", operands, results[1:], "difference"),
    ]
    if not direct:
        before = [
            helper.make_node("Cast", [f"INPUT{i}"], [operands[i]], f"cast INPUT{i}", to=compute_type) for i in (0, 1)
        ]
        after = [
            helper.make_node("Cast", [results[i]], [f"OUTPUT{i}"], f"cast OUTPUT{i}", to=element_type) for i in (0, 1)
        ]
        nodes = before + nodes + after
    return make_model(name, element_type, ["INPUT0", "INPUT1"], ["OUTPUT0", "OUTPUT1"], nodes)


def make_all() -> list[ModelProto]:
    """Every model of this script; a graph's name is its model's name."""
    return [
        make_sum_and_difference("simple", TensorProto.INT32, TensorProto.INT32),
        make_sum_and_difference("simple_int8", TensorProto.INT8, TensorProto.INT32),
        make_sum_and_difference("simple_string", TensorProto.STRING, TensorProto.INT64),
        make_identity("simple_identity", TensorProto.STRING),
        make_identity("identity_fp32", TensorProto.FLOAT),
    ]


def main(repository: Path) -> None:
    for model in make_all():
        path = repository / model.graph.name / "1" / "model.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(model.SerializeToString(deterministic=True))
        print(f"wrote {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
