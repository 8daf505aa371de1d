"""Bugs of what decides where requests for routes go, planted on purpose (`bugs`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...engine.routing.comparison import CanaryVerdict, Comparison
from ...engine.routing.rollout import Rollout, RolloutState
from ...engine.routing.route import Shadow, Target
from ...engine.routing.router import ModelRouter, _Live
from ...engine.routing.shares import TargetShares


def _by_remainder(original: Any, shares: TargetShares, key: bytes) -> Target | None:
    """Keys are counted off by the weights: when these change, all of them move."""
    if len(shares.weights) < 2:
        return original(shares, key)
    left = sum(key) * 7_919 % 100 / 100 * sum(weight for _, weight in shares.weights)
    for target, weight in shares.weights:
        left -= weight
        if left < 0:
            return target
    return shares.weights[-1][0]


def _sequences_follow_weights(original: Any, router: ModelRouter, *arguments: Any) -> Any:
    """A sequence whose target has left its route goes elsewhere."""
    events = original(router, *arguments)
    for which, (target, _) in list(router._sequences.items()):
        live = router._routes.get(which[0])
        if live is not None and target not in live.route.targets:
            del router._sequences[which]
    return events


def _unready_served(original: Any, live: _Live) -> None:
    """A target that cannot serve any more keeps its share."""
    original(live)
    live.shares = TargetShares(live.usual.weights, live.shares.turn)


def _begins_cold(original: Any, rollout: Rollout, target_ready: bool, others_ready: bool, now_s: float) -> Any:
    """A rollout begins before its target is loaded and warmed up."""
    return original(rollout, target_ready or rollout.state is RolloutState.WAITING, others_ready, now_s)


def _ends_by_time(original: Any, comparison: Comparison, now_s: float) -> Any:
    """A step ends when its time is over, whatever is known by then."""
    verdict, reason = original(comparison, now_s)
    return (CanaryVerdict.FINE, "") if verdict is CanaryVerdict.OPEN else (verdict, reason)


def _keeps_share(original: Any, rollout: Rollout) -> list[tuple[Target, float]]:
    """Who goes back keeps the share of its step."""
    state = rollout.state
    if state is RolloutState.BACK:
        rollout.state = RolloutState.STEP
    weights = original(rollout)
    rollout.state = state
    return weights


def _begins_anew(original: Any, live: _Live, old: _Live) -> None:
    """Whenever routes are set, rollouts of those that are as they were begin anew."""
    rollout = live.rollout
    original(live, old)
    live.rollout = rollout


def _end_unheard(original: Any, router: ModelRouter, which: Any, now_s: float, start: bool, end: bool) -> Any:
    """A sequence that has ended is known for longer."""
    del end
    return original(router, which, now_s, start, False)


def _copies_rounded(original: Any, router: ModelRouter, live: _Live, asked: Shadow) -> Shadow | None:
    """What is left of a copy's share is dropped each time."""
    shadow = original(router, live, asked)
    if shadow is not None:
        live.copied = 0.0
    return shadow


def _never_shut(original: Any, router: ModelRouter, name: str, shut: bool) -> int:
    """A shadow that takes no requests gets them all the same."""
    del shut
    return original(router, name, False)


def _goes_on_unready(original: Any, rollout: Rollout, target_ready: bool, others_ready: bool, now_s: float) -> Any:
    """A target that is lost amid a step is waited for."""
    if rollout.state is RolloutState.STEP and not target_ready:
        return None
    return original(rollout, target_ready, others_ready, now_s)


ROUTE_BUGS: Mapping[str, tuple[type, str, Callable[..., Any]]] = {
    "by-remainder": (TargetShares, "of_key", _by_remainder),
    "sequences-follow-weights": (ModelRouter, "replace", _sequences_follow_weights),
    "unready-served": (_Live, "share_out", _unready_served),
    "begins-cold": (Rollout, "advance", _begins_cold),
    "ends-by-time": (Comparison, "verdict", _ends_by_time),
    "keeps-share": (Rollout, "weights", _keeps_share),
    "begins-anew": (_Live, "follow", _begins_anew),
    "end-unheard": (ModelRouter, "_of_sequence", _end_unheard),
    "copies-rounded": (ModelRouter, "_shadow", _copies_rounded),
    "never-shut": (ModelRouter, "shut_copies", _never_shut),
    "goes-on-unready": (Rollout, "advance", _goes_on_unready),
}
