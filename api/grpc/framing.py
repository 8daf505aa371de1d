"""Messages in a stream of bytes: a flag, a length, and as many bytes (gRPC over HTTP/2, Length-Prefixed-Message).

Rule 1: Nothing is taken apart before it is asked for. What lies here waiting has not been used up, so that flow control
        stops a client that sends faster than its messages are wanted, and thousands of empty messages cost no more than
        their bytes.
Rule 2: A message that came in one piece is a slice of that piece. Any other is collected in a buffer of its announced
        size, which is made when the reader has found room for it (`announced_bytes`, `collect`). Until then what comes
        is kept as it is.
Rule 3: What breaks the format, or is too large, is an error at that message; the ones before it are still handed out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ...actors.offload import body_memory
from ...engine.tensor import Buffer

PREFIX_BYTES = 5
INT32_MAX = (1 << 31) - 1

_COPIED_BYTES = 4096
"""Messages up to this size are copied out of their piece, which is cheaper than a view, and lets the piece go."""

PROMPT_BYTES = 4096
"""Messages up to this size are collected without asking for room."""

_SHOWN_BYTES = 1024


class Framed(NamedTuple):
    """A complete message as it was sent."""

    compressed: bool
    payload: Buffer


prefix: Callable[[bool, int], bytes] = struct.Struct(">?I").pack
"""What stands before a message: whether it is compressed, and its length."""


class MessageReader:
    """Takes the bytes of one stream in pieces of any size, and gives its messages.

    Args:
        memory: makes that of a large message.

    Attributes:
        announced_bytes: after a `next` that gave nothing: the size of the message that has begun, if `collect` is to be
            called before the rest of it is let come; else 0.
    """

    __slots__ = (
        "_at",
        "_buffer",
        "_compressed",
        "_filled",
        "_memory",
        "_piece",
        "_target",
        "announced_bytes",
        "limit_bytes",
    )

    def __init__(self, limit_bytes: int, memory: Callable[[int], memoryview] = body_memory) -> None:
        self.limit_bytes = limit_bytes
        self._memory = memory
        self._piece: bytes = b""
        self._at = 0
        self._buffer = bytearray()
        self._target: memoryview | None = None
        self._filled = 0
        self._compressed = False
        self.announced_bytes = 0

    @property
    def is_empty(self) -> bool:
        """Whether all that came has been handed out: if the stream ends now, it ends between two messages."""
        return self._target is None and not self._buffer and self._at == len(self._piece)

    @property
    def beginning(self) -> bytes:
        """What has come of the message that `announced_bytes` tells of, or the first part of that; nothing if it is
        compressed."""
        return b"" if self._compressed else bytes(self._buffer[PREFIX_BYTES : PREFIX_BYTES + _SHOWN_BYTES])

    @property
    def waiting_bytes(self) -> int:
        """Bytes that have come and are not part of the message that is being collected."""
        return len(self._buffer) + len(self._piece) - self._at

    @property
    def collected_bytes(self) -> int:
        """How much has come of the message that is being collected."""
        return 0 if self._target is None else self._filled

    @property
    def is_collecting(self) -> bool:
        """Whether `next` has begun a message that is not complete: it will give nothing yet."""
        return self._target is not None and self._filled < len(self._target)

    @property
    def landing(self) -> memoryview | None:
        """Where the rest of the message that is being collected goes; None if it is complete, or none is collected."""
        return self._target[self._filled :] if self._target is not None and self.is_collecting else None

    def feed(self, piece: bytes | memoryview) -> None:
        """The next bytes; a view if they are at the beginning of `landing` already."""
        target = self._target
        if type(piece) is memoryview:
            self._filled += len(piece)
            return
        if target is not None:
            missing = len(target) - self._filled
            if missing:
                taken = piece[:missing]
                target[self._filled : self._filled + len(taken)] = taken
                self._filled += len(taken)
                piece = piece[len(taken) :]
        if self._at == len(self._piece) and not self._buffer:
            self._piece = piece
            self._at = 0
        else:
            self._store()
            self._buffer += piece

    def next(self) -> Framed | None:
        """The next message; None when more has to come first.

        Raises:
            GRPCError: INTERNAL, an unknown flag; RESOURCE_EXHAUSTED, a message above the limit.
        """
        if self._target is not None:
            return self._collected(self._target)
        piece, at = self._piece, self._at
        size = len(piece) - at
        if not self._buffer and size >= PREFIX_BYTES:
            length = self._length(piece[at : at + PREFIX_BYTES])
            end = at + PREFIX_BYTES + length
            if end <= len(piece):
                start = at + PREFIX_BYTES
                payload = piece[start:end] if length <= _COPIED_BYTES else memoryview(piece)[start:end]
                self._at = end
                if end == len(piece):
                    self._piece = b""
                    self._at = 0
                return Framed(self._compressed, payload)
        self._store()
        return self._from_buffer()

    def _store(self) -> None:
        """Moves what is left of the piece to the buffer."""
        if self._at < len(self._piece):
            self._buffer += memoryview(self._piece)[self._at :]
        self._piece = b""
        self._at = 0

    def _from_buffer(self) -> Framed | None:
        buffer = self._buffer
        if len(buffer) < PREFIX_BYTES:
            return None
        length = self._length(buffer[:PREFIX_BYTES])
        end = PREFIX_BYTES + length
        if end <= len(buffer):
            payload = bytes(memoryview(buffer)[PREFIX_BYTES:end])
            del buffer[:end]
            self.announced_bytes = 0
            return Framed(self._compressed, payload)
        self.announced_bytes = length
        if length <= PROMPT_BYTES:
            self.collect()
        return None

    def collect(self) -> None:
        buffer = self._buffer
        target = self._memory(self.announced_bytes)
        size = self._filled = min(len(buffer) - PREFIX_BYTES, len(target))
        target[:size] = memoryview(buffer)[PREFIX_BYTES : PREFIX_BYTES + size]
        self._target = target
        self._buffer = buffer[PREFIX_BYTES + size :]
        self.announced_bytes = 0

    def _collected(self, target: memoryview) -> Framed | None:
        if self._filled < len(target):
            return None
        self._target = None
        return Framed(self._compressed, target)

    def _length(self, head: bytes | bytearray) -> int:
        """Reads a prefix; remembers its flag."""
        flag = head[0]
        if flag > 1:
            raise GRPCError(Status.INTERNAL, f"Message has an invalid compressed flag: {flag}, expected 0 or 1")
        length = int.from_bytes(head[1:], "big")
        if length > self.limit_bytes:
            raise too_large(length, self.limit_bytes)
        self._compressed = flag == 1
        return length


def too_large(length: int, limit_bytes: int) -> GRPCError:
    """What gRPC says to a message of `length` bytes that exceeds the limit."""
    return GRPCError(Status.RESOURCE_EXHAUSTED, f"Received message larger than max ({length} vs. {limit_bytes})")
