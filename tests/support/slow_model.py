"""Models that take long, made on the fly: one as long as it is told to, one until the test lets it go on."""

from __future__ import annotations

from pathlib import Path

from onnx import TensorProto, checker, helper, save_model
from python_models import CONFIG as IDENTITY_CONFIG
from python_models import IDENTITY, write_model

FOREVER = 2**62
"""Turns that no test lives to see the end of."""

CONFIG = """
backend: "onnxruntime"
input { name: "TURNS" data_type: TYPE_INT64 dims: [ 1 ] }
output { name: "MADE" data_type: TYPE_INT64 dims: [ 1 ] }
instance_group { kind: KIND_CPU count: 1 }
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
"""

WAITING = """responses = []
            while not os.path.exists({!r}):
                time.sleep(0.01)"""


def write_gated_model(repository: Path, name: str = "gated") -> Path:
    """OUTPUT0 FP32[n] is INPUT0, when the file that is given back is there. One instance, one request at a time."""
    gate = repository / name / "gate"
    code = "    import os\n    import time\n" + IDENTITY.replace("responses = []", WAITING.format(str(gate)))
    config = IDENTITY_CONFIG + 'parameters { key: "EXECUTION" value { string_value: "in_process" } }'
    write_model(repository, name, code, config)
    return gate


def write_slow_model(repository: Path, name: str = "slow") -> None:
    """TURNS INT64[1] in; MADE INT64[1], as many, out. One instance, one request at a time."""
    turn = helper.make_graph(
        [
            helper.make_node("Identity", ["going_on"], ["still_going_on"]),
            helper.make_node("Add", ["made", "one"], ["made_now"]),
        ],
        "turn",
        [
            helper.make_tensor_value_info("number", TensorProto.INT64, []),
            helper.make_tensor_value_info("going_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("made", TensorProto.INT64, [1]),
        ],
        [
            helper.make_tensor_value_info("still_going_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("made_now", TensorProto.INT64, [1]),
        ],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["TURNS", "", "zero"], ["MADE"], body=turn)],
        name,
        [helper.make_tensor_value_info("TURNS", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("MADE", TensorProto.INT64, [1])],
        [
            helper.make_tensor("one", TensorProto.INT64, [1], [1]),
            helper.make_tensor("zero", TensorProto.INT64, [1], [0]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    version = repository / name / "1"
    version.mkdir(parents=True)
    save_model(model, str(version / "model.onnx"))
    (repository / name / "config.pbtxt").write_text(CONFIG)
