"""Simulated replicas that hold some of the models of a fleet, as they are told, and measure what they have to do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from random import Random

from ...engine.fleet.scaling import LoadReading
from .events import Calendar
from .replicas import SimulatedReplica

MOST_JOBS = 1_000


class ManagedReplica(SimulatedReplica):
    """One server, which loads and unloads models, one after the other.

    Args:
        versions: of each model, for a release of the fleet's settings.
        load_s: how long a load takes, about.
        changed: called when it has a model ready, or has not any more, with the model's name.
        begins: called with it when it begins to load a model.

    Attributes:
        release: which it is of, from its next start on.
        leaving: it is about to end.
        silent: what it tells of itself gets lost.
    """

    def __init__(
        self,
        name: str,
        calendar: Calendar,
        draw: Random,
        service_s: float,
        instances: int,
        queue: int,
        *,
        release: int,
        versions: Callable[[int], tuple[int, ...]],
        load_s: float,
        changed: Callable[[str], None],
        begins: Callable[[ManagedReplica], None],
    ) -> None:
        self.release = release
        self.leaving = self.silent = False
        self.loads = 0
        self._versions = versions
        self._load_s = load_s
        self._changed = changed
        self._begins = begins
        super().__init__(name, calendar, draw, service_s, instances, queue, {})

    def start(self) -> None:
        """With no model in memory."""
        super().start()
        self.models = {}
        self._asked: tuple[frozenset[str], frozenset[str]] | None = None
        self._jobs: deque[tuple[frozenset[str], frozenset[str]]] = deque(maxlen=MOST_JOBS)
        self._to_load: deque[str] = deque(maxlen=MOST_JOBS)
        self._is_loading = False
        self._read_s = self.calendar.now_s
        self._read: dict[str, tuple[int, float, float]] = {}

    @property
    def ready(self) -> frozenset[str]:
        """The models that it has in memory."""
        return frozenset(name for name in self.models if self.has_ready(name))

    @property
    def changing(self) -> frozenset[str]:
        """The models that it is loading, or about to load."""
        return frozenset(self.models).union(self._to_load, *(wanted for wanted, _ in self._jobs)) - self.ready

    def hold(self, wanted: frozenset[str], leaving: frozenset[str]) -> None:
        """Have these models, and those that leave no more."""
        if (wanted, leaving) != self._asked:
            self._asked = wanted, leaving
            self._jobs.append(self._asked)
            if not self._is_loading:
                self._go_on_loading()

    def _go_on_loading(self) -> None:
        while not self._to_load:
            self._is_loading = False
            if not self._jobs:
                return
            wanted, leaving = self._jobs.popleft()
            for name in sorted(self.ready & leaving):
                self.models = {other: versions for other, versions in self.models.items() if other != name}
                self._changed(name)
            self._to_load.extend(sorted(wanted - self.ready))
        self._is_loading = True
        name = self._to_load.popleft()
        self._set(name, False)
        self._begins(self)
        self.calendar.after(self._load_s * self.draw.uniform(0.5, 1.5), self._loaded, name, self.life)

    def _loaded(self, name: str, life: int) -> None:
        if life == self.life and self.alive:
            self.loads += 1
            self._set(name, True)
            self._changed(name)
            self._go_on_loading()

    def _set(self, name: str, is_ready: bool) -> None:
        self.models = {**self.models, name: dict.fromkeys(self._versions(self.release), is_ready)}

    def read(self) -> Mapping[str, LoadReading]:
        """What was done since the last call, of each model that is here."""
        elapsed_s = self.calendar.now_s - self._read_s
        found: dict[str, LoadReading] = {}
        for name in self.ready:
            work = self.work.get(name)
            now = (work.count, work.queue_s, work.busy_s) if work else (0, 0.0, 0.0)
            before = self._read.get(name)
            if before is not None and elapsed_s > 0:
                count, queue_s, busy_s = now[0] - before[0], now[1] - before[1], now[2] - before[2]
                found[name] = LoadReading(
                    count / elapsed_s, queue_s / count if count else 0.0, busy_s / elapsed_s, self.instances
                )
            self._read[name] = now
        self._read_s = self.calendar.now_s
        return found
