"""Which replica a key prefers (weighted rendezvous hashing), at a cost that does not grow with the fleet.

Rules:
 1. A key falls into one of `BUCKETS` buckets. In each bucket each replica draws a number, from the bucket and the
    replica's name alone; the order of preference is that of the numbers, divided by weights. So all gateways find the
    same order without talking, and of many keys each replica is preferred by its weight's share.
 2. A replica that comes or goes moves only keys to or from itself; the order of the others stays.
 3. The second in order is the one that another bucket prefers, which follows from the first one by calculation; and so
    on for `_PROBES` buckets. Those that are in none of these places come last, in the order of the first bucket.
 4. Which one a bucket prefers is remembered: 12 bytes for a bucket. A replica that goes has its own buckets forgotten,
    one that comes is compared with all that are remembered, in one operation on arrays. What is not remembered is
    worked out from all replicas, once.

Buckets are why an order can be remembered at all: there are so many of them, however many keys. With 1,000 replicas
each is preferred in 65 buckets, give or take 8; `load_bound` evens that out.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from hashlib import blake2b
from zlib import crc32

import numpy as np

BUCKETS = 1 << 16
_PROBES = 8
_STEP = 40_503
"""Odd, so that a bucket's followers are others than itself; about the golden section of all, so that they lie apart."""

_NONE = -1
_SCALE = 2.0**-64
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(33)
_FACTORS = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))


def bucket_of(key: bytes) -> int:
    """Rule 1."""
    return crc32(key) % BUCKETS


def sequence_key(name: str, sequence: int | str) -> bytes:
    """What a sequence is hashed by; the number 5 and the text "5" are two sequences."""
    return f"{name}\0{sequence!r}".encode()


class Rendezvous:
    """Replicas, in the order in which each bucket prefers them."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}  # which place each has in the arrays
        self._names: list[str] = []
        self._seeds = np.zeros(0, np.uint64)
        self._weights = np.zeros(0)
        self._firsts = array("i", [_NONE]) * BUCKETS
        self._first: np.ndarray = np.frombuffer(self._firsts, np.int32)  # the same memory
        self._draws: np.ndarray = np.zeros(BUCKETS)  # of the first

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, name: str, weight: float) -> None:
        """A replica that is not there, with a weight above 0."""
        assert name not in self._numbers
        assert weight > 0
        number = self._numbers[name] = len(self._names)
        self._names.append(name)
        self._seeds = np.append(self._seeds, np.uint64(_seed(name)))
        self._weights = np.append(self._weights, weight)
        known = np.flatnonzero(self._first != _NONE)
        if known.size:
            drawn = _draw(known.astype(np.uint64) * _SPREAD, self._seeds[number]) / weight
            better = drawn < self._draws[known]
            gained = known[better]
            self._first[gained] = number
            self._draws[gained] = drawn[better]

    def remove(self, name: str) -> None:
        """Raises KeyError: it is not there."""
        number = self._numbers.pop(name)
        last = len(self._names) - 1
        self._first[self._first == number] = _NONE
        if number != last:  # the last one takes its place
            moved = self._names[last]
            self._names[number] = moved
            self._numbers[moved] = number
            self._seeds[number] = self._seeds[last]
            self._weights[number] = self._weights[last]
            self._first[self._first == last] = number
        del self._names[last]
        self._seeds, self._weights = self._seeds[:last], self._weights[:last]

    def first(self, bucket: int) -> str | None:
        """None if there is no replica."""
        number = self._firsts[bucket]
        if number == _NONE:
            if not self._names:
                return None
            drawn = self._drawn(bucket)
            number = self._firsts[bucket] = int(drawn.argmin())
            self._draws[bucket] = drawn[number]
        return self._names[number]

    def in_order(self, bucket: int) -> Iterator[str]:
        """All of them, the one that is preferred first (rule 3). Beyond the first few this takes longer, the more there
        are."""
        seen: list[str] = []
        for step in range(_PROBES):
            name = self.first((bucket + step * _STEP) % BUCKETS)
            if name is not None and name not in seen:
                seen.append(name)
                yield name
        if len(seen) < len(self._names):
            drawn = self._drawn(bucket)
            for number in np.argsort(drawn):
                if self._names[number] not in seen:
                    yield self._names[number]

    def _drawn(self, bucket: int) -> np.ndarray:
        drawn = _draw(self._seeds, np.uint64(bucket * int(_SPREAD) % 2**64))
        drawn /= self._weights
        return drawn


def _seed(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


def _draw(many: np.ndarray, one: np.uint64) -> np.ndarray:
    """What replicas draw in buckets: distributed exponentially, above 0. Buckets are given times `_SPREAD`, replicas by
    their seeds."""
    mixed = many ^ one
    shifted = mixed >> _SHIFT
    for factor in _FACTORS:
        mixed ^= shifted
        mixed *= factor
        np.right_shift(mixed, _SHIFT, out=shifted)
    mixed ^= shifted
    drawn = mixed.astype(np.float64)
    drawn += 0.5
    drawn *= _SCALE
    np.log(drawn, out=drawn)
    np.subtract(_SCALE, drawn, out=drawn)
    return drawn
