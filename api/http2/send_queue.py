"""What a stream still has to say."""

from __future__ import annotations

from collections.abc import Sequence

from ...engine.tensor import Buffer


class SendQueue:
    """Parts of a stream's data that wait for windows, then perhaps its end.

    Attributes:
        pending: bytes of data that wait.
        begun: bytes of the first part that do not wait any more; they are in memory as long as the rest of it is.
        ending: the stream ends after the data, with `trailers` or, if there are none, with the last DATA frame.
    """

    __slots__ = ("_first", "_parts", "begun", "ending", "pending", "trailers")

    def __init__(self) -> None:
        self._parts: list[memoryview] = []
        self._first = 0
        self.pending = 0
        self.begun = 0
        self.ending = False
        self.trailers: bytes | None = None

    def add(self, parts: Sequence[Buffer]) -> None:
        for part in parts:
            if len(part):
                self._parts.append(memoryview(part))
                self.pending += len(part)

    def take(self, size: int, out: list[Buffer]) -> None:
        """Moves the first `size` bytes to `out`; at least as many must be pending."""
        self.pending -= size
        while size:
            part = self._parts[self._first]
            if len(part) > size:
                out.append(part[:size])
                self._parts[self._first] = part[size:]
                self.begun += size
                return
            out.append(part)
            size -= len(part)
            self.begun = 0
            self._first += 1
        if not self.pending:
            self._parts.clear()
            self._first = 0
