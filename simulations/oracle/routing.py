"""Where requests for routes go, stated naively: each decision of `engine.routing.router` worked out from scratch, or,
where there is a choice, held against what the rules leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ...engine.errors import InvalidArgumentError
from ...engine.routing.comparison import TargetOutcome
from ...engine.routing.rollout import RolloutEvent
from ...engine.routing.route import Canary, ModelRoute, Target
from ...engine.routing.router import ModelRouter, RouteChoice

TURNS_APART = 8
"""A target may have so many requests more or less than its share of any number of turns."""

FEWEST = 20
"""Of fewer requests of a canary none can be known to be fine."""

FEWEST_FAILED, FEWEST_SLOW = 4, 8
"""Of fewer bad ones none can be known to be worse."""

PAST = 6
"""So many former decisions are remembered for each key."""

Weights = Mapping[Target, float]


@dataclass
class _Rollout:
    """What is known of a canary; `new` and `others` are outcomes of its step."""

    canary: Canary
    before: Mapping[Target, int]
    state: str = "waiting"
    step: int = 0
    since_s: float = 0.0
    overdue: bool = False
    compares: bool = True
    new: list[TargetOutcome] = field(default_factory=list)
    others: list[TargetOutcome] = field(default_factory=list)

    @property
    def percent(self) -> float:
        match self.state:
            case "step" | "done":
                return self.canary.steps[self.step]
            case "waiting":
                return 0
            case _:
                return self.before[self.canary.target]

    def weights(self) -> Weights:
        mine, left = self.canary.target, 100 - self.percent
        others = {target: weight for target, weight in self.before.items() if target != mine}
        if not sum(others.values()):
            others = dict.fromkeys(others, 1)
        shares = {target: left * weight / sum(others.values()) for target, weight in others.items()}
        return {mine: self.percent, **shares}


@dataclass
class _Turns:
    """Requests without a key, since the shares are what they are."""

    weights: Weights = field(default_factory=dict)
    had: Counter[Target] = field(default_factory=Counter)


@dataclass
class _Copies:
    """Requests that a shadow might have got a copy of; `due` is how many it should have got, by percentages, and
    `missed` the same while it takes none."""

    due: float = 0.0
    made: int = 0
    missed: float = 0.0
    shut: bool = False


@dataclass
class _Sequence:
    target: Target
    heard_s: float
    number: int


class NaiveRouter:
    """What a router was told, and what it must, or may, decide."""

    def __init__(self, idle_s: float, most_sequences: int) -> None:
        self.routes: dict[str, ModelRoute] = {}
        self.ready: dict[tuple[str, Target], bool] = {}
        self.rollouts: dict[str, _Rollout] = {}
        self.sequences: dict[tuple[str, int | str], _Sequence] = {}
        self._idle_s = idle_s
        self._most = most_sequences
        self._turns: dict[str, _Turns] = {}
        self._copies: dict[str, _Copies] = {}
        self._keys: dict[bytes, list[tuple[Weights, Target]]] = {}
        self._number = 0

    # ---- what is right ----

    def weights(self, name: str) -> Weights:
        """Of all targets that have any."""
        rollout = self.rollouts.get(name)
        weights = dict(self.routes[name].weights) if rollout is None else rollout.weights()
        return {target: weight for target, weight in weights.items() if weight > 0}

    def shares(self, name: str) -> Weights:
        """Of those that can serve."""
        return {target: weight for target, weight in self.weights(name).items() if self.ready[name, target]}

    def choice(
        self,
        name: str,
        now_s: float,
        key: bytes | None,
        sequence: int | str,
        start: bool,
        end: bool,
        found: RouteChoice | None,
    ) -> str:
        """What is wrong with a choice; empty for nothing."""
        if sequence:
            self._forget(now_s)
            known = self.sequences.pop((name, sequence), None)
            target = None if found is None else found.target
            if target is not None and not end:
                self._number += 1
                self.sequences[name, sequence] = _Sequence(target, now_s, self._number)
                if len(self.sequences) > self._most:
                    del self.sequences[min(self.sequences, key=lambda each: self.sequences[each].number)]
            if found is not None and found.shadow is not None:
                return "a request of a sequence is copied"
            if known is not None and not start:
                return "" if target == known.target else f"a sequence that began at {known.target} goes to {target}"
            key = str(sequence).encode()
        if name not in self.routes:
            return "" if found is None else f"there is no such route, and it leads to {found.target}"
        if found is None:
            return "it leads nowhere"
        weights = self.shares(name) or self.weights(name)
        if found.target not in weights:
            return f"it goes to {found.target}, which has no share, or cannot serve: {shown(weights)}"
        wrong = self._turn(name, weights, found.target) if key is None else self._stuck(key, weights, found.target)
        return wrong or ("" if sequence else self._copied(name, found))

    def _stuck(self, key: bytes, weights: Weights, target: Target) -> str:
        """A key goes elsewhere only if that has gained by the change, compared with where it was."""
        past = self._keys.setdefault(key, [])
        for former, at in past:
            gained = weights[target] * former.get(at, 0.0)
            lost = weights.get(at, 0.0) * former.get(target, 0.0)
            if at != target and gained <= lost * (1 + 1e-9):
                return f"a key that was at {at} with {shown(former)} moves to {target} with {shown(weights)}"
        if (weights, target) not in past:
            past.append((weights, target))
            del past[:-PAST]
        return ""

    def _turn(self, name: str, weights: Weights, target: Target) -> str:
        turns = self._turns.setdefault(name, _Turns())
        if turns.weights != weights:
            turns.weights, turns.had = weights, Counter()
        turns.had[target] += 1
        total, whole = turns.had.total(), sum(weights.values())
        for each, weight in weights.items():
            if abs(turns.had[each] - total * weight / whole) > TURNS_APART:
                return f"{each} has had {turns.had[each]} of {total} turns, with {shown(weights)}"
        return ""

    def _copied(self, name: str, found: RouteChoice) -> str:
        shadow, copies = self.routes[name].shadow, self._copies.setdefault(name, _Copies())
        if found.shadow is not None and found.shadow != shadow:
            return f"it is copied for {found.shadow}, which is not its shadow"
        due = 0 if shadow is None else shadow.percent / 100
        if copies.shut:
            copies.missed += due
            return "" if found.shadow is None else "it is copied, though the shadow takes none"
        copies.due += due
        copies.made += found.shadow is not None
        if abs(copies.due - copies.made) > 1 + 1e-6:
            return f"{copies.made} requests were copied, right is {copies.due:g}"
        return ""

    # ---- what happens ----

    def shut_copies(self, name: str, shut: bool, missed: int) -> str:
        """What is wrong with how many are said to have been missed."""
        route = self.routes.get(name)
        if route is None or route.shadow is None:
            return "" if missed == 0 else f"it has no shadow, which has missed {missed}"
        copies = self._copies.setdefault(name, _Copies())
        copies.due, copies.made = copies.due + copies.missed, copies.made + missed
        copies.missed, copies.shut = 0.0, shut
        found = f"{copies.made} requests were copied or missed, right is {copies.due:g}"
        return found if abs(copies.due - copies.made) > 1 + 1e-6 else ""

    def replace(self, routes: Iterable[ModelRoute], now_s: float, is_ready: Callable[[str, Target], bool]) -> None:
        before, self.routes = self.routes, {route.name: route for route in routes}
        self.ready = {
            (name, each): is_ready(name, each) for name, route in self.routes.items() for each in route.targets
        }
        former, self.rollouts = self.rollouts, {}
        for name, route in self.routes.items():
            if route.canary is None:
                continue
            old = before.get(name)
            same = old is not None and old.canary == route.canary and dict(old.weights) == dict(route.weights)
            self.rollouts[name] = former[name] if same else _Rollout(route.canary, dict(route.weights), since_s=now_s)
        for name, copies in self._copies.items():
            if name in before and name in self.routes and before[name].shadow != self.routes[name].shadow:
                copies.missed, copies.shut = 0.0, False
        for kept in (self._turns, self._copies):
            for name in [name for name in kept if name not in self.routes]:
                del kept[name]

    def observe(self, name: str, target: Target, outcome: TargetOutcome) -> None:
        rollout = self.rollouts.get(name)
        if rollout is None or rollout.state != "step" or not rollout.compares or target not in rollout.before:
            return
        (rollout.new if target == rollout.canary.target else rollout.others).append(outcome)

    def advance(self, events: Iterable[RolloutEvent], now_s: float) -> list[str]:
        """What is wrong with what rollouts have done."""
        self._forget(now_s)
        by_route: dict[str, list[RolloutEvent]] = {}
        for event in events:
            by_route.setdefault(event.route, []).append(event)
        wrong = [f"'{name}' has no canary" for name in by_route if name not in self.rollouts]
        for name, rollout in self.rollouts.items():
            found = by_route.get(name, [])
            if len(found) > 1:
                wrong.append(f"{len(found)} things happen to '{name}' at once")
            problem = self._advance(name, rollout, found[0] if found else None, now_s)
            if problem:
                wrong.append(f"rollout of '{name}' in step {rollout.step}: {problem}")
        return wrong

    def stopped(self, name: str, event: RolloutEvent | None) -> str:
        """What is wrong when an operator has stopped a rollout."""
        rollout = self.rollouts.get(name)
        if rollout is None or rollout.state in ("done", "back"):
            return "" if event is None else "nothing was under way, and it is stopped"
        rollout.state = "back"
        return "" if event is not None and event.percent == rollout.percent else "it is not stopped"

    def _advance(self, name: str, rollout: _Rollout, event: RolloutEvent | None, now_s: float) -> str:
        canary = rollout.canary
        ready = self.ready[name, canary.target]
        if rollout.state in ("done", "back"):
            return "" if event is None else "it goes on though it is over"
        if rollout.state == "waiting":
            if (event is not None) != ready:
                return f"its target {'can' if ready else 'cannot'} serve, and {'nothing' if ready else 'it'} begins"
            return "" if event is None else self._enter(rollout, "step", 0, event, now_s)
        what = "" if event is None else event.state.value
        if what == "back" or not ready:
            if what != "back":
                return "its target cannot serve any more, and it goes on"
            return self._blame(rollout, ready) or self._enter(rollout, "back", rollout.step, event, now_s)
        alone = rollout.percent >= 100
        rollout.compares = alone or any(target != canary.target for target in self.shares(name))
        if not rollout.compares:
            rollout.since_s = now_s
            return "" if event is None else "it goes on while the others cannot serve"
        over = now_s >= rollout.since_s + canary.step_s
        if event is None:
            return "its time is over, and it says nothing" if over and (alone or not rollout.overdue) else ""
        if not over:
            return f"its time is not over, and it says: {event.reason}"
        if what == "step" and not event.step_began:
            again, rollout.overdue = rollout.overdue, True
            return "it says for a second time that it takes longer" if again or alone else ""
        if len(rollout.new) < FEWEST and not alone:
            return f"{len(rollout.new)} requests cannot tell that it is fine"
        last = rollout.step + 1 == len(canary.steps)
        if last != (what == "done"):
            return f"it is {what} after step {rollout.step} of {len(canary.steps)}"
        return self._enter(rollout, what, rollout.step + (not last), event, now_s)

    def _blame(self, rollout: _Rollout, ready: bool) -> str:
        failed = sum(each.failed for each in rollout.new)
        slow = len(rollout.new) - failed
        if not ready or failed >= FEWEST_FAILED or (slow >= FEWEST_SLOW and rollout.percent < 100):
            return ""
        return f"it goes back, though {failed} of {len(rollout.new)} requests failed"

    def _enter(self, rollout: _Rollout, state: str, step: int, event: RolloutEvent | None, now_s: float) -> str:
        rollout.state, rollout.step, rollout.since_s, rollout.overdue = state, step, now_s, False
        rollout.new, rollout.others = [], []
        if event is None or event.state.value != state:
            return f"it should be {state}"
        if event.percent != rollout.percent or event.target != rollout.canary.target:
            return f"{event.target} is said to have {event.percent} %, right is {rollout.percent} %"
        return ""

    def _forget(self, now_s: float) -> None:
        for which in [which for which, each in self.sequences.items() if each.heard_s + self._idle_s <= now_s]:
            del self.sequences[which]


def shown(weights: Weights) -> str:
    """As violations have them."""
    return ", ".join(f"{target} {weight:g}" for target, weight in weights.items())


class WatchedRouter(ModelRouter):
    """Complains when it decides what the rules do not leave.

    Args:
        complain: told what is wrong.
    """

    def __init__(
        self,
        is_ready: Callable[[str, Target], bool],
        idle_s: float = 600.0,
        most_sequences: int = 1_000_000,
        *,
        complain: Callable[[str], None],
    ) -> None:
        super().__init__(is_ready, idle_s, most_sequences)
        self.naive = NaiveRouter(idle_s, most_sequences)
        self._complain = complain
        self._asked_ready = is_ready
        self._inside = False

    def replace(self, routes: Iterable[ModelRoute], now_s: float) -> list[RolloutEvent]:
        routes = list(routes)
        try:
            events = self._within(lambda: super(WatchedRouter, self).replace(routes, now_s))
        except InvalidArgumentError:
            self._compare()
            raise
        self.naive.replace(routes, now_s, self._asked_ready)
        return self._went_on(events, now_s)

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
        found = super().choose(name, now_s, key=key, sequence=sequence, start=start, end=end)
        wrong = self.naive.choice(name, now_s, key, sequence, start, end, found)
        if wrong:
            self._complain(f"a request for '{name}': {wrong}")
        if sequence and self.sequence_count != len(self.naive.sequences):
            self._complain(f"{self.sequence_count} sequences are known, right is {len(self.naive.sequences)}")
        return found

    def shut_copies(self, name: str, shut: bool) -> int:
        missed = super().shut_copies(name, shut)
        wrong = self.naive.shut_copies(name, shut, missed)
        if wrong:
            self._complain(f"copies for '{name}': {wrong}")
        return missed

    def tell_ready(self, name: str, target: Target, ready: bool, now_s: float) -> list[RolloutEvent]:
        events = self._within(lambda: super(WatchedRouter, self).tell_ready(name, target, ready, now_s))
        if (name, target) in self.naive.ready:
            self.naive.ready[name, target] = ready
        return self._went_on(events, now_s)

    def observe(self, name: str, target: Target, outcome: TargetOutcome, now_s: float) -> None:
        super().observe(name, target, outcome, now_s)
        self.naive.observe(name, target, outcome)

    def advance(self, now_s: float) -> list[RolloutEvent]:
        events = super().advance(now_s)
        return events if self._inside else self._went_on(events, now_s)

    def stop_rollout(self, name: str, now_s: float) -> RolloutEvent | None:
        event = super().stop_rollout(name, now_s)
        wrong = self.naive.stopped(name, event)
        if wrong:
            self._complain(f"rollout of '{name}': {wrong}")
        self._compare()
        return event

    def next_s(self) -> float | None:
        found = super().next_s()
        heard = [each.heard_s + self.naive._idle_s for each in self.naive.sequences.values()]
        if heard and (found is None or found > min(heard)):
            self._complain(f"it looks again at {found}, and a sequence is over at {min(heard)}")
        return found

    def _within(self, call: Callable[[], list[RolloutEvent]]) -> list[RolloutEvent]:
        """The core advances by itself: what it was told before is to be known first."""
        self._inside = True
        try:
            return call()
        finally:
            self._inside = False

    def _went_on(self, events: list[RolloutEvent], now_s: float) -> list[RolloutEvent]:
        for wrong in self.naive.advance(events, now_s):
            self._complain(wrong)
        self._compare()
        return events

    def _compare(self) -> None:
        if sorted(self.names) != sorted(self.naive.routes):
            self._complain(f"there are the routes {sorted(self.names)}, right are {sorted(self.naive.routes)}")
            return
        for name in self.names:
            found, right = dict(self.weights(name)), self.naive.shares(name)
            if found.keys() != right.keys() or any(abs(found[each] - right[each]) > 1e-6 for each in right):
                self._complain(f"'{name}' is shared as {shown(found)}, right is {shown(right)}")
