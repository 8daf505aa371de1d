"""From the configuration's text to a plan."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_configs import read_config

from trireme.engine.config import ModelConfig, prepare_for_load
from trireme.engine.config.sequence import (
    ControlKind,
    DirectStrategy,
    ImplicitState,
    InitialState,
    OldestStrategy,
    SequenceBatching,
    SequenceControl,
    sequence_batching,
)
from trireme.engine.datatypes import BOOL, BYTES, FP32, INT32
from trireme.engine.scheduling.sequence.strategies import DirectHost, OldestHost, SequencePlan

IO = """
backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }
"""


def load(tmp_path: Path, text: str) -> ModelConfig:
    directory = tmp_path / "m"
    (directory / "1").mkdir(parents=True, exist_ok=True)
    (directory / "config.pbtxt").write_text(IO + text)
    return prepare_for_load(read_config(directory), None)


def read(tmp_path: Path, text: str) -> SequenceBatching:
    batching = sequence_batching(load(tmp_path, text))
    assert batching is not None
    return batching


def test_other_models_have_none(tmp_path):
    assert sequence_batching(load(tmp_path, "dynamic_batching {}")) is None


def test_nothing_said_is_the_direct_strategy_and_a_second_of_idleness(tmp_path):
    assert read(tmp_path, "sequence_batching {}") == SequenceBatching(DirectStrategy(), 1_000_000)


def test_everything_that_can_be_said(tmp_path):
    text = """
    sequence_batching {
      max_sequence_idle_microseconds: 5
      iterative_sequence: true
      direct { max_queue_delay_microseconds: 6 minimum_slot_utilization: 0.5 }
      control_input { name: "S" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 3, 4 ] } }
      control_input { name: "E" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0.5, 1.5 ] } }
      control_input { name: "R" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ true, false ] } }
      control_input { name: "C" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }
      state { input_name: "A" output_name: "B" data_type: TYPE_INT32 dims: [ -1, 2 ]
              initial_state { name: "n" data_type: TYPE_INT32 dims: [ 1, 2 ] zero_data: true }
              use_same_buffer_for_input_output: true }
      state { input_name: "X" output_name: "Y" data_type: TYPE_FP32 dims: [ 1 ]
              initial_state { name: "f" data_type: TYPE_FP32 dims: [ 1 ] data_file: "file" }
              use_growable_memory: true }
      state { input_name: "P" output_name: "Q" data_type: TYPE_FP32 dims: [ 1 ]
              initial_state { name: "nothing" data_type: TYPE_FP32 dims: [ 1 ] } }
    }
    """
    assert read(tmp_path, text) == SequenceBatching(
        strategy=DirectStrategy(6, 0.5),
        max_sequence_idle_us=5,
        controls=(
            SequenceControl("S", ControlKind.START, INT32, 3, 4),
            SequenceControl("E", ControlKind.END, FP32, 0.5, 1.5),
            SequenceControl("R", ControlKind.READY, BOOL, True, False),
            SequenceControl("C", ControlKind.CORRID, BYTES),
        ),
        states=(
            ImplicitState("A", "B", INT32, (-1, 2), (InitialState("n", INT32, (1, 2), None),), same_buffer=True),
            ImplicitState("X", "Y", FP32, (1,), (InitialState("f", FP32, (1,), "file"),), growable=True),
            ImplicitState("P", "Q", FP32, (1,), (InitialState("nothing", FP32, (1,), ""),)),
        ),
        iterative=True,
    )


def test_oldest(tmp_path):
    text = """
    max_batch_size: 4
    sequence_batching { oldest { max_candidate_sequences: 9 preferred_batch_size: [ 2, 3 ]
      max_queue_delay_microseconds: 7 preserve_ordering: true } }
    """
    assert read(tmp_path, text).strategy == OldestStrategy(9, (2, 3), 7, True)
    bare = "max_batch_size: 4 sequence_batching { oldest {} }"
    assert read(tmp_path, bare).strategy == OldestStrategy(0, (4,))


@pytest.mark.parametrize(
    ("text", "slots", "host"),
    [
        ("sequence_batching {}", 1, DirectHost),
        ("max_batch_size: 4 sequence_batching {}", 4, DirectHost),
        ("max_batch_size: 4 sequence_batching { oldest {} }", 4, OldestHost),
        ("max_batch_size: 4 sequence_batching { oldest { max_candidate_sequences: 64 } }", 64, OldestHost),
        ("sequence_batching { oldest {} }", 1, OldestHost),
    ],
)
def test_strategy_and_slots_of_an_instance(tmp_path, text, slots, host):
    config = load(tmp_path, text)
    plan = SequencePlan.of(config, read(tmp_path, text), None)
    assert plan.slots == slots
    assert type(plan.host(3)) is host
