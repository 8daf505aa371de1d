"""One end of the connection between the server and a Python model: messages over a socket, large ones in memory.

Rules:
 1. The socket keeps messages apart (``SOCK_SEQPACKET``), so that a message is sent whole or not at all. One that is
    longer than `INLINE_BYTES` is written to a segment, and the socket tells which.
 2. A new segment is introduced by a message of its own, whose successor carries the descriptor and nothing else.
 3. Every message that goes out also says which segments are given back and which are dropped.
 4. The server's end never blocks: what the socket does not take waits here, in order, until `flush`. The model's end
    blocks. So the two cannot wait for each other.
 5. Any thread may send; receiving is for one at a time.
 6. The server's end gives segments back even if it has nothing to say. The model's end has at most `MOST_SEGMENTS` of
    its own, and waits for one (`Lender.has_room`); what breaks that, or has a head of more than `MOST_HEAD_BYTES`, is
    no message.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .codec import MOST_HEAD_BYTES, Buffer, Head, Message, MessageError, Payload, Source, decode, encode
from .segments import MOST_SEGMENTS, Borrower, Lender, Segment

INLINE_BYTES = 64 << 10

_FRAME = struct.Struct("<BxHHxxQQ")  # what follows, segments given back, segments dropped, segment, bytes of it
_INLINE, _SEGMENT, _INTRODUCTION, _NOTHING = 1, 2, 3, 4
_FRAME_BYTES = _FRAME.size
_USUAL_FRAME = _FRAME.pack(_INLINE, 0, 0, 0, 0)
_MOST_NUMBERS = 512
_DATAGRAM_BYTES = INLINE_BYTES + _FRAME.size + 8 * 2 * _MOST_NUMBERS
_WORTH_TELLING = 8
"""Segments that are given back by a datagram of their own."""
_ONE_DESCRIPTOR = socket.CMSG_SPACE(struct.calcsize("i"))

EMPTY = Payload()
_new = tuple.__new__
"""Makes a named tuple, without the Python code of its class."""


class ChannelClosedError(Exception):
    """The other end is gone."""


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """The two ends of a connection."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Letter(NamedTuple):
    """A message that is ready to be posted, which must happen: as it is, behind the usual frame, or in a segment."""

    text: bytes
    segment: Segment | None = None
    nbytes: int = 0


class Channel:
    """One end, over a connected socket, blocking or not as is wanted (rule 4). It trusts the other end if that is the
    server (rule 6); `checked`, it looks at heads before they are read (`codec.check_plain`)."""

    def __init__(self, sock: socket.socket, *, trusted: bool = True, checked: bool = False) -> None:
        self._checked = checked
        self._socket = sock
        self._trusted = trusted
        self._most_said, self._most_heard = (MOST_HEAD_BYTES, 1 << 31) if trusted else (1 << 31, MOST_HEAD_BYTES)
        self.lender = Lender(MOST_SEGMENTS if trusted else None)
        self.borrower = Borrower(None if trusted else 2 * MOST_SEGMENTS)  # several threads may find the last room
        self._returned = self.borrower.returned
        self._nudged = False
        self._buffer = memoryview(bytearray(_DATAGRAM_BYTES))
        self._waiting: deque[tuple[bytes, Segment | None]] = deque()
        self._posting = threading.Lock()
        self._introduced: tuple[int, int] | None = None

    def fileno(self) -> int:
        return self._socket.fileno()

    # Out.

    @property
    def congested(self) -> bool:
        """Something waits for the socket to take it."""
        return bool(self._waiting)

    def give_back(self, least: int = _WORTH_TELLING) -> bool:
        """Tell the other end of segments that it may use again, if there are at least so many; whether that waits for
        the socket to take it. ChannelClosedError if the other end is gone."""
        if len(self.borrower.returned) < least:
            return False
        with self._posting:
            self._put(self._frame(_NOTHING))
        return self.congested

    def send(self, head: Head, payload: Payload = EMPTY) -> None:
        """Send a message, or put it behind those that wait. ChannelClosedError if the other end is gone, OSError if no
        memory or descriptor is left, ValueError if the head holds something other than plain values."""
        self.post(self.prepare(head, payload))

    def prepare(self, head: Head, payload: Payload = EMPTY) -> Letter:
        """The first half of `send`, which takes long for a long message: on any thread, any number at a time. Raises as
        it does, and what a `Source` raises."""
        parts = encode(head, payload, self._most_said)
        nbytes = len(parts[0]) + payload.nbytes
        if nbytes <= INLINE_BYTES:
            return _new(Letter, (b"".join([_USUAL_FRAME, *parts]), None, 0))  # type: ignore[list-item]  # no `Source`
        segment = self.lender.take(nbytes)
        written = False
        try:
            _write(parts, np.frombuffer(segment.memory, np.uint8))
            written = True
        finally:
            if not written:
                self.lender.give_back(segment.number)
        return Letter(b"", segment, nbytes)

    def post(self, letter: Letter) -> None:
        """The second half of `send`; from any thread. ChannelClosedError if the other end is gone."""
        text, segment, _ = letter
        with self._posting:
            if segment is None:
                if self._returned or self.lender.dropped:
                    text = self._frame(_INLINE) + text[len(_USUAL_FRAME) :]
                if self._waiting or not self._write(text):
                    self._waiting.append((text, None))
                return
            if segment.descriptor is not None:
                self._put(self._frame(_INTRODUCTION, segment.number, segment.nbytes))
                self._put(b"\0", segment)
            self._put(self._frame(_SEGMENT, segment.number, letter.nbytes))

    def flush(self) -> bool:
        """Send what waits; whether nothing waits any more. ChannelClosedError if the other end is gone."""
        with self._posting:
            while self._waiting:
                if not self._write(*self._waiting[0]):
                    return False
                self._waiting.popleft()
            return True

    def _frame(self, what: int, number: int = 0, nbytes: int = 0) -> bytes:
        returned, dropped = self.borrower.returned, self.lender.dropped
        if not returned and not dropped:
            return _FRAME.pack(what, 0, 0, number, nbytes)
        given_back = [returned.popleft() for _ in range(min(len(returned), _MOST_NUMBERS))]
        forgotten = [dropped.pop() for _ in range(min(len(dropped), _MOST_NUMBERS))]
        numbers = struct.pack(f"<{len(given_back) + len(forgotten)}Q", *given_back, *forgotten)
        return _FRAME.pack(what, len(given_back), len(forgotten), number, nbytes) + numbers

    def _put(self, datagram: bytes, introduced: Segment | None = None) -> None:
        if self._waiting or not self._write(datagram, introduced):
            self._waiting.append((datagram, introduced))

    def _write(self, datagram: bytes, introduced: Segment | None = None) -> bool:
        """Write one datagram, perhaps with a segment's descriptor; False if the socket does not take it now."""
        try:
            if introduced is None:
                self._socket.send(datagram)
            else:
                rights = struct.pack("i", introduced.descriptor)
                self._socket.sendmsg([datagram], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                introduced.passed_on()
        except BlockingIOError:
            return False
        except OSError as error:
            raise ChannelClosedError(f"the other end is gone: {error}") from None
        return True

    # In.

    def receive(self, *, wait: bool = True) -> Message | None:
        """The next message; None if there is none yet (only if told not to wait, or where the socket never does), or
        if the other end has only given segments back. ChannelClosedError if the other end is gone, MessageError if it
        is broken."""
        flags = 0 if wait else socket.MSG_DONTWAIT
        buffer = self._buffer
        while True:
            try:
                if self._introduced is not None:
                    self._adopt(*self._introduced, flags)
                    self._introduced = None
                size = self._socket.recv_into(buffer, 0, flags)
            except BlockingIOError:
                return None
            except ConnectionResetError:
                continue  # it left something unread when it ended; this is said once, before what it had sent
            except OSError as error:
                raise ChannelClosedError(f"the other end is gone: {error}") from None
            if size > _FRAME_BYTES and buffer[:_FRAME_BYTES] == _USUAL_FRAME:
                data = memoryview(bytearray(buffer[_FRAME_BYTES:size]))
                return decode(data, self._most_heard, checked=self._checked)
            if not size:
                raise ChannelClosedError("the other end is gone")
            message = self._read(size)
            if message is not None or self._nudged:
                self._nudged = False
                return message

    def _read(self, size: int) -> Message | None:
        """Read a datagram that stands in the buffer; None if it was no message by itself."""
        buffer = self._buffer
        if size < _FRAME.size:
            raise MessageError(f"a datagram of {size} bytes")
        what, given_back, forgotten, number, nbytes = _FRAME.unpack_from(buffer)
        start = _FRAME.size
        if given_back or forgotten:
            start = self._account(given_back, forgotten)
        if what == _INLINE:
            return decode(memoryview(bytearray(buffer[start:size])), self._most_heard, checked=self._checked)
        if what == _NOTHING:
            self._nudged = True
            return None
        if what == _INTRODUCTION:
            self._introduced = (number, nbytes)
            return None
        if what != _SEGMENT:
            raise MessageError(f"a datagram of kind {what}")
        try:
            return decode(self.borrower.borrow(number, nbytes).data, self._most_heard, checked=self._checked)
        except (KeyError, ValueError) as error:
            raise MessageError(f"segment {number}: {error}") from None

    def _account(self, given_back: int, forgotten: int) -> int:
        """Read the numbers of segments behind the frame (rule 3); where they end."""
        numbers = struct.unpack_from(f"<{given_back + forgotten}Q", self._buffer, _FRAME.size)
        for number in numbers[:given_back]:
            self.lender.give_back(number)
        for number in numbers[given_back:]:
            self.borrower.forget(number)
        return _FRAME.size + 8 * len(numbers)

    def _adopt(self, number: int, nbytes: int, flags: int) -> None:
        """Take over the segment whose descriptor comes next (rule 2)."""
        _, ancillary, _, _ = self._socket.recvmsg(1, _ONE_DESCRIPTOR, flags)
        for level, kind, rights in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                (descriptor,) = struct.unpack_from("i", rights)
                os.set_inheritable(descriptor, False)
                try:
                    self.borrower.adopt(number, descriptor, nbytes)
                except ValueError as error:
                    raise MessageError(f"segment {number}: {error}") from None
                return
        raise MessageError(f"segment {number} came without its descriptor")

    def leave(self) -> None:
        """In a forked process: let go of the socket, without a word. Arrays that refer to segments stay valid."""
        self._socket.close()

    def hang_up(self) -> None:
        """Let both ends find the other one gone."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give everything back. Arrays that still refer to segments stay valid."""
        with contextlib.suppress(OSError):
            self._socket.close()
        self._waiting.clear()
        self.lender.close()
        self.borrower.close()


def _write(parts: list[Buffer | Source], target: np.ndarray) -> None:
    """Write the parts of a message to a segment."""
    at = 0
    for part in parts:
        end = at + len(part)
        if isinstance(part, Source):
            part.read_into(target[at:end])
        else:
            target[at:end] = np.frombuffer(part, np.uint8)  # without the interpreter's lock, unlike a memory view
        at = end


# A model's end, shared by the threads of its process.
#
# There is no thread that reads. A thread that waits for something reads, for all threads; so a model that only ever
# answers what it is asked never changes threads, which would cost as much as all the rest.
#
# Rules:
#  1. One thread at a time reads (the reader). What it receives is handled at once, under the lock.
#  2. A thread that waits while another one reads sleeps, and looks again after every message.
#  3. A reader that has what it waited for wakes the others, so that one of them reads on.
#  4. Once the server is gone, every thread that waits or sends gets an error.


class Link:
    """The connection. `handle` takes messages in under the lock, so it must neither block nor call back. To hang the
    channel up gives threads that wait the error of rule 4."""

    def __init__(self, channel: Channel, handle: Callable[[Message], None]) -> None:
        self.channel = channel
        self._handle = handle
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._reading = False
        self._sleepers = 0
        self.closed = False

    def send(self, head: Head, payload: Payload = EMPTY) -> None:
        """Send a message, waiting for room. Raises as `Channel.send`."""
        channel = self.channel
        lender = channel.lender
        if not lender.has_room:
            self.wait(lambda: lender.has_room)
        channel.post(channel.prepare(head, payload))

    def wait(self, is_there: Callable[[], object]) -> None:
        """Return when `is_there` says so, which is called under the lock. ChannelClosedError if the server is gone."""
        with self._lock:
            while not is_there():
                if self.closed:
                    raise ChannelClosedError("the server is gone")
                if self._reading:
                    self._sleepers += 1
                    self._changed.wait()
                    self._sleepers -= 1
                else:
                    self._read()
            if self._sleepers:
                self._changed.notify_all()

    def poll(self) -> None:
        """Take in what has come, without waiting."""
        with self._lock:
            if self._reading or self.closed:
                return
            came = False
            try:
                while (message := self.channel.receive(wait=False)) is not None:
                    came = True
                    self._handle(message)
            except ChannelClosedError:
                came = self.closed = True
            if came and self._sleepers:
                self._changed.notify_all()

    def change(self, action: Callable[[], None]) -> None:
        """Do something under the lock."""
        with self._lock:
            action()
            if self._sleepers:
                self._changed.notify_all()

    def close(self) -> None:
        """Threads that wait get the error that the server is gone."""
        self.channel.hang_up()
        with self._lock:
            while self._reading:
                self._sleepers += 1
                self._changed.wait()
                self._sleepers -= 1
            self.closed = True
            self._changed.notify_all()
        self.channel.close()

    def _read(self) -> None:
        """Receive a message, and handle it. The lock is held, but not while waiting."""
        self._reading = True
        self._lock.release()
        message = None
        try:
            message = self.channel.receive()
        except ChannelClosedError:
            self.closed = True
        finally:
            self._lock.acquire()
            self._reading = False
        if message is not None:
            self._handle(message)
        if self._sleepers:
            self._changed.notify_all()
