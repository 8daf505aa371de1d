"""What instance groups say about resources and priorities."""

from __future__ import annotations

from collections.abc import Callable

from trireme.engine.config import ModelConfig
from trireme.engine.config.instance_groups import RateLimit, ResourceDemand, rate_limits


def test_each_instance_group_has_its_limit(load: Callable[..., ModelConfig]) -> None:
    config = load(
        """
        backend: "python"
        instance_group { rate_limiter {
          resources { name: "R" count: 3 }
          resources { name: "G" global: true count: 1 }
          priority: 2
        } }
        instance_group { }
        """
    )
    assert rate_limits(config) == (
        RateLimit((ResourceDemand("R", 3), ResourceDemand("G", 1, is_global=True)), 2),
        RateLimit(),
    )
