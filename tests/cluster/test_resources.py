"""What a replica needs of a node (`cluster.resources`)."""

from __future__ import annotations

from dataclasses import replace

from trireme.cluster.resources import OVERHEAD_BYTES, ReplicaResources, replica_resources
from trireme.cluster.settings import ClusterSettings
from trireme.engine.config.model import InstanceGroup, ModelConfig

SETTINGS = ClusterSettings("fleet", ("/models",))
CPU = InstanceGroup("cpu", "KIND_CPU", 2)
GPU = InstanceGroup("gpu", "KIND_GPU", 1, gpus=(0, 1))


def config(*groups: InstanceGroup) -> ModelConfig:
    return ModelConfig(name="m", instance_group=groups)


def test_the_model_with_most_instances_decides() -> None:
    assert replica_resources(SETTINGS, []) == ReplicaResources(1)
    assert replica_resources(SETTINGS, [config(CPU, CPU), config(CPU)]) == ReplicaResources(4)


def test_gpus_are_those_that_instances_name() -> None:
    assert replica_resources(SETTINGS, [config(GPU), config(GPU)]) == ReplicaResources(1, 2)
    anywhere = InstanceGroup("gpu", "KIND_GPU", 1)
    assert replica_resources(SETTINGS, [config(anywhere)]) == ReplicaResources(1, 1)


def test_what_the_file_says_comes_first() -> None:
    settings = replace(SETTINGS, cpus=0.5, gpus=0.25, room=1 << 30, replica_resources={"fast": 1})
    resources = replica_resources(settings, [config(CPU, GPU)])
    assert resources == ReplicaResources(0.5, 0.25, (1 << 30) + OVERHEAD_BYTES, {"fast": 1})
    options = {"num_cpus": 0.5, "num_gpus": 0.25, "memory": (1 << 30) + OVERHEAD_BYTES, "resources": {"fast": 1}}
    assert resources.options() == options
    assert ReplicaResources(1).options() == {"num_cpus": 1}
