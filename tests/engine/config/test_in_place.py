"""What of a configuration may change while the model stays loaded
(docs/reference/model-control.md#changes-in-place)."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from trireme.engine.config import ModelConfig, model_config
from trireme.engine.config.model import InstanceGroup, ModelConfigMessage, VersionPolicy
from trireme.engine.instances.orders import adopt, differs_in_place

BASE = 'name: "m" backend: "b" max_batch_size: 4 '


def read(text: str) -> ModelConfig:
    return model_config(text_format.Parse(text, ModelConfigMessage()))


@pytest.mark.parametrize(
    ("text", "in_place"),
    [
        (BASE, True),
        (BASE + "instance_group { count: 3 }", True),
        (BASE + "version_policy { all { } }", True),
        (BASE + "version_policy { all { } } instance_group { count: 2 kind: KIND_GPU gpus: 1 }", True),
        (BASE + "dynamic_batching { }", False),
        (BASE + 'parameters { key: "k" value { string_value: "v" } }', False),
        (BASE.replace("4", "8"), False),
        (BASE + "ensemble_scheduling { }", False),
    ],
)
def test_instance_groups_and_version_policy_alone(text: str, in_place: bool) -> None:
    assert differs_in_place(read(BASE), read(text)) is in_place
    assert differs_in_place(read(text), read(BASE)) is in_place


def test_an_ensemble_is_always_loaded() -> None:
    assert not differs_in_place(read(BASE + "ensemble_scheduling { }"), read(BASE + "ensemble_scheduling { }"))


def test_everything_else_stays_as_it_was_completed() -> None:
    complete = read(BASE + 'dynamic_batching { } instance_group { name: "old" count: 1 } input { name: "I" }')
    adopted = adopt(complete, read(BASE + 'instance_group { name: "new" count: 2 } version_policy { all { } }'))
    assert adopted.instance_group == (InstanceGroup("new", "KIND_AUTO", 2),)
    assert adopted.version_policy == VersionPolicy(all_versions=True)
    assert adopted.dynamic_batching is not None
    assert model_config(adopted.message) == adopted, "the message says the same"
    assert complete.instance_group[0].name == "old"
