"""Swarm runs of the router alone: everything that may happen to it is drawn, and each decision held against
`oracle.routing`."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from ..engine.errors import InvalidArgumentError
from ..engine.routing.comparison import TargetOutcome
from ..engine.routing.rollout import RolloutEvent
from ..engine.routing.route import WHOLE, Canary, CanaryLimits, ModelRoute, Shadow, Target
from .drawn_run import DrawnRun
from .oracle.routing import WatchedRouter

NAMES = ("r", "s", "digits")
TARGETS = (*(Target("digits", version) for version in (1, 2, 3)), Target("a"), Target("b"), Target("b", 1))
SHADOW = Target("shadow")


def play_router(seed: int, events: int = 80) -> DrawnRun:
    """Play one run to its end, or to the first violation."""
    run = _Run(Random(f"router {seed}"))
    for _ in range(events):
        run.step()
        if run.run.violation:
            break
    return run.run


class _Run:
    """A run in the making."""

    def __init__(self, draw: Random) -> None:
        self._draw = draw
        self.run = DrawnRun()
        self._now_s = 0.0
        self._ready = {(name, each): draw.random() < 0.8 for name in NAMES for each in TARGETS}
        self._router = WatchedRouter(
            lambda name, target: self._ready[name, target],
            draw.choice((2.0, 10.0, 600.0)),
            draw.choice((2, 5, 1_000)),
            complain=self.complain,
        )
        self._routes: dict[str, ModelRoute] = {}
        self._keys = [str(number).encode() for number in range(draw.choice((2, 10, 40)))]
        self._quality = {each: draw.choice(("good", "good", "good", "failing", "slow")) for each in TARGETS}
        self._restless = draw.choice((0.0, 0.3, 1.0))
        self._keyed = draw.choice((0.0, 0.3, 0.8))
        self._sequences = draw.choice((0.0, 0.2, 0.6))

    def complain(self, text: str) -> None:
        self.run.complain(f"at {self._now_s:g} s: {text}")

    def step(self) -> None:
        """One event, and what is to be done after it."""
        draw = self._draw
        self._now_s += draw.choice((0.0, 0.01, 0.3, 3.0)) * draw.random()
        kinds = {
            self._traffic: 10,
            self._tell_ready: 3 * self._restless,
            self._replace: 1.5 * self._restless if self._routes else 10,
            self._set_wrongly: 0.2,
            self._stop: 0.3 * self._restless,
            self._pass: 3,
            self._shut_copies: 1,
        }
        draw.choices(list(kinds), list(kinds.values()))[0]()
        if (due_s := self._router.next_s()) is not None and due_s <= self._now_s:
            self._note(self._router.advance(self._now_s))

    def _note(self, events: Iterable[RolloutEvent]) -> None:
        for event in events:
            overdue = event.state.value == "step" and not event.step_began
            self.run.counts["overdue" if overdue else event.state.value] += 1

    # ---- events ----

    def _pass(self) -> None:
        due_s = self._router.next_s()
        if due_s is not None:
            self._now_s = max(self._now_s, due_s)
            self._note(self._router.advance(self._now_s))

    def _traffic(self) -> None:
        """A spell of requests, which are answered at once, or by a stray target."""
        draw, router = self._draw, self._router
        name = draw.choice(list(self._routes) if self._routes and draw.random() < 0.9 else NAMES)
        apart_s = draw.choice((0.0, 0.001, 0.05))
        for _ in range(draw.choice((1, 3, 10, 30, 200))):
            self._now_s += apart_s
            sequence, start, end = 0, False, False
            if draw.random() < self._sequences:
                sequence = draw.choice((draw.randint(1, 6), f"s{draw.randint(1, 6)}"))
                start, end = draw.random() < 0.1, draw.random() < 0.1
            key = draw.choice(self._keys) if draw.random() < self._keyed else None
            choice = router.choose(name, self._now_s, key=key, sequence=sequence, start=start, end=end)
            self.run.counts[
                "sequence" if sequence else "no route" if choice is None else "keyed" if key else "turn"
            ] += 1
            if choice is None or self.run.violation:
                continue
            self.run.counts["copied"] += choice.shadow is not None
            if not self._ready.get((name, choice.target), True):
                self.run.counts["cannot serve"] += 1
            router.observe(name, choice.target, self._outcome(choice.target), self._now_s)

    def _outcome(self, target: Target) -> TargetOutcome:
        draw, quality = self._draw, self._quality[target]
        if quality == "failing" and draw.random() < 0.5:
            return TargetOutcome(True)
        latency_s = draw.lognormvariate(-4, 0.3) * (3 if quality == "slow" else 1)
        return TargetOutcome(False, latency_s, latency_s * 0.3 * draw.random())

    def _tell_ready(self) -> None:
        name, target = self._draw.choice(NAMES), self._draw.choice(TARGETS)
        self._ready[name, target] = ready = self._draw.random() < 0.6
        self._note(self._router.tell_ready(name, target, ready, self._now_s))

    def _replace(self) -> None:
        """Set one route anew, or a part of it, or take one away; the others are set again as they are."""
        draw, routes = self._draw, dict(self._routes)
        name = draw.choice(NAMES)
        routes.pop(name, None)
        if name not in self._routes or draw.random() < 0.7:
            routes[name] = self._route(name)
        self._routes = routes
        self._note(self._router.replace(list(routes.values()), self._now_s))
        self.run.counts["replaced"] += 1

    def _route(self, name: str) -> ModelRoute:
        """With the targets and the canary of the one before it, now and then."""
        draw, before = self._draw, self._routes.get(name)
        shadow = Shadow(SHADOW, draw.choice((1, 10, 33, 50, 100))) if draw.random() < 0.4 else None
        if before is not None and draw.random() < 0.4:
            weights = draw.sample(before.weights, len(before.weights))
            return ModelRoute(name, tuple(weights), canary=before.canary, shadow=shadow)
        targets = draw.sample(TARGETS, draw.randint(1, 4))
        cuts = sorted(draw.choice((0, 1, 5, 50, 90, 99, 100, draw.randint(0, 100))) for _ in targets[1:])
        weights = [high - low for low, high in zip([0, *cuts], [*cuts, WHOLE], strict=True)]
        canary = None
        if len(targets) > 1 and draw.random() < 0.7:
            steps = draw.choice(((50,), (30, 60, 100), (100,), (5, 40), (20, 80)))
            step_s = draw.choice((0.0, 0.5, 5.0))
            canary = Canary(draw.choice(targets), steps, step_s, CanaryLimits(errors=draw.choice((0.01, 0.3))))
        return ModelRoute(name, tuple(zip(targets, weights, strict=True)), canary=canary, shadow=shadow)

    def _shut_copies(self) -> None:
        self.run.counts["missed"] += self._router.shut_copies(self._draw.choice(NAMES), self._draw.random() < 0.5)

    def _set_wrongly(self) -> None:
        routes = [
            *self._routes.values(),
            ModelRoute("r", ((Target("r"), WHOLE),)),
            ModelRoute("t", ((TARGETS[0], 100),)),
        ]
        try:
            self._router.replace(routes, self._now_s)
        except InvalidArgumentError:
            self.run.counts["refused"] += 1
        else:
            self.complain("a route that leads to itself is accepted")

    def _stop(self) -> None:
        if self._routes:
            event = self._router.stop_rollout(self._draw.choice(list(self._routes)), self._now_s)
            self.run.counts["stopped"] += event is not None
