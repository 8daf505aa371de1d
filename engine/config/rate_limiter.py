"""``instance_group.rate_limiter`` as plain values (docs/reference/scheduling.md#rate-limiter)."""

from __future__ import annotations

from dataclasses import dataclass

from .model import ModelConfig


@dataclass(frozen=True, slots=True)
class ResourceDemand:
    """So many units of a resource, held while executing; of the one pool there is, or of the instance's device's."""

    name: str
    count: int
    is_global: bool = False


@dataclass(frozen=True, slots=True)
class RateLimit:
    """What an instance needs in order to execute, and its priority: 1 is the highest, and 0 means 1."""

    resources: tuple[ResourceDemand, ...] = ()
    priority: int = 0


UNLIMITED = RateLimit()
"""Needs nothing."""


def rate_limits(config: ModelConfig) -> tuple[RateLimit, ...]:
    """The limits of the instances, one for each of the configuration's instance groups."""
    limits = (group.rate_limiter for group in config.message.instance_group)
    return tuple(
        RateLimit(
            tuple(ResourceDemand(item.name, item.count, getattr(item, "global")) for item in limit.resources),
            limit.priority,
        )
        for limit in limits
    )
