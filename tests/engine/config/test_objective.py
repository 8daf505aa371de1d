"""The parameter of the latency objective, and what it cannot be combined with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trireme.engine.config.model import DynamicBatching, ModelConfig, QueuePolicy, TimeoutAction
from trireme.engine.config.objective import PARAMETER, latency_objective_s
from trireme.engine.errors import InvalidArgumentError

CONFIG = ModelConfig(
    "m", max_batch_size=8, dynamic_batching=DynamicBatching((8,)), parameters={"LATENCY_OBJECTIVE_MS": "12.5"}
)
DELAYS = QueuePolicy(TimeoutAction.DELAY, default_timeout_us=1)


def with_batching(**changes: object) -> ModelConfig:
    return replace(CONFIG, dynamic_batching=replace(DynamicBatching((8,)), **changes))  # pyright: ignore


def test_objective_is_read_in_milliseconds():
    assert latency_objective_s(CONFIG) == 0.0125


def test_model_without_the_parameter_has_none():
    assert latency_objective_s(replace(CONFIG, parameters={}, dynamic_batching=None)) is None


@pytest.mark.parametrize("text", ["", "soon", "0", "-3", "nan", "inf", "3600001", "1e-4", "5e-324"])
def test_other_values_are_refused(text):
    with pytest.raises(InvalidArgumentError, match=f"'{PARAMETER}' of model 'm' is '{text}'; expected milliseconds"):
        latency_objective_s(replace(CONFIG, parameters={PARAMETER: text}))


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (replace(CONFIG, dynamic_batching=None), "needs 'dynamic_batching'"),
        (replace(CONFIG, dynamic_batching=None, has_sequence_batching=True), "'sequence_batching'"),
        (replace(CONFIG, dynamic_batching=None, has_ensemble_scheduling=True), "'ensemble_scheduling'; models that"),
        (replace(CONFIG, decoupled=True), "'model_transaction_policy.decoupled'"),
        (with_batching(preserve_ordering=True), "'dynamic_batching.preserve_ordering'"),
        (with_batching(max_queue_delay_us=1), "'dynamic_batching.max_queue_delay_microseconds' must be 0"),
        (with_batching(default_queue_policy=DELAYS), r"'dynamic_batching.default_queue_policy.timeout_action'"),
        (with_batching(priority_queue_policy={2: DELAYS}), r"'dynamic_batching.priority_queue_policy\[2\].timeout_act"),
    ],
)
def test_combinations_are_refused_by_the_name_of_the_field(config, field):
    with pytest.raises(InvalidArgumentError, match=f"parameter '{PARAMETER}' of model 'm' .*{field}"):
        latency_objective_s(config)
