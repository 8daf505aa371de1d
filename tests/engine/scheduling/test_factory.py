"""The configuration chooses the scheduler."""

from __future__ import annotations

import pytest

from trireme.engine.config.model import DynamicBatching, ModelConfig, ModelInput
from trireme.engine.datatypes import FP32
from trireme.engine.errors import UnsupportedError
from trireme.engine.scheduling.default import DefaultScheduler
from trireme.engine.scheduling.dynamic import DynamicBatcher
from trireme.engine.scheduling.factory import make_scheduler


def test_without_a_batching_section_nothing_is_batched():
    assert isinstance(make_scheduler(ModelConfig("m", max_batch_size=8)), DefaultScheduler)


def test_dynamic_batching_follows_the_models_settings_and_shapes(make_job, run):
    config = ModelConfig(
        "m",
        max_batch_size=4,
        input=(ModelInput("IN", FP32, (-1,)),),
        dynamic_batching=DynamicBatching(preferred_batch_sizes=(3,)),
    )
    core = make_scheduler(config)
    assert isinstance(core, DynamicBatcher)
    shapes = [(9,), (1,), (1,), (1,), (1,), (2,), (2,), (2,)]
    history = run(core, [(0.0, make_job(n, shape=shape)) for n, shape in enumerate(shapes)])
    assert history.sizes == [1, 3, 1, 3]


@pytest.mark.parametrize(
    ("config", "section"),
    [
        (ModelConfig("cell", has_sequence_batching=True), "sequence_batching"),
        (ModelConfig("cell", has_ensemble_scheduling=True), "ensemble_scheduling"),
    ],
)
def test_unsupported_schedulers_are_refused_by_name(config, section):
    with pytest.raises(UnsupportedError) as refusal:
        make_scheduler(config)
    assert f"'cell' is configured with '{section}', which this version" in refusal.value.message
