"""The body of one HTTP/2 request, between the frames that bring it and the application that asks for it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import trio

from ....engine.tensor import Buffer
from ...sockets.limits import BodyPace, Limits

READ_BYTES = 65_536


class RequestBody:
    """The body of one request.

    Rule 1: Only what the app has asked for is consumed. So the stream's window closes when it does not ask, and the
            client waits.
    Rule 2: A body of announced length comes whole; if it is larger than one read, it is received into a buffer of its
            size. The app has seen how long it is before it asks. Any other body comes as it arrives.
    Rule 3: A body that is not as long as its content-length is malformed (RFC 9113 §8.1.1).

    Args:
        length: the announced one; None if there is none.
        consumed: told how many received bytes the client may send anew.

    Attributes:
        unconsumed: bytes that have come and have not been asked for.
        complete: all of it has arrived.
    """

    def __init__(self, length: int | None, limits: Limits, consumed: Callable[[int], None]) -> None:
        self._length = length
        self._limits = limits
        self._consumed = consumed
        self._news = trio.lowlevel.ParkingLot()
        self._pieces: list[Buffer] = []
        self._buffer: memoryview | None = None  # of the piece that is being received
        self._filled = 0
        self.unconsumed = 0
        self._arrived = 0
        self._given = 0
        self.complete = False
        self._over = False
        self._dropping = False
        self._pace: BodyPace | None = None
        self._waits_since_s: float | None = None  # when something last came, while the app waits

    # ---- from the client ----

    def add(self, data: bytes) -> bool:
        """The next bytes. False: there are more than announced."""
        self._arrived += len(data)
        self.unconsumed += len(data)
        if self._length is not None and self._arrived > self._length:
            return False
        if self._buffer is not None:
            self._fill(data)
        elif data:
            self._pieces.append(data)
        if self._waits_since_s is not None:
            self._note_progress(len(data))
            self._consume()
            if self._length is None:
                self._news.unpark_all()
        elif self._dropping:
            self._news.unpark_all()
        return True

    def end(self) -> bool:
        """The body is complete. False: it is shorter than announced."""
        if self._length is not None and self._arrived != self._length:
            return False  # who waits is cancelled, and is not to see what has come
        self.complete = True
        self._news.unpark_all()
        return True

    def _fill(self, data: Buffer) -> None:
        assert self._buffer is not None, "only what is received into a buffer"
        end = self._filled + len(data)
        self._buffer[self._filled : end] = data
        self._filled = end

    def _consume(self) -> None:
        nbytes, self.unconsumed = self.unconsumed, 0
        if nbytes:
            self._consumed(nbytes)

    def _note_progress(self, nbytes: int) -> None:
        assert self._pace is not None, "who waits has one"
        now_s = self._waits_since_s = trio.current_time()
        self._pace.arrived(nbytes, now_s)
        self._pace.wait(now_s)

    # ---- for the app ----

    async def next(self) -> tuple[Buffer, bool]:
        """The next piece, and whether more follows. After the last one it waits until it is cancelled."""
        if self._over:
            await trio.sleep_forever()
        length = self._length
        if length is not None and length > READ_BYTES and self._buffer is None:
            self._buffer = np.empty(length, np.uint8).data  # not zeroed: what is only announced costs no memory
            for piece in self._pieces:
                self._fill(piece)
            self._pieces.clear()
        self._consume()
        if not self._has_next():
            await self._wait()
        piece: Buffer
        if self._buffer is not None:
            piece, self._buffer = self._buffer, None
        else:
            piece = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            self._pieces.clear()
        self._given += len(piece)
        self._over = self.complete and self._given == self._arrived
        return piece, not self._over

    def _has_next(self) -> bool:
        return self.complete or (self._length is None and bool(self._pieces))

    async def _wait(self) -> None:
        if self._pace is None:
            self._pace = BodyPace(self._limits)
        now_s = self._waits_since_s = trio.current_time()
        self._pace.wait(now_s)
        try:
            while not self._has_next():
                await self._news.park()
        finally:
            self._waits_since_s = None
            self._pace.arrived(0, trio.current_time())

    async def drop(self, limit_bytes: int) -> None:
        """Waits for the end. What still comes is dropped; the client may send so many bytes of it."""
        self._buffer = None
        self._dropping = True
        while not self.complete:
            self._pieces.clear()
            if limit_bytes > 0:
                limit_bytes -= self.unconsumed
                self._consume()
            await self._news.park()

    def is_late(self, now_s: float) -> bool:
        """Whether the app has waited too long."""
        since_s = self._waits_since_s
        if since_s is None or self._pace is None:
            return False
        return now_s - since_s > self._limits.body_timeout_s or self._pace.is_slow(now_s)
