"""Models come and go while they are in use, and no request fails because of that
(docs/reference/model-control.md#load)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..events import ChangeAsked, ChangeDone, FaultStruck, ModelStateChanged, ReplyDelivered, ServerStopping
from ..generations import model_of
from ..history import Handlers
from ..plan import Change
from .base import Complain, Invariant
from .serving import STOPPING, UNKNOWN
from .state import ModelView, WorldState

UNLOADS = (Change.UNLOAD.value, Change.UNLOAD_ALL.value)

_DEFECT = re.compile(r"\w*(Error|Group): ")
"""What the server says that should not have been: an exception's name and text."""


class ChangesHurtNobody(Invariant):
    """A request is answered by the version that accepted it, though that be replaced or unloaded meanwhile; and a model
    that is only loaded again is there all the time. A change comes to an end, well unless a start failed, the model was
    changed otherwise at the same time, or the server stops.
    """

    name = "no request fails because a model is loaded or unloaded"

    def __init__(self, complain: Complain, state: WorldState) -> None:
        super().__init__(complain)
        self._state = state
        self._stopping = False
        self._unloaded: set[str] = set()
        self._failed: set[str] = set()
        self._failed_starts: set[str] = set()

    def handlers(self) -> Handlers:
        return {
            ServerStopping: self._stop,
            ReplyDelivered: self._delivered,
            ChangeAsked: self._asked,
            ChangeDone: self._done,
            ModelStateChanged: self._changed,
            FaultStruck: self._struck,
        }

    def _stop(self, _event: ServerStopping) -> None:
        self._stopping = True

    def _struck(self, event: FaultStruck) -> None:
        if event.request == 0:  # a start, of an instance that may be wanted anew
            self._failed_starts.add(event.model)

    def _delivered(self, event: ReplyDelivered) -> None:
        if not (STOPPING in event.error or UNKNOWN in event.error):
            return
        # An ensemble may lack a member that was lost.
        if not (self._stopping or self._failed or self._lost_while_drained()):
            self.broken(f"request {event.request} was accepted, and answered {event.error!r}")

    def _lost_while_drained(self) -> bool:
        """Whether a model that serves no more, but for ensembles that hold it, has lost instances."""
        return any(view.served and not view.ready and view.lost for view in self._state.models.values())

    def _asked(self, event: ChangeAsked) -> None:
        if event.change in UNLOADS:
            self._unloaded.add(event.model)
        elif event.change == Change.BREAK.value:  # a server that looks by itself may find that before what came earlier
            self._failed.add(event.model)

    def _changed(self, event: ModelStateChanged) -> None:
        view = self._state.models.get(event.model)
        model = model_of(event.model)
        if event.state == "UNAVAILABLE" and view is not None and (view.ready or not view.served):
            self._failed.add(model)
        elif event.state == "UNLOADING" and not (self._stopping or self._unloaded or self._is_replaced(event.model)):
            self.broken(f"'{event.model}' is unloaded; no change asked for that, and nothing replaces it")

    def _is_replaced(self, name: str) -> bool:
        serving = self._state.serving[model_of(name)]
        return serving.ready and serving.name != name

    def _done(self, event: ChangeDone) -> None:
        if _DEFECT.match(event.error):
            self.broken(f"'{event.model}': {event.change} came upon a defect: {event.error}")
        start_failed = event.model in self._failed_starts  # of a resize, or of a load that made up for one
        if event.error and not (self._stopping or self._failed or self._unloaded or start_failed):
            self.broken(f"'{event.model}': {event.change} failed, and no start had failed: {event.error}")


@dataclass(slots=True)
class _Open:
    """A change that is not over. `name`: the generation that served when it was asked for."""

    name: str
    was_ready: bool
    alone: bool


class ChangesAreMade(Invariant):
    """A change that no other one overlaps does what was asked for: what is loaded is ready, what was changed is new,
    what is unloaded is not ready, nor is an ensemble that needs it; an ensemble comes back with its members. A load
    that fails leaves what serves as it is.

    Args:
        polled: the server looks for changes by itself, so a member that is not in the repository does not come back.
    """

    name = "models are changed as was asked for"

    def __init__(self, complain: Complain, state: WorldState, polled: bool = False) -> None:
        super().__init__(complain)
        self._polled = polled
        self._state = state
        self._stopping = False
        self._open: list[tuple[ChangeAsked, _Open]] = []
        self._away: set[str] = set()  # unloaded by name
        self._certain = True  # which ensembles are to be there

    def handlers(self) -> Handlers:
        return {ServerStopping: self._stop, ChangeAsked: self._asked, ChangeDone: self._done}

    def _stop(self, _event: ServerStopping) -> None:
        self._stopping = True

    def _asked(self, event: ChangeAsked) -> None:
        for _, other in self._open:
            other.alone = False
        view = self._state.serving[event.model]
        self._open.append((event, _Open(view.name, view.ready, not self._open)))

    def _done(self, event: ChangeDone) -> None:
        at = next(
            index
            for index, (asked, _) in enumerate(self._open)
            if (asked.model, asked.change) == (event.model, event.change)
        )
        _, its = self._open.pop(at)
        unloads = event.change in UNLOADS
        (self._away.add if unloads else self._away.discard)(event.model)
        self._certain = self._certain and its.alone and not event.error and event.change != Change.UNLOAD_ALL.value
        if self._stopping or not its.alone:
            return
        view = self._state.serving[event.model]
        what = f"'{event.model}' is {'' if view.ready else 'not '}ready after: {event.change}"
        if event.error:
            if (view.name, view.ready) != (its.name, its.was_ready) and not unloads:
                self.broken(f"{what}, which has failed: {event.error}")
        elif self._polled and not (unloads or view.ready) and self._away.intersection(_members(view)):
            return  # it fails, and no client is told
        elif view.ready == unloads:
            self.broken(what)
        elif event.change == Change.RELOAD.value and view.name == its.name:
            self.broken(f"'{event.model}' is what it was before: {event.change}")
        else:
            self._look_at_ensembles(event)

    def _look_at_ensembles(self, event: ChangeDone) -> None:
        for name, view in self._state.serving.items():
            needed = _members(view)
            lacks = any(not self._state.serving[member].ready for member in needed)
            if not needed or (event.change in UNLOADS and event.model not in needed):
                continue
            if view.ready and lacks:
                self.broken(f"ensemble '{name}' is ready after '{event.model}': {event.change}")
            elif not view.ready and not lacks and name not in self._away and self._certain:
                self.broken(f"ensemble '{name}' has not come back after '{event.model}': {event.change}")


def _members(view: ModelView) -> list[str]:
    return [step.model_name for step in view.config.message.ensemble_scheduling.step]
