"""The link between an engine and a front end, in virtual time: the real cores (`front_ends.link`, `front_ends.ring`)
over memory of one process, and sockets that are none. What is sent is there at once; that the other end hears of it
takes a time, which differs from bell to bell. So some are heard together, in another order, or for nothing.
"""

from __future__ import annotations

import errno
import heapq
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import outcome
import trio

from ..actors.actor import Turn
from ..actors.socket_readiness import Readiness
from ..front_ends.ring import RingReader, RingWriter, ring_bytes
from .clock import JumpingClock, Sleeper

ROOM = 64
"""Bytes that a socket takes of bells and introductions before the other end has read any."""

MIXING = 0x9E3779B1
"""Spreads numbers that follow each other."""

_DESCRIPTOR = struct.Struct("i")

Rings = tuple[RingWriter, RingReader]


def rings(capacity: int) -> tuple[Rings, Rings]:
    """Those of both ends of a link, of so many bytes each."""
    first, second = (memoryview(bytearray(ring_bytes(capacity))) for _ in range(2))
    return (RingWriter(first), RingReader(second)), (RingWriter(second), RingReader(first))


class Bells:
    """How long bells take, as a function of their numbers.

    Args:
        longest_ns: no bell takes longer.
        spurious: after one bell in so many there is another one, for nothing; 0 for none.
        stuck: from and until when, in nanoseconds, the listener hears nothing.
        short: of one descriptor in so many that come there is no room for it; 0 for none.
    """

    def __init__(
        self, clock: JumpingClock, longest_ns: int, spurious: int, stuck: tuple[int, int] = (0, 0), short: int = 0
    ) -> None:
        self._clock = clock
        self._longest_ns = longest_ns
        self._spurious = spurious
        self._stuck = stuck
        self._short = short
        self._numbers = count(1)
        self._descriptors = count(1)

    def takes_descriptor(self) -> bool:
        """Whether there is room for the next descriptor."""
        return not self._short or next(self._descriptors) % self._short > 0

    def times_s(self) -> Sequence[float]:
        """When the next bell is heard."""
        number = next(self._numbers)
        now_ns = self._clock.now_ns()
        part = (number * MIXING & 0xFFFF) / 0x10000
        times = [now_ns + round(self._longest_ns * part) if number % 3 else now_ns]
        if self._spurious and number % self._spurious == 0:
            times.append(times[0] + self._longest_ns)
        begin_ns, end_ns = self._stuck
        return [(end_ns if begin_ns <= each < end_ns else each) / 1e9 for each in times]


class VirtualSocket:
    """One end of a pair (`socket_pair`), as far as links use sockets.

    Args:
        bells: when this end hears.
        number: what it is known by.
    """

    def __init__(self, bells: Bells, number: int) -> None:
        self.peer: VirtualSocket
        self.closed = False
        self.on_ring: Callable[[], None] | None = None
        self._bells = bells
        self._number = number
        self._pieces: deque[tuple[bytes, int | None]] = deque(maxlen=2 * ROOM)  # each with its descriptor
        self._due: list[float] = []

    def fileno(self) -> int:
        return self._number

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""

    # Out.

    def send(self, data: bytes) -> int:
        return self.sendmsg([data], ())

    def sendmsg(self, parts: Sequence[bytes], rights: Sequence[tuple[int, int, bytes]]) -> int:
        peer = self.peer
        if self.closed or peer.closed:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        if peer._readable >= ROOM:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        data = b"".join(parts)
        descriptor = None
        for _, _, packed in rights:
            descriptor = os.dup(_DESCRIPTOR.unpack(packed)[0])
        peer._pieces.append((data, descriptor))
        peer._ring()
        return len(data)

    # In.

    def recvmsg(self, _nbytes: int, _room: int) -> tuple[bytes, list[tuple[int, int, bytes]], int, None]:
        if self.closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if not self._pieces:
            if self.peer.closed:
                return b"", [], 0, None
            raise BlockingIOError
        data = b""
        descriptor = None
        while self._pieces and descriptor is None:  # as the system does: no more than what comes with one of them
            piece, descriptor = self._pieces.popleft()
            data += piece
        if descriptor is None:
            return data, [], 0, None
        if not self._bells.takes_descriptor():
            os.close(descriptor)
            return data, [], socket.MSG_CTRUNC, None
        return data, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _DESCRIPTOR.pack(descriptor))], 0, None

    @property
    def _readable(self) -> int:
        """Bytes that are there."""
        return sum([len(piece) for piece, _ in self._pieces])

    def _ring(self) -> None:
        for when_s in self._bells.times_s():
            heapq.heappush(self._due, when_s)
        if self.on_ring is not None:
            self.on_ring()

    def next_s(self) -> float | None:
        """When this end hears next; None for not before another bell."""
        return self._due[0] if self._due else None

    def hear(self, now_s: float) -> bool:
        """Whether a bell is heard now; all that are heard by now are one."""
        heard = False
        while self._due and self._due[0] <= now_s:
            heapq.heappop(self._due)
            heard = True
        return heard

    def still_readable(self) -> None:
        """What was not read makes itself heard."""
        if not self.closed and (self._pieces or self.peer.closed) and not self._due:
            self._ring()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            for _, descriptor in self._pieces:
                if descriptor is not None:
                    os.close(descriptor)
            self._pieces.clear()
            if not self.peer.closed:
                self.peer._ring()


def socket_pair(first: Bells, second: Bells, number: int) -> tuple[Any, Any]:
    """Two ends; for links, which take them for sockets."""
    one, other = VirtualSocket(first, number), VirtualSocket(second, number)
    one.peer, other.peer = other, one
    return one, other


class VirtualReadiness(Readiness):
    """Hears virtual sockets, each in a turn of its own."""

    def __init__(self, clock: JumpingClock, turn: Turn) -> None:
        super().__init__(lambda _start: None, turn, use_epoll=False)
        self._clock = clock
        self._sockets: dict[int, VirtualSocket] = {}

    def know(self, sock: VirtualSocket) -> None:
        """A socket that may be heard later."""
        self._sockets[sock.fileno()] = sock

    async def keep_hearing(
        self, descriptor: int, hear: Callable[[], bool], *, often: bool = True, ahead: bool = False
    ) -> None:
        sock, clock = self._sockets.pop(descriptor), self._clock
        sleeper: Sleeper | None = None

        def rung() -> None:
            when_s = sock.next_s()
            if sleeper is not None and when_s is not None:
                clock.call_at(when_s, sleeper.wake)

        sock.on_ring = rung
        try:
            while True:
                sleeper = Sleeper(trio.lowlevel.current_task())
                rung()
                await trio.lowlevel.wait_task_rescheduled(sleeper.give_up)
                sleeper = None
                if sock.hear(clock.now_s()):
                    with self.turn:
                        result = outcome.capture(hear)
                    if not result.unwrap():
                        return
                    sock.still_readable()
        finally:
            sock.on_ring = None
