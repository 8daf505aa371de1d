"""Compressed messages: any that a client may send, and none that it should not."""

from __future__ import annotations

import gzip
import os
import tracemalloc
import zlib

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from trireme.api.grpc.compression import (
    LARGE_BYTES,
    CompressionLevel,
    choose,
    compress,
    decompress,
    decompress_small,
    packed,
    unpacked,
)
from trireme.api.grpc.framing import INT32_MAX

BOTH = ("identity", "deflate", "gzip")


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
@pytest.mark.parametrize("size", [0, 1, 1000, 10_000_000])
async def test_what_is_packed_can_be_unpacked(algorithm: str, size: int) -> None:
    message = bytes(size)
    flag, length, *rest = (
        (parts := b"".join(await packed(message, algorithm)))[0],
        int.from_bytes(parts[1:5]),
        parts[5:],
    )
    assert length == len(rest[0])
    plain = await unpacked(rest[0], algorithm, INT32_MAX) if flag else rest[0]
    assert plain == message
    assert flag == (size >= 1000)


@pytest.mark.parametrize("size", [100, LARGE_BYTES])
async def test_what_gets_no_smaller_is_sent_as_it_is(size: int) -> None:
    message = os.urandom(size)
    prefix, payload = await packed(message, "gzip")
    assert (prefix[0], payload) == (0, message)
    assert compress(message, "deflate") is None


def test_formats_are_gzip_and_zlib() -> None:
    """As gRPC names them: deflate is zlib's format."""
    assert decompress(gzip.compress(b"abc"), "gzip", 3) == b"abc"
    assert decompress(zlib.compress(b"abc"), "deflate", 3) == b"abc"
    assert gzip.decompress(compress(bytes(1000), "gzip") or b"") == bytes(1000)
    assert zlib.decompress(compress(bytes(1000), "deflate") or b"") == bytes(1000)


@pytest.mark.parametrize(
    "payload",
    [b"", b"rubbish", gzip.compress(b"abc")[:-3], gzip.compress(b"abc") + b"more", zlib.compress(b"abc")],
    ids=["empty", "rubbish", "cut off", "more behind it", "the other format"],
)
@pytest.mark.parametrize("unpack", [decompress, decompress_small])
def test_what_the_algorithm_has_not_made(payload: bytes, unpack: object) -> None:
    assert callable(unpack)
    with pytest.raises(GRPCError) as caught:
        unpack(payload, "gzip", INT32_MAX)
    assert caught.value.status is Status.INTERNAL
    assert caught.value.message == "Unexpected error decompressing data for algorithm gzip"


@pytest.mark.parametrize("algorithm", ["identity", ""])
def test_packed_without_saying_how(algorithm: str) -> None:
    with pytest.raises(GRPCError, match="names no compression") as caught:
        decompress(gzip.compress(b"abc"), algorithm, INT32_MAX)
    assert caught.value.status is Status.INTERNAL


def test_bombs_are_defused_at_the_limit() -> None:
    """A message that unpacks to a gigabyte costs the limit, and is refused."""
    limit = 1 << 20
    packer = zlib.compressobj(9)
    bomb = b"".join([packer.compress(bytes(1 << 24)) for _ in range(64)]) + packer.flush()
    tracemalloc.start()
    try:
        with pytest.raises(GRPCError, match=rf"larger than max \({limit + 1} vs. {limit}\)") as caught:
            decompress(bomb, "deflate", limit)
        assert tracemalloc.get_traced_memory()[1] < 4 * limit
    finally:
        tracemalloc.stop()
    assert caught.value.status is Status.RESOURCE_EXHAUSTED


def test_small_messages_that_grow_large_are_left_to_a_thread() -> None:
    bomb = zlib.compress(bytes(2 << 20))
    assert len(bomb) < LARGE_BYTES
    assert decompress_small(bomb, "deflate", INT32_MAX) is None
    assert decompress_small(os.urandom(LARGE_BYTES), "deflate", INT32_MAX) is None
    with pytest.raises(GRPCError) as caught:
        decompress_small(bomb, "deflate", 1000)
    assert caught.value.status is Status.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("level", "accepted", "chosen"),
    [
        (CompressionLevel.NONE, BOTH, "identity"),
        (CompressionLevel.LOW, BOTH, "gzip"),
        (CompressionLevel.MEDIUM, BOTH, "deflate"),
        (CompressionLevel.HIGH, BOTH, "deflate"),
        (CompressionLevel.HIGH, ("gzip",), "gzip"),
        (CompressionLevel.LOW, ("deflate",), "deflate"),
        (CompressionLevel.LOW, ("identity", "snappy"), "identity"),
        (CompressionLevel.HIGH, (), "identity"),
    ],
)
def test_the_level_picks_the_algorithm(level: CompressionLevel, accepted: tuple[str, ...], chosen: str) -> None:
    """As Triton's server was seen to do for high, and gRPC's rules say for the others."""
    assert choose(level, accepted) == chosen
