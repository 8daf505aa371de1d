"""Compressed messages: any that a client may send, and none that it should not."""

from __future__ import annotations

import gzip
import os
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any, cast

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from hypothesis import given
from hypothesis import strategies as st

from trireme.actors.budget import InflightBudget
from trireme.actors.offload import Offload
from trireme.api.grpc.compression import (
    LARGE_BYTES,
    RATIO_FROM_BYTES,
    STEP_BYTES,
    CompressionLevel,
    Unpacking,
    choose,
    packed,
    packed_small,
    unpack,
)

BOTH = ("identity", "deflate", "gzip")


OFFLOAD = Offload()


def unpacked(payload: bytes, algorithm: str = "gzip", **limits: int) -> bytes:
    unpacking = Unpacking(payload, algorithm, **limits)
    while not unpacking.step():
        pass
    return bytes(unpacking.message())


def refusal(payload: bytes, algorithm: str = "gzip", **limits: int) -> tuple[Status, str]:
    with pytest.raises(GRPCError) as caught:
        unpacked(payload, algorithm, **limits)
    return caught.value.status, caught.value.message or ""


def zeros(mebibytes: int, level: int = 9) -> bytes:
    packer = zlib.compressobj(level)
    return b"".join([packer.compress(bytes(1 << 20)) for _ in range(mebibytes)]) + packer.flush()


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
@pytest.mark.parametrize("sizes", [[], [0], [1], [500, 0, 500], [10_000_000, 7]])
async def test_what_is_packed_can_be_unpacked(algorithm: str, sizes: list[int]) -> None:
    pieces = [bytes(size) for size in sizes]
    message = b"".join(await packed(pieces, algorithm, OFFLOAD))
    flag, length, payload = message[0], int.from_bytes(message[1:5]), message[5:]
    assert length == len(payload)
    assert (unpacked(payload, algorithm) if flag else payload) == b"".join(pieces)
    assert flag == (sum(sizes) >= 1000)


@pytest.mark.parametrize("size", [100, LARGE_BYTES])
async def test_what_gets_no_smaller_is_sent_as_it_is(size: int) -> None:
    message = os.urandom(size)
    prefix, payload = await packed([message], "gzip", OFFLOAD)
    assert (prefix[0], payload) == (0, message)


def test_formats_are_gzip_and_zlib() -> None:
    """As gRPC names them: deflate is zlib's format."""
    assert unpacked(gzip.compress(b"abc"), "gzip") == b"abc"
    assert unpacked(zlib.compress(b"abc"), "deflate") == b"abc"
    for algorithm, unpack_it in (("gzip", gzip.decompress), ("deflate", zlib.decompress)):
        assert unpack_it(b"".join(packed_small([bytes(1000)], algorithm)[1:])) == bytes(1000)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"rubbish",
        gzip.compress(b"abc", mtime=0)[:-3],
        gzip.compress(b"abc", mtime=0) + b"more",
        zlib.compress(b"abc"),
    ],
    ids=["empty", "rubbish", "cut off", "more behind it", "the other format"],
)
def test_what_the_algorithm_has_not_made(payload: bytes) -> None:
    text = "Unexpected error decompressing data for algorithm gzip"
    assert refusal(payload) == (Status.INTERNAL, text)


@pytest.mark.parametrize("algorithm", ["identity", ""])
def test_packed_without_saying_how(algorithm: str) -> None:
    status, text = refusal(gzip.compress(b"abc"), algorithm)
    assert (status, text) == (Status.INTERNAL, "Message is compressed, but grpc-encoding names no compression")


def test_bombs_are_defused_at_the_limit() -> None:
    """A message that unpacks to a gigabyte costs the limit, and is refused."""
    limit = 1 << 20
    bomb = zeros(1024)
    tracemalloc.start()
    try:
        text = f"Received message larger than max ({limit + 1} vs. {limit})"
        assert refusal(bomb, "deflate", max_bytes=limit) == (Status.RESOURCE_EXHAUSTED, text)
        assert tracemalloc.get_traced_memory()[1] < 4 * limit
    finally:
        tracemalloc.stop()


def test_bombs_are_known_by_how_well_they_are_packed() -> None:
    """Small ones may be, as honest zeros are; a large one is refused long before the limit of its size."""
    small, large = RATIO_FROM_BYTES >> 20, 4 * RATIO_FROM_BYTES >> 20
    assert len(unpacked(zeros(small), "deflate")) == RATIO_FROM_BYTES
    tracemalloc.start()
    try:
        status, text = refusal(zeros(large), "deflate")
        assert tracemalloc.get_traced_memory()[1] < 1.5 * RATIO_FROM_BYTES
    finally:
        tracemalloc.stop()
    assert status is Status.RESOURCE_EXHAUSTED
    assert text.startswith("Received message is compressed by more than 1000 to 1, which is the most that --grpc-max-c")
    assert len(unpacked(zeros(large), "deflate", max_ratio=0)) == large << 20
    assert len(unpacked(zeros(large, 1), "deflate")) == large << 20  # packed by some 200 to 1


@given(st.binary(max_size=300), st.integers(1, 400))
def test_no_step_unpacks_much(pattern: bytes, times: int) -> None:
    """And all steps together unpack what was packed."""
    message = pattern * times * 20
    unpacking = Unpacking(zlib.compress(message), "deflate")
    seen = 0
    while not unpacking.step():
        assert unpacking.nbytes - seen <= STEP_BYTES
        seen = unpacking.nbytes
    assert unpacking.nbytes == len(message)
    assert bytes(unpacking.message()) == message


def test_small_messages_that_grow_large_are_left_to_a_thread() -> None:
    unpacking = Unpacking(zlib.compress(bytes(2 << 20)), "deflate")
    assert not unpacking.step_promptly()
    assert Unpacking(zlib.compress(bytes(100_000)), "deflate").step_promptly()


async def test_room_is_found_before_anything_is_unpacked() -> None:
    """Each step is on a thread, and what it may give is in the budget before."""
    budget = InflightBudget(10, 1 << 30)
    lease = budget.lease()
    seen: list[tuple[int, int]] = []

    async def offload(function: Callable[..., Any], *arguments: Any) -> Any:
        seen.append((lease.nbytes, unpacking.nbytes))
        return await OFFLOAD(function, *arguments)

    unpacking = Unpacking(zeros(5), "deflate")
    assert bytes(await unpack(unpacking, lease, cast(Offload, offload))) == bytes(5 << 20)
    assert len(seen) >= 5
    assert all(held >= unpacked_bytes + STEP_BYTES for held, unpacked_bytes in seen[:-1])
    assert seen[-1][0] >= 5 << 20


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
