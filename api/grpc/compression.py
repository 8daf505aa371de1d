"""Compressed messages: what clients may send, and how responses are packed (docs/reference/grpc.md#compression).

What `ALGORITHMS` names, clients may always use. Responses are packed when the server has a level, and the client takes
an algorithm that the level may choose. As in gRPC's own servers, the level only picks among the algorithms, and a
message that packing does not make smaller is sent as it is.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ...engine.tensor import Buffer, memory_for
from .framing import INT32_MAX, prefix, too_large

if TYPE_CHECKING:
    from ...actors.budget import Lease
    from ...actors.offload import Offload

IDENTITY = "identity"
ALGORITHMS = (IDENTITY, "deflate", "gzip")

LARGE_BYTES = 65_536
"""Messages from this size on are packed and unpacked on a thread: zlib works without the interpreter's lock, so that
other calls go on meanwhile."""

STEP_BYTES = 1 << 20
"""What one step unpacks at most."""

_FEED_BYTES = 1 << 16
_PROMPT_BYTES = 1 << 18
_WINDOW_BITS = {"deflate": zlib.MAX_WBITS, "gzip": 16 + zlib.MAX_WBITS}


class CompressionLevel(enum.Enum):
    """``--grpc-infer-response-compression-level``."""

    NONE = "none"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


_PREFERENCES = {
    CompressionLevel.NONE: (),
    CompressionLevel.LOW: ("gzip", "deflate"),
    CompressionLevel.MEDIUM: ("deflate", "gzip"),
    CompressionLevel.HIGH: ("deflate", "gzip"),
}


def choose(level: CompressionLevel, accepted: Collection[str]) -> str:
    """The algorithm for a response to a client that accepts these; `IDENTITY` for none."""
    for algorithm in _PREFERENCES[level]:
        if algorithm in accepted:
            return algorithm
    return IDENTITY


RATIO_FROM_BYTES = 16 << 20
"""A smaller message may be packed as well as can be: a tensor of zeros is, by 1,029 to 1."""


class Unpacking:
    """One message, unpacked step by step, so that no step takes long, and room can be found before each.

    Args:
        max_ratio: ``--grpc-max-compression-ratio``: how many times as large as what was sent; 0 for any. It counts from
            `RATIO_FROM_BYTES` on.

    Attributes:
        nbytes: what has come out so far.

    Raises:
        GRPCError: INTERNAL, the client has named no algorithm.
    """

    __slots__ = ("_algorithm", "_max_bytes", "_max_ratio", "_pieces", "_rest", "_size", "_unpacker", "nbytes")

    def __init__(self, payload: Buffer, algorithm: str, max_bytes: int = INT32_MAX, max_ratio: int = 1000) -> None:
        bits = _WINDOW_BITS.get(algorithm)
        if bits is None:
            raise GRPCError(Status.INTERNAL, "Message is compressed, but grpc-encoding names no compression")
        self._algorithm = algorithm
        self._max_bytes = max_bytes
        self._max_ratio = max_ratio
        self._size = len(payload)
        self._rest = memoryview(payload)
        self._unpacker = zlib.decompressobj(bits)
        self._pieces: list[bytes] = []
        self.nbytes = 0

    def step(self) -> bool:
        """Unpack up to `STEP_BYTES` more. Whether that was all.

        Raises:
            GRPCError: INTERNAL, the payload was not made by the algorithm; RESOURCE_EXHAUSTED, a limit is exceeded.
        """
        unpacker = self._unpacker
        data: Buffer = unpacker.unconsumed_tail
        if not data:  # a little at a time, since the decompressor copies what it does not use
            data, self._rest = self._rest[:_FEED_BYTES], self._rest[_FEED_BYTES:]
        try:
            piece = unpacker.decompress(data, min(STEP_BYTES, self._max_bytes + 1 - self.nbytes))
        except zlib.error as error:
            raise _undecodable(self._algorithm) from error
        if piece:
            self._pieces.append(piece)
            self.nbytes += len(piece)
            self._check()
        if unpacker.eof:
            if unpacker.unused_data or self._rest:
                raise _undecodable(self._algorithm)
            return True
        if not data and not piece:
            raise _undecodable(self._algorithm)
        return False

    def step_promptly(self) -> bool:
        """Unpack a message that is soon done with. Whether that was all. Raises as `step`."""
        while self.nbytes < _PROMPT_BYTES:
            if self.step():
                return True
        return False

    def _check(self) -> None:
        if self.nbytes > self._max_bytes:
            raise too_large(self.nbytes, self._max_bytes)
        if self._max_ratio and self.nbytes > RATIO_FROM_BYTES:
            taken = self._size - len(self._rest) - len(self._unpacker.unconsumed_tail)
            if self.nbytes > taken * self._max_ratio:
                raise GRPCError(
                    Status.RESOURCE_EXHAUSTED,
                    f"Received message is compressed by more than {self._max_ratio} to 1, which is the most that "
                    "--grpc-max-compression-ratio allows",
                )

    def message(self) -> Buffer:
        """What has come out, put together; the pieces are gone then."""
        pieces, self._pieces = self._pieces, []
        if len(pieces) <= 1:
            return pieces[0] if pieces else b""
        joined = memory_for(self.nbytes)
        pieces.reverse()
        at = 0
        while pieces:
            piece = pieces.pop()
            joined[at : at + len(piece)] = piece
            at += len(piece)
        return joined


async def unpack(unpacking: Unpacking, lease: Lease, offload: Offload) -> Buffer:
    """Unpack the rest of a message on a thread. `lease` takes what comes out, before it is there. Raises GRPCError as
    `Unpacking.step`."""
    await lease.grow(unpacking.nbytes)
    done = False
    while not done:
        await lease.grow(STEP_BYTES)
        done = await offload(unpacking.step)
    return await offload(unpacking.message)


def packed_small(parts: Sequence[Buffer], algorithm: str) -> list[Buffer]:
    """The message that the parts are when put together, with its prefix, packed if that makes it smaller."""
    size = sum(map(len, parts))
    packer = zlib.compressobj(wbits=_WINDOW_BITS[algorithm])
    shorter = [packer.compress(part) for part in parts]
    shorter.append(packer.flush())
    packed_size = sum(map(len, shorter))
    return [prefix(False, size), *parts] if packed_size >= size else [prefix(True, packed_size), *filter(None, shorter)]


async def packed(parts: Sequence[Buffer], algorithm: str, offload: Offload) -> list[Buffer]:
    """As `packed_small`, on a thread if it takes one."""
    if sum(map(len, parts)) < LARGE_BYTES:
        return packed_small(parts, algorithm)
    return await offload(packed_small, parts, algorithm)


def _undecodable(algorithm: str) -> GRPCError:
    return GRPCError(Status.INTERNAL, f"Unexpected error decompressing data for algorithm {algorithm}")
