"""Compressed messages: what clients may send, and how responses are packed (grpc.md §8).

What `ALGORITHMS` names, clients may always use. Responses are packed when the server has a level, and the client takes
an algorithm that the level may choose. As in gRPC's own servers, the level only picks among the algorithms, and a
message that packing does not make smaller is sent as it is.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Collection

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ...engine.tensor import Buffer
from .framing import prefix, too_large

IDENTITY = "identity"
ALGORITHMS = (IDENTITY, "deflate", "gzip")

LARGE_BYTES = 65_536
"""Messages from this size on are packed and unpacked on a thread: zlib works without the interpreter's lock, so that
other calls go on meanwhile."""

_PROMPT_BYTES = 1 << 20
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


def compress(payload: Buffer, algorithm: str) -> bytes | None:
    """`payload`, packed; None if that would not make it smaller."""
    packer = zlib.compressobj(wbits=_WINDOW_BITS[algorithm])
    packed = packer.compress(payload) + packer.flush()
    return packed if len(packed) < len(payload) else None


def decompress(payload: Buffer, algorithm: str, limit_bytes: int) -> bytes:
    """`payload`, unpacked. Never unpacks more than `limit_bytes` + 1.

    Raises:
        GRPCError: INTERNAL, the client has named no algorithm, or the payload was not made by it; RESOURCE_EXHAUSTED,
            what comes out exceeds the limit.
    """
    bits = _WINDOW_BITS.get(algorithm)
    if bits is None:
        raise GRPCError(Status.INTERNAL, "Message is compressed, but grpc-encoding names no compression")
    unpacker = zlib.decompressobj(bits)
    try:
        plain = unpacker.decompress(payload, limit_bytes + 1)
    except zlib.error as error:
        raise _undecodable(algorithm) from error
    if len(plain) > limit_bytes:
        raise too_large(len(plain), limit_bytes)
    if not unpacker.eof or unpacker.unused_data:
        raise _undecodable(algorithm)
    return plain


def decompress_small(payload: Buffer, algorithm: str, limit_bytes: int) -> bytes | None:
    """As `decompress`, for payloads that are soon done with; None for one that takes a thread.

    A small payload can unpack to a thousand times its size. So no more than a megabyte is tried here.
    """
    if len(payload) >= LARGE_BYTES:
        return None
    if limit_bytes <= _PROMPT_BYTES:
        return decompress(payload, algorithm, limit_bytes)
    try:
        return decompress(payload, algorithm, _PROMPT_BYTES)
    except GRPCError as error:
        if error.status is Status.RESOURCE_EXHAUSTED:
            return None
        raise


async def unpacked(payload: Buffer, algorithm: str, limit_bytes: int) -> bytes:
    """As `decompress`, on a thread if it takes one."""
    plain = decompress_small(payload, algorithm, limit_bytes)
    if plain is None:
        plain = await trio.to_thread.run_sync(decompress, payload, algorithm, limit_bytes)
    return plain


def packed_small(payload: Buffer, algorithm: str) -> list[Buffer]:
    """A message with its prefix, packed if that makes it smaller."""
    return _framed(payload, compress(payload, algorithm))


async def packed(payload: Buffer, algorithm: str) -> list[Buffer]:
    """As `packed_small`, on a thread if it takes one."""
    if len(payload) < LARGE_BYTES:
        return packed_small(payload, algorithm)
    return _framed(payload, await trio.to_thread.run_sync(compress, payload, algorithm))


def _framed(payload: Buffer, shorter: bytes | None) -> list[Buffer]:
    return [prefix(len(payload)), payload] if shorter is None else [prefix(len(shorter), True), shorter]


def _undecodable(algorithm: str) -> GRPCError:
    return GRPCError(Status.INTERNAL, f"Unexpected error decompressing data for algorithm {algorithm}")
