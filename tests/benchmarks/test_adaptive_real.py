"""The comparison of the adaptive batcher with fixed settings for real: what it is made of."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from google.protobuf import text_format

from trireme.engine.config import model_config
from trireme.engine.config.model import ModelConfigMessage
from trireme.engine.config.objective import latency_objective_s

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # last: names there are also those of other tests

from adaptive import SETTINGS, Setting, play
from adaptive_real import MOST_ROWS, SCALE, STEP_S, chosen, config, costs, plans


def parsed(text: str):
    return model_config(text_format.Parse(text, ModelConfigMessage()))


@pytest.mark.parametrize("number", range(5))
def test_plans_last_about_as_long_as_they_are_to(number: int) -> None:
    workload = plans(4.0)[number]
    assert max(times[-1] for times in workload.arrivals) * SCALE == pytest.approx(4.0, rel=0.25)


def test_best_settings_are_chosen_and_some_of_the_others() -> None:
    workload = plans(0.5)[4]
    settings = chosen(workload, 3)
    goodputs = sorted((play(workload, setting.core, 0).in_time for setting in SETTINGS), reverse=True)
    assert len(set(settings)) == 6
    assert [play(workload, setting.core, 0).in_time for setting in settings[:3]] == goodputs[:3]
    assert play(workload, settings[-1].core, 0).in_time <= goodputs[50]


def test_settings_are_those_of_virtual_time_but_for_the_scale() -> None:
    batching = parsed(config("m", Setting(0.01, 16, 24))).dynamic_batching
    assert batching is not None
    assert batching.preferred_batch_sizes == (16,)
    assert (batching.max_queue_delay_us, batching.default_queue_policy.max_queue_size) == (20_000, 24)
    assert latency_objective_s(parsed(config("m", None))) == pytest.approx(0.2)
    assert parsed(config("m", None)).max_batch_size == MOST_ROWS


def test_costs_are_those_of_virtual_time_but_for_the_scale() -> None:
    workload = plans(4.0)[3]
    table = json.loads(costs(workload, 0, 7))
    assert (table["step_s"], table["seed"]) == (STEP_S * SCALE, 7)
    for step in (0, len(table["seconds"]) // 2, -2):
        at_s = (step % len(table["seconds"])) * STEP_S
        assert table["seconds"][step][8] == pytest.approx(workload.costs[0](8, at_s) * SCALE)
    assert table["seconds"][-1][8] > 1.8 * table["seconds"][0][8], "it drifts"
