"""`InferenceTrace`: handed from a request to those that a model makes while serving it
(docs/reference/python-backend.md#requests)."""

from __future__ import annotations


class InferenceTrace:
    """The trace that a request belongs to; of nothing if made by hand."""

    __slots__ = ("_context", "_key")

    def __init__(self, context: str | None = None, key: int | None = None) -> None:
        self._context = context
        self._key = key

    def get_context(self) -> str | None:
        """The OpenTelemetry context as JSON; None without a trace."""
        return self._context
