"""The policy by which Ray Serve scales a fleet's replicas (`engine.fleet.scaling`)."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict
from typing import Any

from ..engine.fleet.scaling import ReplicaScaler, ScalingSettings
from .load_meter import read_needed, read_readings

logger = logging.getLogger("ray.serve")


class QueueTimePolicy:
    """Ray makes one for a deployment, in its controller, and asks it again and again."""

    def __init__(self, **settings: Any) -> None:
        self._scaler = ReplicaScaler(ScalingSettings(**settings))

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """How many replicas there are to be, by what they have told (`ray.serve.config.AutoscalingContext`)."""
        numbers = context.aggregated_metrics or {}
        readings = {name: told for name, told in read_readings(numbers).items() if told}
        replicas = context.target_num_replicas
        wanted = self._scaler.decide(replicas, readings, time.monotonic(), read_needed(numbers))
        if wanted != replicas:
            logger.info("trireme: %d replicas instead of %d: %s", wanted, replicas, self._scaler.why)
        return wanted, {}


def policy_arguments(settings: ScalingSettings) -> dict[str, Any]:
    """What to make a policy with."""
    return asdict(settings)
