"""The ring: what is put is taken, once and in order, however the two ends take turns; and neither end can be led
astray by what the other one writes."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trireme.front_ends.ring import SMALLEST_CAPACITY, RingError, RingReader, RingWriter, ring_bytes

CAPACITY = SMALLEST_CAPACITY
LARGEST = CAPACITY // 2 - 8
WRITTEN, READ, WANTS_ROOM, FIRST_LENGTH = 0, 8, 9, 16


def both_ends() -> tuple[RingWriter, RingReader, memoryview]:
    memory = memoryview(bytearray(ring_bytes(CAPACITY)))
    return RingWriter(memory), RingReader(memory), memory.cast("Q")


class TwoEnds(RuleBasedStateMachine):
    """A writer and a reader beside what they should know: queues."""

    def __init__(self) -> None:
        super().__init__()
        self.writer, self.reader, _ = both_ends()
        self.put: deque[bytes] = deque()
        self.visible: deque[bytes] = deque()
        self.number = 0
        self.refused = self.asked = False

    @rule(size=st.integers(0, LARGEST), cuts=st.lists(st.integers(0, LARGEST), max_size=3))
    def put_message(self, size: int, cuts: list[int]) -> None:
        self.number += 1
        message = (self.number.to_bytes(8, "little") * (size // 8 + 1))[:size]
        edges = [0, *sorted(min(cut, size) for cut in cuts), size]
        parts = [memoryview(message)[start:end] for start, end in itertools.pairwise(edges)]
        if self.writer.put(parts):
            self.put.append(message)
        else:
            self.refused = True

    @rule()
    def publish(self) -> None:
        assert self.writer.publish() == (bool(self.put) or self.refused)
        self.visible += self.put
        self.put.clear()
        self.asked |= self.refused
        self.refused = False

    @rule(most=st.integers(1, 100))
    def take(self, most: int) -> None:
        for _ in range(most):
            message = self.reader.take()
            if message is None:
                assert not self.visible
                return
            assert message == self.visible.popleft()

    @rule()
    def release(self) -> None:
        assert self.reader.release() == self.asked
        self.asked = False

    @precondition(lambda self: not self.put and not self.visible)
    @rule()
    def an_empty_ring_takes_the_largest_message(self) -> None:
        self.reader.release()
        self.asked = False
        assert self.writer.put([bytes(LARGEST)])
        self.put.append(bytes(LARGEST))

    @invariant()
    def no_more_is_held_than_there_is_room_for(self) -> None:
        assert sum(len(message) + 8 for message in [*self.put, *self.visible]) <= CAPACITY


TestTwoEnds = TwoEnds.TestCase


@given(counters=st.lists(st.integers(0, 2**64 - 1), min_size=3, max_size=3), garbage=st.binary(min_size=256))
def test_no_value_leads_the_reader_out_of_the_ring(counters: list[int], garbage: bytes) -> None:
    _, reader, words = both_ends()
    memory = words.cast("B")
    for start in range(128, len(memory), len(garbage)):
        memory[start : start + len(garbage)] = garbage[: len(memory) - start]
    words[WRITTEN], words[READ], words[WANTS_ROOM] = counters
    taken = 0
    try:
        while (message := reader.take()) is not None:
            taken += len(message) + 8
            assert taken <= CAPACITY
    except RingError:
        pass


@given(read=st.integers(0, 2**64 - 1))
def test_no_value_leads_the_writer_out_of_the_ring(read: int) -> None:
    writer, _, words = both_ends()
    put = 0
    try:
        for _ in range(10):
            words[READ] = read
            if not writer.put([bytes(LARGEST)]):
                break
            put += LARGEST + 8
            writer.publish()
            words[READ] = read
    except RingError:
        assert read not in (0, put)
    assert put <= CAPACITY or read <= put


@pytest.mark.parametrize(
    ("written", "lengths", "text"),
    [
        (CAPACITY + 8, {}, "has written 4104 bytes, of which 0 were read"),
        (12, {}, "has written 12 bytes"),
        (16, {0: 16}, "a message of 16 bytes is longer"),
        (16, {0: 2**64 - 1}, "has skipped the rest"),
        (CAPACITY, {0: 2**63}, "is longer"),
    ],
)
def test_a_writer_that_is_broken_is_named(written: int, lengths: dict[int, int], text: str) -> None:
    _, reader, words = both_ends()
    for at, length in lengths.items():
        words[FIRST_LENGTH + at] = length
    words[WRITTEN] = written
    with pytest.raises(RingError, match=text):
        reader.take()


def test_a_reader_that_is_broken_is_named() -> None:
    writer, _, words = both_ends()
    assert writer.put([bytes(LARGEST)])
    assert writer.put([bytes(LARGEST)])
    words[READ] = 8  # nothing was published
    with pytest.raises(RingError, match="has read 8 bytes, of 0 that were written"):
        writer.put([b"more"])


def test_what_was_taken_stays_as_it_is_when_the_writer_goes_on() -> None:
    writer, reader, words = both_ends()
    writer.put([b"first"])
    writer.publish()
    message = reader.take()
    words.cast("B")[128:] = bytes(CAPACITY)
    assert message == b"first"


def test_messages_that_are_too_large_are_refused() -> None:
    writer, reader, _ = both_ends()
    assert writer.largest == LARGEST
    with pytest.raises(ValueError, match="a message of 2041 bytes in a ring that takes 2040"):
        writer.put([bytes(LARGEST), b"x"])
    assert not writer.publish()
    assert reader.take() is None


@pytest.mark.parametrize("nbytes", [0, 100, ring_bytes(2048), ring_bytes(CAPACITY) + 8])
def test_the_memory_is_of_a_size_that_goes(nbytes: int) -> None:
    kinds: list[Any] = [RingWriter, RingReader]
    for kind in kinds:
        with pytest.raises(ValueError, match="must be a power of two from 4096 on"):
            kind(memoryview(bytearray(nbytes)))


def test_room_that_is_asked_for_is_told_of() -> None:
    """However the ends take turns: who is refused rings, who is rung releases, and a release rings back."""
    writer, reader, _ = both_ends()
    while writer.put([bytes(LARGEST)]):
        pass
    assert writer.publish()
    assert reader.take() is not None  # by then, the flag was there: nothing was lost
    assert reader.release()
    assert writer.put([bytes(LARGEST)])
    assert not reader.release()  # told once
