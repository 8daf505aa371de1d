"""What a function may learn of the request that it answers, besides its inputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

__trireme_hides_frames__ = True

_STARTS, _ENDS = 1, 2
"""TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and …_END"""


class RequestContext:
    """One request. A function that has a parameter with this annotation is given one; a function that is called for
    the rows of several requests has a ``list[RequestContext]``, one for each request, in the order of the rows.

    What a test calls is given one that the test makes.

    Attributes:
        request_id: as the client has chosen it; may be empty.
        correlation_id: of the sequence that the request belongs to, a number or a text; 0 if there is none.
        sequence_start: it is the first one of its sequence.
        sequence_end: it is the last one.
        parameters: of the request, by name: bool, int and str.
        rows: how many rows of the batch are this request's; 0 for a function without batches.
    """

    __slots__ = ("_left", "correlation_id", "parameters", "request_id", "rows", "sequence_end", "sequence_start")

    def __init__(
        self,
        *,
        request_id: str = "",
        correlation_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        parameters: Mapping[str, Any] | None = None,
        rows: int = 0,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        self.request_id = request_id
        self.correlation_id = correlation_id
        self.sequence_start = sequence_start
        self.sequence_end = sequence_end
        self.parameters = parameters or {}
        self.rows = rows
        self._left = cancelled

    @property
    def cancelled(self) -> bool:
        """Whether the client has left, or given the request up, by now. Its answer goes nowhere."""
        return self._left is not None and self._left()

    def __repr__(self) -> str:
        shown = (name for name in self.__slots__ if name != "_left")
        return f"<RequestContext {' '.join(f'{name}={getattr(self, name)!r}' for name in shown)}>"


def context_of(request: Any, rows: int) -> RequestContext:
    """That of a request of ``triton_python_backend_utils``."""
    flags = request.flags()
    return RequestContext(
        request_id=request.request_id(),
        correlation_id=request.correlation_id(),
        sequence_start=bool(flags & _STARTS),
        sequence_end=bool(flags & _ENDS),
        parameters=json.loads(request.parameters() or "{}"),
        rows=rows,
        cancelled=request.is_cancelled,
    )
