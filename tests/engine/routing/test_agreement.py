"""Whether targets of a route look alike (`engine.routing.agreement`)."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from trireme.engine.config import ModelConfig, model_config
from trireme.engine.config.model import ModelConfigMessage
from trireme.engine.routing.agreement import disagreement
from trireme.engine.routing.route import Target

ONE = 'name: "m" max_batch_size: 4 '
IN = 'input { name: "IN" data_type: TYPE_FP32 dims: [ 2, -1 ] } '
OUT = 'output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } '
SEQUENCES = "sequence_batching { } "
DECOUPLED = "model_transaction_policy { decoupled: true } "


def read(text: str) -> ModelConfig:
    return model_config(text_format.Parse(text, ModelConfigMessage()))


@pytest.mark.parametrize(
    ("found", "expected", "problem"),
    [
        (ONE + IN + OUT, ONE + IN + OUT, ""),
        (ONE.replace('"m"', '"n"') + OUT + IN, ONE.replace("4", "8") + IN + OUT, ""),
        (ONE + IN + OUT + "dynamic_batching { }", ONE + IN + OUT, ""),
        (ONE + OUT, ONE + IN + OUT, "it has no input 'IN', expected FP32[2,-1] as 'a:1' has"),
        (ONE + IN, ONE + IN + OUT, "it has no output 'OUT', expected INT32[1] as 'a:1' has"),
        (ONE + IN + OUT, ONE + IN, "it has an output 'OUT', expected none"),
        (ONE + IN + OUT, ONE + OUT, "it has an input 'IN', expected none"),
        (
            ONE + IN.replace("2,", "3,"),
            ONE + IN,
            "input 'IN' is FP32[3,-1], expected FP32[2,-1] as 'a:1' has",
        ),
        (ONE + OUT.replace("INT32", "INT64"), ONE + OUT, "output 'OUT' is INT64[1], expected INT32[1] as 'a:1' has"),
        (
            ONE + IN.replace("dims", "optional: true dims"),
            ONE + IN,
            "input 'IN' is FP32[2,-1], optional, expected FP32[2,-1] as 'a:1' has",
        ),
        (ONE, ONE.replace("4", "0"), "a batch dimension was found, expected none"),
        (ONE.replace("4", "0"), ONE, "it lacks a batch dimension, expected as 'a:1' has"),
        (ONE + DECOUPLED, ONE, "the decoupled transaction policy was found, expected none"),
        (ONE, ONE + DECOUPLED, "it lacks the decoupled transaction policy, expected as 'a:1' has"),
        (ONE + SEQUENCES, ONE, "sequence batching was found, expected none"),
        (ONE, ONE + SEQUENCES, "it lacks sequence batching, expected as 'a:1' has"),
    ],
)
def test_what_clients_would_notice(found: str, expected: str, problem: str) -> None:
    said = disagreement(Target("b"), read(found), Target("a", 1), read(expected))
    assert said == (f"target 'b': {problem}" if problem else "")
