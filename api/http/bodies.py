"""The bodies of requests: what may arrive, how it is read with room for it taken beforehand, and what JSON it holds.

What may arrive is decided from a request's head, before a byte of its body is read:
 1. What a request's route and headers allow is bounded by a flag: JSON, raw and compressed bodies, and load requests by
    ``--http-max-input-size``, other calls that change or ask about the server by ``--http-max-management-size``.
 2. An inference request with binary tensors is bounded by ``--max-inflight-bytes`` alone, as its tensors are not
    bounded in Triton (docs/reference/http.md#request-bodies); its JSON, whose length its head says, as all JSON.
 3. Nothing larger than ``--max-inflight-bytes`` is read.
 4. What is announced to be larger is refused at once, what turns out to be larger as soon as it does: 413.

How a body is read that does not come in one small piece:
 5. A body of announced length takes room for all of it, or waits, before its first byte is asked for. A small one needs
    none.
 6. One of unknown length takes room for what it has and for one more read, before each read. The first read is free.
 7. While room is waited for nothing is read, so the client is slowed down by TCP, or by its HTTP/2 window.
 8. A body that holds more room than its client's address may, while others wait for some, has to be there soon.
 9. A large body is put together without a second copy of all of it, and not in one piece of work.
10. What a body becomes takes room as well, before it is made: what it unpacks to, and what the values of its JSON take.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import trio

from ...engine.admission.shares import HURRY_S
from ...engine.errors import RefusalReason
from ...engine.tensor import Buffer, memory_for
from .exchange import Answer, BodyKind, Headers, HttpOptions, json_refusal
from .json import reader as json_reader
from .json.reader import ON_LOOP_BYTES, read_text

if TYPE_CHECKING:
    from ...actors.budget import Lease
    from .exchange import Context, HttpRequest


UNCOUNTED_BYTES = 65_536
"""A body up to this size may arrive before the server-wide budget counts it: as much as one read takes anyway."""

UNCOUNTED_BYTES_OF_STREAM = 1024
"""The same where a connection has a hundred bodies arriving at a time, as over HTTP/2."""


@dataclass(frozen=True, slots=True)
class BodyTerms:
    """On which terms a body may arrive.

    Attributes:
        length: in bytes, as announced; None if it is not.
        limit_bytes: most that it may have.
        flag: which sets that.
        waited_for: the client sends the body when it is told to (``Expect: 100-continue``).
    """

    length: int | None
    limit_bytes: int
    flag: str
    waited_for: bool = False

    @property
    def arrives(self) -> bool:
        """It is large or slow enough for the request to be looked at before the body is there."""
        return self.waited_for or self.length is None or self.length > UNCOUNTED_BYTES

    def refusal(self) -> Answer | None:
        """What to answer at once; None if the body may come."""
        if self.length is None or self.length <= self.limit_bytes:
            return None
        return too_large(self.length, self.limit_bytes, self.flag)


def too_large(nbytes: int | None, limit_bytes: int, flag: str) -> Answer:
    """What to answer to a body that has more bytes than `flag` lets it have; `nbytes` if it is known how many."""
    size = "" if nbytes is None else f"of {nbytes} bytes "
    text = f"request size {size}exceeds the maximum allowed input size of {limit_bytes} bytes. "
    return json_refusal(413, f"{text}Use --{flag} to increase the limit.")


def body_terms(kind: BodyKind, headers: Headers, options: HttpOptions, inflight_bytes: int) -> BodyTerms:
    """The terms for one request, by its headers with lower-case names; `inflight_bytes` is ``--max-inflight-bytes``."""
    length = json_length = None
    compressed = waited_for = False
    for name, value in headers:
        if name == b"content-length":
            length = _number(value)
        elif name == b"inference-header-content-length":
            json_length = _number(value)
        elif name == b"content-encoding":
            compressed = value not in (b"", b"identity")
        elif name == b"expect":
            waited_for = value.lower() == b"100-continue"
    most = max(inflight_bytes, UNCOUNTED_BYTES)  # a small body is in memory before it is asked for
    limit_bytes, flag = options.max_input_bytes, "http-max-input-size"
    if kind is BodyKind.MANAGEMENT:
        limit_bytes, flag = options.max_management_bytes, "http-max-management-size"
    elif kind is BodyKind.TENSORS and json_length and json_length <= limit_bytes and not compressed:
        limit_bytes, flag = most, "max-inflight-bytes"
    if limit_bytes > most:
        limit_bytes, flag = most, "max-inflight-bytes"
    return BodyTerms(length, limit_bytes, flag, waited_for)


def _number(text: bytes) -> int | None:
    """A length; None if `text` is none."""
    digits = text.strip()
    if not digits.isdigit():
        return None
    return int(digits) if len(digits) < 100 else 10**100  # int() refuses thousands of digits; no limit is so high


_TOO_SLOW = "the request body holds more memory than one address may, and others wait for some; it has to arrive faster"

_STEP_BYTES = 1 << 20
"""So much is copied before others get their turn."""


class BodyRefusedError(Exception):
    """The body has more bytes than it may have, or takes more time; `answer` is for the client."""

    def __init__(self, answer: Answer, reason: RefusalReason) -> None:
        super().__init__("the body is refused")
        self.answer = answer
        self.reason = reason


@dataclass(slots=True, eq=False)
class BodyReader:
    """Reads one body.

    Args:
        read_piece: see `Exchange.read`.
        make_lease: called at most once, if the body needs room; its owner closes it.
        uncounted_bytes: a body of announced length that is no larger needs none.
    """

    read_piece: Callable[[], Awaitable[tuple[Buffer, bool]]]
    terms: BodyTerms
    make_lease: Callable[[], Lease]
    uncounted_bytes: int = UNCOUNTED_BYTES
    _parts: list[Buffer] = field(default_factory=list, init=False)
    _total: int = field(default=0, init=False)
    _scope: trio.CancelScope = field(default_factory=trio.CancelScope, init=False)
    _lease: Lease | None = field(default=None, init=False)

    async def read(self) -> Buffer:
        """The whole body.

        Raises:
            BodyRefusedError: see there.
        """
        length = self.terms.length
        if length is not None and length <= self.uncounted_bytes:
            return await self._read()
        with self._scope:
            body = await self._read()
            if self._lease is not None:
                self._lease.arrived()
            return body
        raise BodyRefusedError(json_refusal(408, _TOO_SLOW), RefusalReason.BUDGET)

    def _hurry(self) -> None:
        self._scope.deadline = min(self._scope.deadline, trio.current_time() + HURRY_S)

    async def _read(self) -> Buffer:
        length = self.terms.length
        if length is not None and length > self.uncounted_bytes:
            await self._hold(length)
        while True:
            piece, more = await self.read_piece()
            self._total += len(piece)
            if self._total > self.terms.limit_bytes:
                size = None if more else self._total
                answer = too_large(size, self.terms.limit_bytes, self.terms.flag)
                raise BodyRefusedError(answer, RefusalReason.TOO_LARGE)
            if len(piece):
                self._parts.append(piece)
            if not more:
                if self._total > UNCOUNTED_BYTES:
                    await self._hold(self._total)
                return await self._put_together()
            if length is None or self._total > length:
                await self._hold(self._total + UNCOUNTED_BYTES)

    async def _hold(self, nbytes: int) -> None:
        if self._lease is None:
            self._lease = self.make_lease()
        more = nbytes - self._lease.nbytes
        if more > 0:
            await self._lease.grow(more)
            self._lease.watch(self._hurry)

    async def _put_together(self) -> Buffer:
        parts = self._parts
        if len(parts) == 1:
            return parts[0]
        if self._total <= UNCOUNTED_BYTES:
            return b"".join(parts)
        whole = memory_for(self._total)
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


async def read_json(context: Context, request: HttpRequest) -> Any:
    """The value that the body holds.

    Raises:
        InternalError: it is not JSON.
        InvalidArgumentError: it is nested too deeply, or has too many values.
    """
    body = memoryview(request.body)
    max_values = context.options.max_json_values
    if len(body) <= min(ON_LOOP_BYTES, max_values):
        return json_reader.parse(body)
    return await context.server.offload.in_pieces(read_text, body, max_values)
