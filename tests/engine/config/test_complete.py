"""What a backend found out is merged, and nothing else changes
(docs/reference/model-configuration.md#completion-by-backends)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from model_configs import read_config

from trireme.engine.backends.interface import Completion
from trireme.engine.config import ModelConfig, complete, config_json, prepare_for_load
from trireme.engine.config.model import ModelInput, ModelOutput
from trireme.engine.datatypes import BYTES, FP32, INT64
from trireme.engine.errors import InvalidArgumentError

Poll = Callable[[str], ModelConfig]

FOUND = Completion(
    max_batch_size=4,
    input=(ModelInput("A", FP32, (3, -1), optional=True), ModelInput("S", INT64, (1,), reshape=())),
    output=(ModelOutput("B", BYTES, (2,), reshape=(2, 1)),),
    dynamic_batching=True,
)


@pytest.fixture
def bare(make_model: Callable[..., Path]) -> Poll:
    """The poll phase of a python model of which only `text` is given."""

    def run(text: str) -> ModelConfig:
        return read_config(make_model(f'backend: "python" {text}'))

    return run


def test_open_parts_are_taken_over(bare: Poll) -> None:
    config = prepare_for_load(bare(""), FOUND)
    assert config.max_batch_size == 4
    assert config.input == FOUND.input
    assert config.output == FOUND.output
    assert config.dynamic_batching is not None
    assert config.dynamic_batching.preferred_batch_sizes == (4,)
    printed = json.loads(config_json(config))
    assert printed["input"][1]["reshape"] == {"shape": []}
    assert printed["dynamic_batching"]["preferred_batch_size"] == [4]


def test_given_inputs_and_outputs_stay(poll: Poll) -> None:
    config = prepare_for_load(poll("max_batch_size: 2"), FOUND)
    assert [tensor.name for tensor in config.input] == ["IN"]
    assert [tensor.name for tensor in config.output] == ["OUT"]


def test_given_scheduler_stays(bare: Poll) -> None:
    config = prepare_for_load(bare("max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 7 }"), FOUND)
    assert config.dynamic_batching is not None
    assert config.dynamic_batching.max_queue_delay_us == 7


def test_another_scheduler_stays_alone(bare: Poll) -> None:
    config = prepare_for_load(bare("sequence_batching { }"), FOUND)
    assert config.has_sequence_batching
    assert config.dynamic_batching is None


@pytest.mark.parametrize("value", [True, False])
def test_decoupled_is_taken_over(bare: Poll, value: bool) -> None:
    config = complete(bare("model_transaction_policy { decoupled: true }"), Completion(0, decoupled=value))
    assert config.decoupled is value
    assert complete(config, Completion(0)).decoupled is value


def test_no_answer_changes_nothing_but_defaults(poll: Poll) -> None:
    config = poll("max_batch_size: 2")
    assert complete(config, None) == config


def test_the_polled_configuration_is_not_touched(bare: Poll) -> None:
    config = bare("")
    before = config_json(config)
    prepare_for_load(config, FOUND)
    assert config_json(config) == before


def test_completed_configuration_is_checked(bare: Poll) -> None:
    with pytest.raises(InvalidArgumentError, match="'max_batch_size' must be non-negative value for m"):
        prepare_for_load(bare(""), Completion(-1))
    with pytest.raises(InvalidArgumentError, match="model input 'A' must specify 'dims' for m"):
        prepare_for_load(bare(""), Completion(0, input=(ModelInput("A", FP32, ()),)))


def test_instance_groups_fail_before_anything_else(bare: Poll) -> None:
    with pytest.raises(InvalidArgumentError, match="no GPUs are available"):
        prepare_for_load(bare("instance_group { kind: KIND_GPU }"), Completion(-1))
