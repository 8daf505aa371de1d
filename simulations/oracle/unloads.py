"""What goes with an ensemble that is unloaded with its members
(docs/reference/model-control.md#unload)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..events import ChangeAsked, ChangeDone, ServerStopping
from ..history import Handlers
from ..invariants.base import Complain, Invariant
from ..invariants.state import WorldState
from ..plan import Change


class MembersGo(Invariant):
    """With an ensemble go those of its members, and of theirs, that no request has loaded by name, and that no other
    model needs; all others stay. As long as no two changes overlap, and none fails.

    Args:
        named: the models that the server was told to load when it started.
    """

    name = "members are unloaded with the last ensemble that needs them"

    def __init__(self, complain: Complain, state: WorldState, named: Iterable[str]) -> None:
        super().__init__(complain)
        self._state = state
        self._members = {
            name: [step.model_name for step in view.config.message.ensemble_scheduling.step]
            for name, view in state.serving.items()
        }
        self._named = set(named)
        self._known: set[str] = set()
        for name in self._named:
            self._learn(name)
        self._open = 0
        self._certain = True

    def handlers(self) -> Handlers:
        return {ServerStopping: self._stop, ChangeAsked: self._asked, ChangeDone: self._done}

    def _stop(self, _event: ServerStopping) -> None:
        self._certain = False

    def _learn(self, name: str) -> None:
        self._known.add(name)
        for member in self._members[name]:
            self._learn(member)

    def _behind(self, name: str) -> Iterator[str]:
        """The members of an ensemble, and theirs."""
        for member in self._members[name]:
            yield member
            yield from self._behind(member)

    def _asked(self, _event: ChangeAsked) -> None:
        self._open += 1
        self._certain = self._certain and self._open == 1
        self._ready = {name for name, view in self._state.serving.items() if view.ready}

    def _done(self, event: ChangeDone) -> None:
        self._open -= 1
        self._certain = self._certain and not event.error
        if not self._certain:
            return
        if event.change not in (Change.UNLOAD.value, Change.UNLOAD_ALL.value):
            self._named.add(event.model)
            self._learn(event.model)
            return
        gone: set[str] = set()
        if event.model in self._known:
            self._drop(event.model, gone, with_members=event.change == Change.UNLOAD_ALL.value)
        if event.change == Change.UNLOAD.value:
            return
        for name, view in self._state.serving.items():
            needs_gone = not gone.isdisjoint(self._behind(name))
            if name in gone and view.ready:
                self.broken(f"'{name}' is ready after '{event.model}' was unloaded with its members")
            elif name in self._ready - gone and not view.ready and not needs_gone:
                self.broken(f"'{name}' is not ready after '{event.model}' was unloaded with its members")

    def _drop(self, name: str, gone: set[str], *, with_members: bool) -> None:
        self._known.discard(name)
        self._named.discard(name)
        gone.add(name)
        for member in self._members[name] if with_members else ():
            is_needed = any(member in self._members[other] for other in self._known)
            if member in self._known and member not in self._named and not is_needed:
                self._drop(member, gone, with_members=True)
