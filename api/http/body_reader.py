"""Reads the body of a request that does not come in one small piece, with room for it taken beforehand.

Rules:
 1. A body of announced length takes room for all of it, or waits, before its first byte is asked for. A small one needs
    none.
 2. One of unknown length takes room for what it has and for one more read, before each read. The first read is free.
 3. While room is waited for nothing is read, so the client is slowed down by TCP, or by its HTTP/2 window.
 4. A body that holds more room than its client's address may, while others wait for some, has to be there soon.
 5. A large body is put together without a second copy of all of it, and not in one piece of work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import trio

from ...actors.address_share import HURRY_S
from ...engine.tensor import Buffer
from .asgi import Receive
from .body_limits import UNCOUNTED_BYTES, BodyTerms, too_large
from .errors import error_body
from .exchange import JSON, Answer

if TYPE_CHECKING:
    from ...actors.lease import Lease

_TOO_SLOW = "the request body holds more memory than one address may, and others wait for some; it has to arrive faster"

_STEP_BYTES = 1 << 20
"""So much is copied before others get their turn."""


class BodyRefusedError(Exception):
    """The body has more bytes than it may have, or takes more time.

    Attributes:
        answer: for the client.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__("the body is refused")
        self.answer = answer


class BodyReader:
    """Reads one body.

    Args:
        make_lease: called at most once, if the body needs room.
        uncounted_bytes: a body of announced length that is no larger needs none.

    Attributes:
        lease: the room that has been taken; goes on with the request, or is closed.
    """

    __slots__ = ("_make_lease", "_parts", "_receive", "_scope", "_terms", "_total", "_uncounted_bytes", "lease")

    def __init__(
        self,
        receive: Receive,
        terms: BodyTerms,
        make_lease: Callable[[], Lease],
        uncounted_bytes: int = UNCOUNTED_BYTES,
    ) -> None:
        self._receive = receive
        self._terms = terms
        self._make_lease = make_lease
        self._uncounted_bytes = uncounted_bytes
        self._parts: list[Buffer] = []
        self._total = 0
        self._scope = trio.CancelScope()
        self.lease: Lease | None = None

    async def read(self) -> Buffer | None:
        """The whole body; None if the client left before its end.

        Raises:
            BodyRefusedError: see there.
        """
        length = self._terms.length
        if length is not None and length <= self._uncounted_bytes:
            return await self._read()
        with self._scope:
            body = await self._read()
            if self.lease is not None:
                self.lease.arrived()
            return body
        raise BodyRefusedError(Answer(408, JSON, error_body(_TOO_SLOW)))

    def _hurry(self) -> None:
        self._scope.deadline = min(self._scope.deadline, trio.current_time() + HURRY_S)

    async def _read(self) -> Buffer | None:
        length = self._terms.length
        if length is not None and length > self._uncounted_bytes:
            await self._hold(length)
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                return None
            piece: Buffer = message.get("body", b"")
            self._total += len(piece)
            complete = not message.get("more_body", False)
            if self._total > self._terms.limit_bytes:
                size = self._total if complete else None
                raise BodyRefusedError(too_large(size, self._terms.limit_bytes, self._terms.flag))
            if len(piece):
                self._parts.append(piece)
            if complete:
                if self._total > UNCOUNTED_BYTES:
                    await self._hold(self._total)
                return await self._put_together()
            if length is None or self._total > length:
                await self._hold(self._total + UNCOUNTED_BYTES)

    async def _hold(self, nbytes: int) -> None:
        if self.lease is None:
            self.lease = self._make_lease()
        more = nbytes - self.lease.nbytes
        if more > 0:
            await self.lease.grow(more)
            self.lease.watch(self._hurry)

    async def _put_together(self) -> Buffer:
        parts = self._parts
        if len(parts) == 1:
            return parts[0]
        if self._total <= UNCOUNTED_BYTES:
            return b"".join(parts)
        whole = np.empty(self._total, np.uint8).data
        filled = copied = 0
        parts.reverse()
        while parts:
            part = parts.pop()  # and with it its memory
            whole[filled : filled + len(part)] = memoryview(part).cast("B")
            filled += len(part)
            if filled - copied >= _STEP_BYTES:
                copied = filled
                await trio.lowlevel.checkpoint()
        return whole
