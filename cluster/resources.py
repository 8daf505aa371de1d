"""What a replica needs of a node, from its models' configurations and the fleet's file.

Rules:
 1. CPUs: as many as the model with the most instances on CPUs has, at least one: so many batches are executed at once.
 2. GPUs: as many as the models' instances name, at least one if any instance is on a GPU.
 3. Memory: its room for models and `OVERHEAD_BYTES`, if it has such a limit; otherwise nothing is reserved.
 4. What the file says comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..engine.config.model import ModelConfig
from .settings import ClusterSettings

OVERHEAD_BYTES = 256 << 20
"""Of a server without its models, and a margin."""


@dataclass(frozen=True, slots=True)
class ReplicaResources:
    """Attributes:
    cpus, gpus: numbers that may be parts of one.
    nbytes: of memory; 0 for none reserved.
    others: Ray's custom resources, by name.
    """

    cpus: float
    gpus: float = 0
    nbytes: int = 0
    others: Mapping[str, float] = field(default_factory=dict)

    def options(self) -> dict[str, Any]:
        """As Ray's options of an actor."""
        options: dict[str, Any] = {"num_cpus": self.cpus}
        if self.gpus:
            options["num_gpus"] = self.gpus
        if self.nbytes:
            options["memory"] = self.nbytes
        if self.others:
            options["resources"] = dict(self.others)
        return options


def replica_resources(settings: ClusterSettings, configs: Iterable[ModelConfig]) -> ReplicaResources:
    """What each replica needs.

    Args:
        configs: of the models, normalised; none if they cannot be read here.
    """
    cpus, gpus = 1, set[int]()
    on_gpu = False
    for config in configs:
        groups = config.instance_group
        cpus = max(cpus, sum(group.count for group in groups if group.kind == "KIND_CPU"))
        on_gpu |= any(group.kind == "KIND_GPU" for group in groups)
        gpus.update(gpu for group in groups for gpu in group.gpus)
    return ReplicaResources(
        cpus if settings.cpus is None else settings.cpus,
        (max(len(gpus), on_gpu)) if settings.gpus is None else settings.gpus,
        0 if settings.room is None else settings.room + OVERHEAD_BYTES,
        settings.replica_resources,
    )
