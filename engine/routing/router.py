"""Where requests for routes go.

Rules:
 1. A request of a sequence goes where the sequence began, until it has ended or nothing was heard of it for the
    route's `idle_s`: also if weights change, its target leaves the route, or the route is gone. A sequence's first
    request is one like any other, with the sequence as its key.
 2. Any other request goes by the route's shares (`shares`), by its key if it has one. Targets that cannot serve have
    no share. If none can serve, the request goes where it would if all could, and is refused there, with the
    reason why that model cannot serve.
 3. A canary's share is its rollout's (`rollout`).
 4. A change of routes holds for the next request. A rollout goes on if its route's targets, weights and canary are the
    same as before; else it begins anew. An empty set of routes leaves the sequences.
 5. A shadow gets every n-th request that is of no sequence, so that it has its percentage. While its copies are shut
    it is only counted how many it misses.

Memory is bounded: `most_sequences` in all; beyond that the one that was heard of least recently is forgotten, and its
next request finds its way as rule 2 says.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ..errors import NotFoundError
from .comparison import TargetOutcome
from .rollout import Rollout, RolloutEvent
from .route import WHOLE, ModelRoute, Shadow, Target, check_routes
from .shares import TargetShares


class RouteChoice(NamedTuple):
    """Attributes:
    shadow: who gets a copy of the request; None for no one.
    """

    target: Target
    shadow: Shadow | None = None


@dataclass(slots=True, eq=False)
class _Live:
    """A route, and what is known of it by now.

    Attributes:
        copied: percents of a copy that its shadow is to get more.
        shut: its shadow takes none; only if it has one.
        missed: requests since then, whatever part of them is copied.
    """

    route: ModelRoute
    shares: TargetShares
    usual: TargetShares
    rollout: Rollout | None = None
    copied: float = 0.0
    shut: bool = False
    missed: int = 0
    ready: dict[Target, bool] = field(default_factory=dict)

    def share_out(self) -> None:
        """Rules 2 and 3."""
        weights = self.rollout.weights() if self.rollout is not None else list(self.route.weights)
        self.usual = TargetShares(weights)
        ready = [(target, weight) for target, weight in weights if self.ready.get(target, False)]
        self.shares = TargetShares(ready, self.shares.turn)

    def others_ready(self) -> bool:
        """Whether any but the canary gets requests."""
        assert self.rollout is not None, "asked for a canary's sake"
        return any(target != self.rollout.target for target, _ in self.shares.weights)

    def follow(self, old: _Live) -> None:
        """Rule 4: what goes on of this route as it was."""
        if old.rollout is not None and _same_canary(old.route, self.route):
            self.rollout = old.rollout
        self.copied = old.copied
        if old.route.shadow == self.route.shadow:
            self.shut, self.missed = old.shut, old.missed
        self.shares = old.shares  # for their turn


class ModelRouter:
    """The routes of a server.

    Args:
        is_ready: whether a target can serve for the route of a name, asked when that is new; changes are told
            (`tell_ready`).
        idle_s: how long a sequence is known after its latest request, seconds.
        most_sequences: see above.
    """

    def __init__(
        self, is_ready: Callable[[str, Target], bool], idle_s: float = 600.0, most_sequences: int = 1_000_000
    ) -> None:
        self._ask_ready = is_ready
        self._idle_s = idle_s
        self._most_sequences = most_sequences
        self._routes: dict[str, _Live] = {}
        self._sequences: OrderedDict[tuple[str, int | str], tuple[Target, float]] = OrderedDict()
        self._counts: Counter[str] = Counter()  # of the same, by route

    @property
    def names(self) -> list[str]:
        return list(self._routes)

    @property
    def sequence_count(self) -> int:
        return len(self._sequences)

    def knows(self, name: str, sequence: int | str) -> bool:
        """Whether a sequence is known to have begun while this was a route."""
        return (name, sequence) in self._sequences

    def sequences_of(self, name: str) -> int:
        """How many sequences are known that began while this was a route."""
        return self._counts[name]

    def route(self, name: str) -> ModelRoute:
        """Raises NotFoundError: there is no such route."""
        return self._live(name).route

    def rollout(self, name: str) -> Rollout | None:
        """Raises NotFoundError: there is no such route."""
        return self._live(name).rollout

    def weights(self, name: str) -> list[tuple[Target, float]]:
        """What each target's share is by now, of those that can serve.

        Raises:
            NotFoundError: there is no such route.
        """
        return list(self._live(name).shares.weights)

    def replace(self, routes: Iterable[ModelRoute], now_s: float) -> list[RolloutEvent]:
        """Rule 4.

        Raises:
            InvalidArgumentError: the routes cannot be together; those of before stay.
        """
        before, self._routes = self._routes, self._begin_all(check_routes(routes), now_s)
        for name, live in self._routes.items():
            if name in before:
                live.follow(before[name])
            live.share_out()
        return self.advance(now_s)

    def choose(
        self,
        name: str,
        now_s: float,
        *,
        key: bytes | None = None,
        sequence: int | str = 0,
        start: bool = False,
        end: bool = False,
    ) -> RouteChoice | None:
        """Where a request goes; None if `name` is no route, nor was one when the sequence began.

        Args:
            key: what of the request the route is sticky by; None if it has not that.
            sequence: 0 or an empty text for none.
            start, end: the flags of the sequence's request.
        """
        if sequence:
            target = self._of_sequence((name, sequence), now_s, start, end)
            return None if target is None else RouteChoice(target)
        live = self._routes.get(name)
        if live is None:
            return None
        target = _share(live.shares, key) or _share(live.usual, key)
        if target is None:
            return None
        if live.shut:
            live.missed += 1
        elif live.route.shadow is not None:
            return RouteChoice(target, self._shadow(live, live.route.shadow))
        return RouteChoice(target)

    def shut_copies(self, name: str, shut: bool) -> int:
        """From now on a route's shadow takes no requests, or does again; how many it has missed since this was last
        said."""
        live = self._routes.get(name)
        if live is None or live.route.shadow is None:
            return 0
        live.copied += live.missed * live.route.shadow.percent
        missed, live.copied = divmod(live.copied, WHOLE)
        live.shut, live.missed = shut, 0
        return int(missed)

    def is_ready(self, name: str, target: Target) -> bool:
        """Whether a target can serve for this route, as was told last."""
        live = self._routes.get(name)
        return live is not None and live.ready.get(target, False)

    def tell_ready(self, name: str, target: Target, ready: bool, now_s: float) -> list[RolloutEvent]:
        """A target can serve for this route from now on, or cannot any more."""
        live = self._routes.get(name)
        if live is not None and live.ready.get(target, ready) != ready:
            live.ready[target] = ready
            live.share_out()
        return self.advance(now_s)

    def observe(self, name: str, target: Target, outcome: TargetOutcome, now_s: float) -> None:
        """A request that was sent on has been answered; the route may be gone by now."""
        live = self._routes.get(name)
        if live is not None and live.rollout is not None:
            live.rollout.observe(target, outcome, now_s)

    def advance(self, now_s: float) -> list[RolloutEvent]:
        """Have rollouts go on, and forget sequences of which nothing was heard; to be called at `next_s`."""
        events: list[RolloutEvent] = []
        for live in self._routes.values():
            rollout = live.rollout
            if rollout is None:
                continue
            event = rollout.advance(live.ready.get(rollout.target, False), live.others_ready(), now_s)
            if event is not None:
                live.share_out()
                events.append(event)
        self._forget_idle(now_s)
        return events

    def stop_rollout(self, name: str, now_s: float) -> RolloutEvent | None:
        """An operator wants a canary's share back; None if nothing is under way.

        Raises:
            NotFoundError: there is no such route.
        """
        live = self._live(name)
        event = None if live.rollout is None else live.rollout.stop(now_s)
        if event is not None:
            live.share_out()
        return event

    def next_s(self) -> float | None:
        """When `advance` has something to do, if nothing else happens."""
        times = [live.rollout.next_s() for live in self._routes.values() if live.rollout is not None]
        if self._sequences:
            times.append(next(iter(self._sequences.values()))[1] + self._idle_s)
        return min((time for time in times if time is not None), default=None)

    def _begin_all(self, routes: dict[str, ModelRoute], now_s: float) -> dict[str, _Live]:
        begun: dict[str, _Live] = {}
        for name, route in routes.items():
            ready = {target: self._ask_ready(name, target) for target in route.targets}
            rollout = Rollout(route, now_s) if route.canary is not None else None
            begun[name] = _Live(route, TargetShares(()), TargetShares(()), rollout, ready=ready)
        return begun

    def _forget_idle(self, now_s: float) -> None:
        while self._sequences and next(iter(self._sequences.values()))[1] + self._idle_s <= now_s:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        which, _ = self._sequences.popitem(last=False)
        self._counts[which[0]] -= 1

    def _of_sequence(self, which: tuple[str, int | str], now_s: float, start: bool, end: bool) -> Target | None:
        """Rule 1."""
        self._forget_idle(now_s)
        known = self._sequences.pop(which, None)
        if known is not None:
            self._counts[which[0]] -= 1
        target = None if known is None or start else known[0]
        if target is None:
            live = self._routes.get(which[0])
            if live is None:
                return None
            key = str(which[1]).encode()
            target = _share(live.shares, key) or _share(live.usual, key)
        if target is not None and not end:
            self._sequences[which] = (target, now_s)
            self._counts[which[0]] += 1
            if len(self._sequences) > self._most_sequences:
                self._forget_oldest()
        return target

    def _shadow(self, live: _Live, shadow: Shadow) -> Shadow | None:
        """Rule 5."""
        live.copied += shadow.percent
        if live.copied < WHOLE:
            return None
        live.copied -= WHOLE
        return shadow

    def _live(self, name: str) -> _Live:
        live = self._routes.get(name)
        if live is None:
            raise NotFoundError(f"there is no route '{name}'")
        return live


def _share(shares: TargetShares, key: bytes | None) -> Target | None:
    return shares.next() if key is None else shares.of_key(key)


def _same_canary(before: ModelRoute, after: ModelRoute) -> bool:
    return dict(before.weights) == dict(after.weights) and before.canary == after.canary
