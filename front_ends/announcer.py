"""What all front ends are told of a server: its models, its shared memory, and its state."""

from __future__ import annotations

from collections.abc import Iterator

from ..actors.server import InferenceServer
from ..engine.description import ModelDescription
from ..python_backend.child.codec import Payload
from .link import NOTHING, LinkHead
from .models import ModelTable, write_models
from .regions import RegionTable, write_regions
from .state import write_state

Announcement = tuple[LinkHead, Payload]


class Announcer:
    """Knows what front ends have been told."""

    def __init__(self, server: InferenceServer) -> None:
        self._server = server
        self._models = ModelTable(server.describe_known, server.model_versions, lambda: server.started)
        for name in server.model_names():
            self._models.touch(name)
        server.follow_models(self._models.touch)
        self._regions = RegionTable(server.shared_memory)
        self._state: LinkHead = ()

    def describe(self, number: int) -> ModelDescription | None:
        """The description that was announced under a number; None if it does not hold any more."""
        return self._models.get(number)

    def changes(self) -> Iterator[Announcement]:
        """What has changed since the last call."""
        before = self._models.generation
        change = self._models.refresh()
        if self._models.generation != before or not change.empty:
            yield from write_models(self._models.generation, change)
        rows = self._regions.refresh()
        if rows:
            yield write_regions(self._regions.generation, rows)
        state = write_state(self._server.exiting, self._server.tracer)
        if state != self._state:
            self._state = state
            yield state, NOTHING

    def everything(self) -> Iterator[Announcement]:
        """What a new front end is to know. All others know it, too."""
        yield from write_models(self._models.generation, self._models.everything())
        yield write_regions(self._regions.generation, self._regions.everything())
        self._state = write_state(self._server.exiting, self._server.tracer)
        yield self._state, NOTHING
