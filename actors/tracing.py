"""The traces of a server: the tracer that front ends ask, and the actor that takes what it has collected away."""

from __future__ import annotations

import trio

from ..engine.clock import Clock
from ..engine.tracing import TraceConfig, Tracer
from .trace_writer import TraceWriter


class Tracing:
    """Owns the tracer and its sink.

    Attributes:
        tracer: decides what is traced. It is there from the first moment; nothing is traced before `start`.
    """

    def __init__(self, config: TraceConfig, clock: Clock) -> None:
        self._config = config
        self._output = TraceWriter(config.file)
        self.tracer = Tracer(config, clock, self._output)
        self._runs = False

    def start(self, nursery: trio.Nursery) -> None:
        """Start the actor, if there can ever be work for it."""
        if self._config.file:
            self._runs = True
            nursery.start_soon(self._output.run)

    async def close(self, limit_s: float) -> None:
        """Take no more traces, and put those that were taken where they belong, for at most `limit_s` seconds."""
        self.tracer.close()
        if self._runs:
            with trio.move_on_after(limit_s):
                await self._output.close()
