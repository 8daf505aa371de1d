"""Pinned memory: kept for the next one, bounded, and given back only when nothing refers to it any more."""

from __future__ import annotations

import gc
import logging
import threading
import weakref

import numpy as np
import pytest

from trireme.engine.gpu.pinned_pool import PinnedPool, is_pinned

F32 = np.dtype(np.float32)


class Block:
    def __init__(self, nbytes: int) -> None:
        self.memory = np.zeros(nbytes, np.uint8)
        self.ptr: int = self.memory.ctypes.data


class Driver:
    """Where pinned memory comes from, and what of it is out."""

    def __init__(self) -> None:
        self.out: list[weakref.ref[Block]] = []
        self.sizes: list[int] = []

    def allocate(self, nbytes: int) -> Block:
        block = Block(nbytes)
        self.out.append(weakref.ref(block))
        self.sizes.append(nbytes)
        return block

    def alive(self) -> int:
        return sum(block() is not None for block in self.out)


def test_an_array_has_its_shape_and_type_and_can_be_written() -> None:
    array = PinnedPool().take(Driver().allocate, (2, 3), F32)
    array[...] = 7
    assert (array.shape, array.dtype, array.sum()) == ((2, 3), F32, 42)
    assert array.flags.c_contiguous
    assert PinnedPool().take(Driver().allocate, (), F32).shape == ()


def test_an_empty_array_takes_nothing() -> None:
    driver = Driver()
    assert PinnedPool(0).take(driver.allocate, (0, 4), F32).shape == (0, 4)
    assert driver.sizes == []


def test_memory_is_used_again_once_the_last_view_is_gone() -> None:
    driver = Driver()
    pool = PinnedPool()
    array = pool.take(driver.allocate, (1000,), F32)
    view = array[10:20].reshape(2, 5).view(np.uint8).data
    address = array.ctypes.data
    del array
    assert pool.take(driver.allocate, (1000,), F32).ctypes.data != address, "a view of it is still there"
    del view
    assert address in {pool.take(driver.allocate, (1000,), F32).ctypes.data for _ in range(2)}
    assert len(driver.sizes) == 2


def test_at_most_a_quarter_of_a_block_is_wasted() -> None:
    driver = Driver()
    pool = PinnedPool()
    wanted = [1, 4096, 4097, 20_000, 33_000, 1 << 20, (1 << 20) + 1, 3_000_000]
    held = [pool.take(driver.allocate, (nbytes,), np.dtype(np.uint8)) for nbytes in wanted]
    assert len(held) == len(driver.sizes)
    for nbytes, size in zip(wanted, driver.sizes, strict=True):
        assert nbytes <= size <= max(nbytes * 1.25, nbytes + 4095)


def test_a_full_pool_gives_unused_memory_back_before_it_takes_ordinary_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver = Driver()
    pool = PinnedPool(limit_bytes=16384)
    first = pool.take(driver.allocate, (8192,), np.dtype(np.uint8))
    pool.take(driver.allocate, (4096,), np.dtype(np.uint8))
    second = pool.take(driver.allocate, (8192,), np.dtype(np.uint8))
    assert driver.alive() == 2
    assert is_pinned(second)
    with caplog.at_level(logging.WARNING):
        others = [pool.take(driver.allocate, (1, 2), np.dtype(np.int16)) for _ in range(3)]
    assert [(array.shape, array.dtype, is_pinned(array)) for array in others] == [((1, 2), np.int16, False)] * 3
    (told,) = caplog.messages
    assert told == (
        "the pool of pinned memory has no room for 4096 bytes: 16384 of its 16384 bytes are in use. While that is so, "
        "copies to and from GPUs are slower; --pinned-memory-pool-byte-size makes it larger"
    )
    assert pool.used_bytes == 16384
    del second
    assert pool.take(driver.allocate, (1,), np.dtype(np.uint8)).shape == (1,)
    assert pool.used_bytes == 8192
    assert first.shape == (8192,)


def test_frameworks_share_the_limit_and_not_their_blocks() -> None:
    """What lies unused with one of them does not keep the other one from its share."""
    one, other = Driver(), Driver()
    pool = PinnedPool(limit_bytes=8192)
    pool.take(one.allocate, (8192,), np.dtype(np.uint8))
    held = pool.take(other.allocate, (4096,), np.dtype(np.uint8))
    assert (one.alive(), other.alive()) == (0, 1), "a block of its own, and room for it"
    assert not is_pinned(pool.take(one.allocate, (8192,), np.dtype(np.uint8)))
    del held
    pool.take(one.allocate, (4096,), np.dtype(np.uint8))
    assert (one.sizes, other.sizes) == ([8192, 4096], [4096])


def test_answers_are_copied_out_when_pinned_memory_is_scarce() -> None:
    """Unless they are large: that happens on the event loop."""
    pool, driver = PinnedPool(limit_bytes=1 << 20), Driver()
    small, large = (pool.take(driver.allocate, (nbytes,), np.dtype(np.uint8)) for nbytes in (4096, 300_000))
    small[...] = large[...] = 7
    assert pool.relieved(small) is small
    assert pool.relieved(large) is large
    more = pool.take(driver.allocate, (300_000,), np.dtype(np.uint8))
    kept = pool.relieved(small[5:10])
    assert (kept.tolist(), is_pinned(kept)) == ([7] * 5, False)
    assert pool.relieved(large) is large
    ordinary = np.zeros(5)
    assert pool.relieved(ordinary) is ordinary
    assert more.nbytes == 300_000


def test_what_the_garbage_collector_gives_back_while_the_pool_is_at_work_does_not_stop_it() -> None:
    """The last view of an array may be part of a circle, which is collected at any point, in the pool too."""
    pool: PinnedPool

    def allocate(nbytes: int) -> Block:
        gc.collect()
        return Block(nbytes)

    pool = PinnedPool()

    def take() -> None:
        circle: list[object] = [pool.take(allocate, (10,), F32)]
        circle.append(circle)
        del circle
        pool.take(allocate, (100_000,), F32)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert pool.used_bytes == 0
