"""The traces of a server: the tracer that front ends ask, and the actor that takes what it has collected away."""

from __future__ import annotations

import trio

from ..engine.clock import Clock
from ..engine.tracing import TraceConfig, TraceMode, Tracer
from .trace_writer import TraceWriter


class Tracing:
    """Owns the tracer and its sink.

    Attributes:
        tracer: decides what is traced. It is there from the first moment; what it collects is taken away from `start`
            on.
    """

    def __init__(self, config: TraceConfig, clock: Clock) -> None:
        if config.mode is TraceMode.OPENTELEMETRY:
            # Only here: importing the library takes longer than starting a server.
            from .trace_exporter import TraceExporter

            exporter = TraceExporter(config.export, clock)
            self._output: TraceWriter | TraceExporter = exporter
            self._is_needed = True
            self.tracer = Tracer(config, clock, exporter, exporter.identities)
        else:
            self._output = TraceWriter(config.file)
            self._is_needed = bool(config.file)
            self.tracer = Tracer(config, clock, self._output)
        self._runs = False

    def start(self, nursery: trio.Nursery) -> None:
        """Start the actor, if there can ever be work for it."""
        if self._is_needed:
            self._runs = True
            nursery.start_soon(self._output.run)

    async def close(self, limit_s: float) -> None:
        """Take no more traces, and put those that were taken where they belong, for at most `limit_s` seconds."""
        self.tracer.close()
        if self._runs:
            with trio.move_on_after(limit_s):
                await self._output.close()
