"""The configuration chooses the scheduler."""

from __future__ import annotations

from google.protobuf import text_format

from trireme.engine.config import model_config
from trireme.engine.config.model import DynamicBatching, ModelConfig, ModelConfigMessage, ModelInput
from trireme.engine.datatypes import FP32
from trireme.engine.scheduling.adaptive import AdaptiveBatcher
from trireme.engine.scheduling.factory import make_scheduler
from trireme.engine.scheduling.queueing import DefaultScheduler, DynamicBatcher
from trireme.engine.scheduling.sequence.batcher import SequenceBatcher


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


def test_latency_objective_chooses_the_adaptive_batcher():
    text = """
        name: "m" max_batch_size: 8 dynamic_batching { }
        parameters { key: "LATENCY_OBJECTIVE_MS" value { string_value: "50" } }
    """
    core = make_scheduler(model_config(text_format.Parse(text, ModelConfigMessage())))
    assert isinstance(core, AdaptiveBatcher)
    assert core.objective_s == 0.05


def test_sequences_follow_the_models_strategy():
    text = 'name: "m" max_batch_size: 4 sequence_batching { oldest { max_candidate_sequences: 2 } }'
    config = model_config(text_format.Parse(text, ModelConfigMessage()))
    core = make_scheduler(config)
    assert isinstance(core, SequenceBatcher)
