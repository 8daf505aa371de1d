"""Traces of requests: which ones are taken, what is noted, and where they go (docs/reference/traces.md)."""

from .record import Activity, Trace
from .settings import TraceConfig, TraceLevel, TraceMode
from .tracer import Tracer

__all__ = ["Activity", "Trace", "TraceConfig", "TraceLevel", "TraceMode", "Tracer"]
