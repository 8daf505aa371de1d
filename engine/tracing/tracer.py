"""The tracer: what front ends ask whether a request is traced.

    if tracer.active:
        trace = tracer.begin(model_name, context)   # None for most requests
    ...
    request.trace = trace

A front end *enters* with `begin`, notes what it does, and leaves the trace when it has sent the answer. Complete traces
go to a sink, which writes or exports them.
"""

from __future__ import annotations

import itertools
import logging
from typing import Protocol

from ..clock import Clock
from .record import Identities, SpanContext, Trace
from .settings import SettingsChange, TraceConfig, TraceLevel, TraceMode, TraceSetting, TraceSettings

logger = logging.getLogger("trireme.tracing")

NO_TENSORS = "Tensor level tracing is not supported by the mode: opentelemetry"


class TraceSink(Protocol):
    """Where complete traces go. Called on the event loop only; must not raise, and must not wait."""

    def collect(self, trace: Trace) -> None:
        """A trace is complete."""
        ...

    def retire(self, setting: TraceSetting) -> None:
        """A setting takes no new traces."""
        ...


class Tracer:
    """The traces of a server.

    Args:
        clock: that of all times in traces.
        identities: for spans; needed in the mode opentelemetry only.

    Attributes:
        active: a request could be traced. While it is False nothing else need be asked.
    """

    def __init__(
        self, config: TraceConfig, clock: Clock, sink: TraceSink, identities: Identities | None = None
    ) -> None:
        self.config = config
        self.clock = clock
        self._sink = sink
        self._identities = identities
        self._settings = TraceSettings(config, sink.retire)
        self._ids = itertools.count(1)
        self.active = self._settings.any_on

    @property
    def takes_contexts(self) -> bool:
        """Whether callers' spans mean anything."""
        return self.config.mode is TraceMode.OPENTELEMETRY

    def begin(self, model_name: str, context: SpanContext | None = None) -> Trace | None:
        """A request has come; its trace, entered for the front end, if it is to be traced.

        Args:
            context: the caller's span.
        """
        setting = self._settings.of(model_name)
        if not (context is not None and self.takes_contexts and setting.notes):
            context = None
            if not setting.sample():
                return None
        setting.open += 1
        trace = Trace(setting, self._ids.__next__, self._complete, context=context, identities=self._identities)
        trace.enter()
        return trace

    def forget(self, model_name: str, trace: Trace | None) -> None:
        """The request, for which `begin` gave this, was not taken, and will come again: as if it had not come."""
        if trace is None:
            self._settings.of(model_name).give_back(was_sampled=False)
            return
        trace.setting.open -= 1
        if trace.context is None:
            trace.setting.give_back(was_sampled=True)

    def setting(self, model_name: str = "") -> TraceSetting:
        """The setting that holds for a model; for no name, the server's."""
        return self._settings.of(model_name)

    def change(self, change: SettingsChange, model_name: str = "") -> None:
        """Change the setting of a model, or, for no name, the server's.

        Raises:
            InvalidArgumentError: it could not trace with that; nothing is changed.
        """
        self._settings.change(model_name, change)
        if self.takes_contexts and isinstance(change.level, TraceLevel) and change.level & TraceLevel.TENSORS:
            logger.error("%s", NO_TENSORS)
        self.active = self._settings.any_on

    def close(self) -> None:
        """Take no more traces."""
        self.active = False
        self._settings.retire_all()

    def _complete(self, trace: Trace) -> None:
        trace.setting.open -= 1
        self._sink.collect(trace)

    def __repr__(self) -> str:
        return f"<Tracer {self.config.mode.value}, {'active' if self.active else 'idle'}: {self._settings.of('')}>"
