"""Bugs of what decides how many replicas a fleet has, and which models they hold, planted on purpose (`bugs`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ...engine.fleet.placement import FleetLayout
from ...engine.fleet.roster import FleetRoster, ReplicaTold
from ...engine.fleet.router import FleetRouter
from ...engine.fleet.scaling import ReplicaScaler


def _moved_at_once(original: Any, roster: FleetRoster, model: str, told: ReplicaTold, now_s: float) -> bool:
    """A model leaves its old place before it is ready in the new one."""
    del original, told, now_s
    return bool(roster.layout.replicas_of(model))


def _ends_with_its_models(original: Any, roster: FleetRoster, name: str, told: ReplicaTold, now_s: float) -> Any:
    """A replica that drains does not wait for others to have its models."""
    wanted = original(roster, name, told, now_s)
    return frozenset[str]() if told.draining and wanted is not None else wanted


def _knows_all_at_once(original: Any, roster: FleetRoster, now_s: float) -> bool:
    """A roster that was lost tells gateways in its first moments that there are no replicas."""
    original(roster, now_s)
    return True


def _release_unheard(original: Any, roster: FleetRoster, *arguments: Any) -> None:
    """Models of an earlier release are planned anew while another one takes its place."""
    original(roster, *arguments[:3], 0.0)


def _planned_too_large(original: Any, roster: FleetRoster, now_s: float) -> None:
    """One model more than there is room for is planned for a replica."""
    before = roster.layout
    original(roster, now_s)
    layout = roster.layout
    if layout is not before and len(layout.on) > 1:
        on = dict(layout.on)
        first, second = list(on)[:2]
        on[first] = on[first] | on[second]
        roster.layout = FleetLayout(on, layout.unplaced, layout.short)


def _loaded_beyond_room(original: Any, roster: FleetRoster, wanted: frozenset[str], *arguments: Any) -> Any:
    """A replica loads what it is to have before it has unloaded what it is to have no more."""
    del original, roster, arguments
    return wanted


def _memory_unheard(original: Any, scaler: ReplicaScaler, replicas: int, readings: Any, now_s: float, _: int) -> int:
    """Replicas are taken away whose memory the models need."""
    return original(scaler, replicas, readings, now_s)


def _never_settles(original: Any, scaler: ReplicaScaler, *arguments: Any) -> int:
    """The number of replicas changes again before the latest change shows."""
    wanted = original(scaler, *arguments)
    scaler._settled_s = -math.inf
    return wanted


def _one_model_counts(original: Any, scaler: ReplicaScaler, replicas: int, readings: Any, *arguments: Any) -> int:
    """Of all models, the first one says how many replicas there are to be."""
    return original(scaler, replicas, dict(sorted(readings.items())[:1]), *arguments)


def _idle_at_once(original: Any, scaler: ReplicaScaler, *arguments: Any) -> int:
    """A replica is taken away as soon as one less seems to be enough."""
    if scaler._idle_since_s < math.inf:
        scaler._idle_since_s = -math.inf
    return original(scaler, *arguments)


def _absent_is_final(original: Any, router: FleetRouter, *arguments: Any) -> None:
    """A request fails if its model has just left the replica, and no other is known to have it yet."""
    del original, router, arguments


MANAGED_FLEET_BUGS: Mapping[str, tuple[type, str, Callable[..., Any]]] = {
    "moved-at-once": (FleetRoster, "_is_replaced", _moved_at_once),
    "ends-with-its-models": (FleetRoster, "tell", _ends_with_its_models),
    "knows-all-at-once": (FleetRoster, "_is_settled", _knows_all_at_once),
    "release-unheard": (FleetRoster, "configure", _release_unheard),
    "planned-too-large": (FleetRoster, "_plan", _planned_too_large),
    "loaded-beyond-room": (FleetRoster, "_with_room", _loaded_beyond_room),
    "memory-unheard": (ReplicaScaler, "decide", _memory_unheard),
    "never-settles": (ReplicaScaler, "decide", _never_settles),
    "one-model-counts": (ReplicaScaler, "decide", _one_model_counts),
    "idle-at-once": (ReplicaScaler, "_by_load", _idle_at_once),
    "absent-is-final": (FleetRouter, "_wait_for_another", _absent_is_final),
}
"""Found by swarm runs of a fleet that manages itself (`fleet.managed`)."""
