"""A route with what is known of it by now: which targets can serve, and what became of its requests.

Rules:
 1. A target can serve for a route if it is ready, and looks to clients as the others do (`agreement`).
 2. What targets look like is what the first of them does that is ready, as long as any that is ready does.
 3. A target that is loaded on demand can serve, whatever it looks like, until that is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from ..config.model import ModelConfig
from ..errors import ColdModelError, TriremeError
from .agreement import disagreement
from .documents import route_document
from .rollout import Rollout, RolloutState
from .route import ModelRoute, StickyBy, Target
from .routed_reply import RoutedResult
from .router import ModelRouter


class RouteRecord:
    """See the rules above.

    Args:
        live: it was set while the server ran, and not by the file of routes.

    Attributes:
        targets: of the route, to look them up.
        keyed: what decides where a request goes is to be found in it.
        why: why targets cannot serve, by target.
        disagreeing: those that are ready and look different, among them.
        results: requests by target and what became of them.
        rollouts: how often its rollout has entered each state.
    """

    def __init__(self, route: ModelRoute, live: bool) -> None:
        self.route = route
        self.live = live
        self.targets = frozenset(route.targets)
        self.keyed = route.sticky in (StickyBy.HEADER, StickyBy.PARAMETER, StickyBy.REQUEST_ID)
        self.why: dict[Target, str] = {}
        self.disagreeing: list[Target] = []
        self.results: Counter[tuple[Target, RoutedResult]] = Counter()
        self.rollouts: Counter[RolloutState] = Counter()
        self._standard: tuple[Target, ModelConfig] | None = None

    @property
    def name(self) -> str:
        return self.route.name

    def go_on_from(self, former: RouteRecord) -> None:
        """It takes the place of another one of its name."""
        self.results = Counter({key: count for key, count in former.results.items() if key[0] in self.targets})
        self.rollouts = former.rollouts
        self._standard = former._standard

    def look(self, find: Callable[[Target], ModelConfig]) -> None:
        """See which targets can serve.

        Args:
            find: gives the configuration of a target that is ready; raises a TriremeError for any other one.
        """
        found: dict[Target, ModelConfig] = {}
        self.why = {}
        for target in self.all_targets:
            try:
                found[target] = find(target)
            except ColdModelError:
                pass  # rule 3
            except TriremeError as error:
                self.why[target] = error.message
        standard = self._standard
        if standard is None or all(disagreement(target, config, *standard) for target, config in found.items()):
            standard = next(iter(found.items()), None)
        self._standard = standard
        problems = {} if standard is None else {each: disagreement(each, found[each], *standard) for each in found}
        self.disagreeing = [target for target, problem in problems.items() if problem]
        self.why |= {target: problems[target] for target in self.disagreeing}

    def ready(self, target: Target) -> bool:
        """Whether a target can serve."""
        return target not in self.why

    def first_ready(self) -> Target | None:
        return next((target for target in self.route.targets if target not in self.why), None)

    @property
    def all_targets(self) -> tuple[Target, ...]:
        """With the shadow's."""
        shadow = self.route.shadow
        return self.route.targets if shadow is None else (*self.route.targets, shadow.target)

    def shown(self, router: ModelRouter, now_s: float) -> dict[str, Any]:
        """The route's document, with its `state`."""
        shares = dict(router.weights(self.name))
        whole = sum(shares.values()) or 1
        targets = [
            {
                "target": str(target),
                "weight": weight,
                "share": round(100 * shares.get(target, 0) / whole, 3),
                "ready": self.ready(target),
                "why": self.why.get(target, ""),
                "requests": sum(self.results[target, result] for result in RoutedResult),
                "failures": self.results[target, RoutedResult.FAILURE],
            }
            for target, weight in self.route.weights
        ]
        state: dict[str, Any] = {"origin": "live" if self.live else "file", "targets": targets}
        rollout = router.rollout(self.name)
        if rollout is not None:
            state["rollout"] = self._shown_rollout(rollout, now_s)
        return {"name": self.name, **route_document(self.route), "state": state}

    def _shown_rollout(self, rollout: Rollout, now_s: float) -> dict[str, Any]:
        canary = self.route.canary
        assert canary is not None, "there is a rollout"
        return {
            "target": str(rollout.target),
            "state": rollout.state.value,
            "step": rollout.step + 1 if rollout.state in (RolloutState.STEP, RolloutState.DONE) else 0,
            "steps": len(canary.steps),
            "percent": rollout.percent,
            "left_s": round(rollout.left_s(now_s), 1),
            "reason": rollout.reason,
        }


def merge_routes(
    current: dict[str, RouteRecord], before: dict[str, ModelRoute], now: dict[str, ModelRoute]
) -> dict[str, tuple[ModelRoute, bool]]:
    """The routes to be, each with whether it was set while the server ran: what a file of routes says something else of
    than it did before is as the file says; the others stay as they are."""
    merged = {name: (record.route, record.live) for name, record in current.items()}
    for name in dict.fromkeys((*before, *now)):
        if before.get(name) != now.get(name):
            merged.pop(name, None)
            if name in now:
                merged[name] = now[name], False
    return merged
