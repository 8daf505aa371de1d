"""What the server says about itself: refusals and readiness."""

from __future__ import annotations

from collections.abc import Callable

from ..events import ModelStateChanged, RequestAnswered, ServerStopping
from ..generations import model_of
from ..graphs import Graphs, is_step
from ..history import Handlers
from .base import Complain, Invariant
from .batches import TOLERANCE_NS
from .state import WorldState

STOPPING = "Server is stopping, scheduler for model has stopped accepting new inference requests"
UNKNOWN = "Request for unknown model"


class HonestRefusals(Invariant):
    """A refused request is told why. A server that stops says so, and never that it does not know a model that it has;
    a server that does not stop never says that it does."""

    name = "refusals say what is true"

    def __init__(self, complain: Complain, state: WorldState) -> None:
        super().__init__(complain)
        self._state = state
        self._stopping = False
        self._given_up: set[str] = set()

    def handlers(self) -> Handlers:
        return {
            ModelStateChanged: self._changed,
            RequestAnswered: self._answered,
            ServerStopping: self._stop,
        }

    def _changed(self, event: ModelStateChanged) -> None:
        view = self._state.models.get(event.model)
        if event.state == "UNAVAILABLE" and view is not None and view.ready:
            self._given_up.add(view.config.name)

    def _stop(self, _event: ServerStopping) -> None:
        self._stopping = True

    def _answered(self, event: RequestAnswered) -> None:
        asked = self._state.asked.get(event.request)
        if asked is None:
            return  # it was accepted
        model = asked.model
        view = self._state.serving.get(model)
        if not event.error:
            self.broken(f"request {event.request} was answered, but never queued")
        elif STOPPING in event.error:
            if not self._stopping and (view is None or view.ready):
                self.broken(f"request {event.request} was told that the server is stopping, which it is not")
        elif model in self._given_up or view is None:
            return
        elif is_step(event.request) and self._is_lost(model):
            return  # what an ensemble holds may die after it was told to stop
        elif UNKNOWN in event.error and (view.ready or self._stopping):
            self.broken(f"request {event.request} for '{model}', which is there, was told: {event.error}")

    def _is_lost(self, model: str) -> bool:
        """Whether a generation of the model has no instance left."""
        views = (view for view in self._state.models.values() if view.config.name == model)
        return any(view.served and not view.instances for view in views)


class HonestReadiness(Invariant):
    """A model is ready if, and only if, it serves and each of its instances, or its members, is alive. It need not be
    when each of them has executed a batch for half of the limit.

    Args:
        is_ready: asks the server, by a model's name.
        changing: models may be replaced while they serve.
        hang_limit_s: the limit; 0 for none.
    """

    name = "a model is ready if and only if all of it is alive"

    def __init__(
        self,
        complain: Complain,
        state: WorldState,
        is_ready: Callable[[str], bool],
        graphs: Graphs,
        changing: bool,
        hang_limit_s: float,
    ) -> None:
        super().__init__(complain)
        self._state = state
        self._is_ready = is_ready
        self._ensembles = graphs.ensembles
        self._changing = changing
        self._long_ns = hang_limit_s / 2 * 1e9

    def _may_be_stuck(self, name: str, now_ns: int) -> bool:
        ensemble = self._ensembles.get(name)
        if ensemble is not None:
            return any(self._may_be_stuck(step.model, now_ns) for step in ensemble.steps)
        running = self._state.running
        instances = self._state.serving[name].instances.values()
        return self._long_ns > 0 and all(
            any(running[batch].at_ns + self._long_ns <= now_ns + TOLERANCE_NS for batch in held if batch in running)
            for held in instances
        )

    def _is_alive(self, name: str) -> bool:
        view = self._state.serving[name]
        if not view.ready or len(view.instances) != view.count:
            return False
        ensemble = self._ensembles.get(name)
        return ensemble is None or all(self._is_alive(step.model) for step in ensemble.steps)

    def instant_over(self, now_ns: int) -> None:
        if not self._state.changed:
            return
        for name in dict.fromkeys((*map(model_of, self._state.changed), *self._ensembles)):
            if (self._changing and name in self._ensembles) or self._state.serving[name].count < 0:
                continue  # it needs its members, whichever were there when it was loaded
            view, alive = self._state.serving[name], self._is_alive(name)
            if self._is_ready(name) != alive and not (alive and self._may_be_stuck(name, now_ns)):
                there = f"{len(view.instances)} of {view.count} instances are alive"
                self.broken(f"'{name}' says that it is {'not ' * alive}ready at {now_ns} ns; {there}")
