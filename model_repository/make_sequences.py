"""Writes the models whose requests belong together: sequences, with and without a state of their own.

    python model_repository/make_sequences.py [REPOSITORY]

Like `make_simple.py`: the graphs are put together by hand and written to ``REPOSITORY/NAME/1/model.onnx``; the
``config.pbtxt`` beside each is written by hand. Needs the package ``onnx``. INPUT and OUTPUT are INT32[1].

| model                       | OUTPUT                                                                               |
|-----------------------------|--------------------------------------------------------------------------------------|
| simple_sequence             | INPUT, plus 1 at the start of a sequence                                             |
| simple_dyna_sequence        | the same, plus the correlation ID at its end                                         |
| simple_string_dyna_sequence | the sum of the sequence's inputs so far, plus the ID, a text, as a number at its end |
| running_sum                 | the sum of the sequence's inputs so far                                              |

The last two have no memory either: the sum so far goes out as SUM, and the server brings it back with the next request
of the sequence as SUM_SO_FAR.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnx import ModelProto, NodeProto, TensorProto, checker, helper

OPSET = 17
IR_VERSION = 8

INT32, INT64, UINT64, STRING = TensorProto.INT32, TensorProto.INT64, TensorProto.UINT64, TensorProto.STRING


def make_model(name: str, inputs: Mapping[str, int], outputs: list[str], nodes: list[NodeProto]) -> ModelProto:
    """A checked model; every tensor has the shape [batch, 1], and every output is INT32."""
    shape = ["batch", 1]
    given = [helper.make_tensor_value_info(tensor, kind, shape) for tensor, kind in inputs.items()]
    made = [helper.make_tensor_value_info(tensor, INT32, shape) for tensor in outputs]
    graph = helper.make_graph(nodes, name, given, made)
    model = helper.make_model(graph, producer_name="trireme", opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = IR_VERSION
    checker.check_model(model, full_check=True)
    return model


def node(operator: str, inputs: str, output: str, **attributes: Any) -> NodeProto:
    """A node that is called what it makes."""
    return helper.make_node(operator, inputs.split(), [output], output, **attributes)


def make_simple_sequence() -> ModelProto:
    inputs = {"INPUT": INT32, "START": INT32, "READY": INT32}
    nodes = [
        node("Add", "INPUT START", "begun"),
        node("Mul", "begun READY", "OUTPUT"),  # rows that only fill a batch are not READY; nobody sees their output
    ]
    return make_model("simple_sequence", inputs, ["OUTPUT"], nodes)


def make_simple_dyna_sequence() -> ModelProto:
    inputs = {"INPUT": INT32, "START": INT32, "END": INT32, "READY": INT32, "CORRID": UINT64}
    nodes = [
        node("Cast", "CORRID", "id", to=INT32),
        node("Mul", "id END", "id_at_end"),
        node("Add", "INPUT START", "begun"),
        node("Add", "begun id_at_end", "complete"),
        node("Mul", "complete READY", "OUTPUT"),
    ]
    return make_model("simple_dyna_sequence", inputs, ["OUTPUT"], nodes)


def make_simple_string_dyna_sequence() -> ModelProto:
    inputs = {"INPUT": INT32, "END": INT32, "CORRID": STRING, "SUM_SO_FAR": INT32}
    nodes = [
        node("Add", "INPUT SUM_SO_FAR", "SUM"),
        node("Cast", "CORRID", "wide_id", to=INT64),
        node("Cast", "wide_id", "id", to=INT32),
        node("Mul", "id END", "id_at_end"),
        node("Add", "SUM id_at_end", "OUTPUT"),
    ]
    return make_model("simple_string_dyna_sequence", inputs, ["OUTPUT", "SUM"], nodes)


def make_running_sum() -> ModelProto:
    inputs = {"INPUT": INT32, "SUM_SO_FAR": INT32}
    nodes = [node("Add", "INPUT SUM_SO_FAR", "SUM"), node("Identity", "SUM", "OUTPUT")]
    return make_model("running_sum", inputs, ["OUTPUT", "SUM"], nodes)


def make_all() -> list[ModelProto]:
    """Every model of this script; a graph's name is its model's name."""
    return [make_simple_sequence(), make_simple_dyna_sequence(), make_simple_string_dyna_sequence(), make_running_sum()]


def main(repository: Path) -> None:
    for model in make_all():
        path = repository / model.graph.name / "1" / "model.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(model.SerializeToString(deterministic=True))
        print(f"wrote {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
