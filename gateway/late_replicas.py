"""What clients have changed through this gateway, for replicas that come later or begin anew.

Rules:
 1. Of each model, each route and each setting the last change is remembered that a replica has made, as the calls that
    made it. `_MOST_CHANGES` are, and `_MOST_BYTES` of calls, since files may come with them; beyond that the oldest are
    forgotten, which the log says.
 2. A change is made at a replica, in the order of the changes, when its process reports for the first time, or was not
    reached when the change was made; `_SETTLE_S` later, so that others have reported what they have made. It is tried
    once in each process: what it says against it is logged.
 3. It is made only if the replicas that made it are as it left them: all of them have a model that was loaded, none has
    one that was unloaded. Otherwise it was changed since elsewhere, maybe through another gateway: so gateways
    agree without talking. What a replica has already, or has not, is not asked for again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import trio

from ..engine.errors import TriremeError
from ..engine.fleet.types import ReplicaLostError
from .models import FleetModels
from .replicas import Replica

logger = logging.getLogger("trireme.gateway")

_MOST_CHANGES = 4_096
_MOST_BYTES = 64 << 20
_LIMIT_S = 3600.0
_SETTLE_S = 1.0
_STARTS = "starting"


@dataclass(slots=True, eq=False)
class MadeChange:
    """One that clients have made.

    Attributes:
        key: what is changed; a later change of the same takes its place.
        what: for the log.
        steps: the calls, each as method and message.
        model: whose readiness shows whether it still holds (rule 3); empty if nothing does.
        loads: the model is ready after it; else it is not.
        plain: it makes no difference to a replica whose model is as it leaves it.
        took: processes of replicas that have made it.
        tried: those, and others that could not.
    """

    key: tuple[str, ...]
    what: str
    steps: tuple[tuple[str, bytes], ...]
    model: str = ""
    loads: bool = False
    plain: bool = False
    took: set[str] = field(default_factory=set)
    tried: set[str] = field(default_factory=set)

    @property
    def nbytes(self) -> int:
        return sum(len(message) for _, message in self.steps)


class Changes:
    """Those that are remembered (rule 1), the oldest first."""

    def __init__(self) -> None:
        self._changes: dict[tuple[str, ...], MadeChange] = {}
        self._nbytes = 0

    def find(self, *key: str) -> MadeChange | None:
        return self._changes.get(key)

    def add(self, change: MadeChange) -> None:
        self._forget(change.key)
        self._changes[change.key] = change
        self._nbytes += change.nbytes
        while len(self._changes) > _MOST_CHANGES or self._nbytes > _MOST_BYTES:
            oldest = next(iter(self._changes.values()))
            logger.warning("replicas that come later will not be asked to %s: too much was changed since", oldest.what)
            self._forget(oldest.key)

    def _forget(self, key: tuple[str, ...]) -> None:
        before = self._changes.pop(key, None)
        if before is not None:
            self._nbytes -= before.nbytes

    def missing(self, process: str) -> MadeChange | None:
        """The oldest one that was not tried in a replica's process."""
        return next((each for each in self._changes.values() if process not in each.tried), None)

    def keep(self, processes: set[str]) -> None:
        """Only these still run."""
        for change in self._changes.values():
            change.took &= processes
            change.tried &= processes

    def __len__(self) -> int:
        return len(self._changes)


class ChangedFleet(Protocol):
    """What of `FleetServer` it takes."""

    models: FleetModels

    @property
    def members(self) -> Mapping[str, Replica]: ...
    async def until(self, condition: Callable[[], bool]) -> None: ...


class LateReplicas:
    """Makes changes at replicas that have missed them."""

    def __init__(self, fleet: ChangedFleet) -> None:
        self.changes = Changes()
        self._fleet = fleet
        self._news = trio.Event()
        self._busy: set[str] = set()

    def note(self, changes: Iterable[MadeChange], took: set[str], tried: set[str]) -> None:
        """Clients have made changes.

        Args:
            took: the processes that have made it; at least one.
            tried: those, and others that could not.
        """
        for change in changes:
            change.took, change.tried = took - {""}, tried - {""}  # what has not reported yet is asked when it has
            self.changes.add(change)
        self.look()

    def look(self) -> None:
        """A replica reports for the first time since it was connected, or in another process."""
        if self.changes:
            self._news.set()

    async def run(self) -> None:
        """Look after them, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._news.wait()
                self._news = trio.Event()
                members = self._fleet.members.values()
                self.changes.keep({each.process for each in members if each.reported})
                for replica in members:
                    late = replica.up and replica.reported and self.changes.missing(replica.process) is not None
                    if late and replica.name not in self._busy:
                        self._busy.add(replica.name)
                        nursery.start_soon(self._bring_up, replica)

    async def _bring_up(self, replica: Replica) -> None:
        process = replica.process

        def is_over() -> bool:
            return not replica.up or replica.leaving or replica.process != process

        await trio.sleep(_SETTLE_S)
        await self._fleet.until(lambda: is_over() or replica.told.get("state") != _STARTS)
        made: list[str] = []
        while not is_over() and not replica.draining and (change := self.changes.missing(process)) is not None:
            change.tried.add(process)
            if self._is_wanted(change, replica):
                try:
                    for method, message in change.steps:
                        await replica.link.ask(method, message, _LIMIT_S)
                except ReplicaLostError:
                    change.tried.discard(process)
                    break
                except TriremeError as error:
                    logger.warning("replica %s cannot %s, as others did: %s", replica.name, change.what, error.message)
                    continue
                made.append(change.what)
            change.took.add(process)
        self._busy.discard(replica.name)
        if made:
            logger.info("replica %s was told what has been changed before: %s", replica.name, ", ".join(made))
        if is_over() and replica.up:  # in another process by now
            self.look()

    def _is_wanted(self, change: MadeChange, replica: Replica) -> bool:
        """Rule 3."""
        if not change.model:
            return True
        if change.plain and self._has(replica, change.model) is change.loads:
            return False
        others = [each for each in self._fleet.members.values() if each.up and each.process in change.took]
        return all(self._has(each, change.model) is change.loads for each in others)

    def _has(self, replica: Replica, model: str) -> bool:
        return any(self._fleet.models.ready(replica.name).get(model, {}).values())
