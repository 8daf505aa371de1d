"""A link: one end of what joins a front end's process and the engine's. It does no waiting of its own.

Messages go through rings (`ring`), one each way. Tensors that are worth more than a copy lie in segments that the ends
lend each other (`child.segments`): a large body is received straight into what the engine's tensors then view. A stream
socket is the doorbell of both rings, brings the descriptors of segments, and ends when the other process does.

A message is a head of plain values, and a payload: the contents of tensors, to which the head refers. In the ring, a
frame goes before it, with the segment in which its payload lies, if it does not follow the head. Brief messages, such
as small requests and their answers, go many at a time: one frame for those of a turn, one JSON document of their heads.

Rules:
 1. `send` writes to the ring, and `flush`, once a turn, rings. A message for which there is no room is not sent, and
    its sender keeps it: the link has no queue. Once there is room again, `hear` says so.
 2. A segment's descriptor goes through the socket before the first message that names the segment goes through the
    ring. Who reads a ring has read the socket before (`hear`, then `receive`).
 3. Every message says which segments are given back and dropped, as many as there is room for; `flush` sends the rest
    in a message of its own.
 4. An end that has no descriptor left, or no memory, does without the segment that it cannot take over (`borrower`).
 5. The other end may be hostile. A message is copied out of the ring before it is looked at, and its head is JSON, of
    which any bytes can be read without harm. What breaks a rule ends the link with a `LinkError`. What lies in a
    segment may change at any time, so who is given it takes nothing from it but elements of tensors all of whose values
    are possible, or copies it first.
 6. A bell that a full socket does not take is not needed: those before it have not been heard.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import orjson

from ..python_backend.child.codec import ALIGNMENT, Payload
from ..python_backend.child.segments import Segment, create_file
from .arena import ArenaLender, LentPayload
from .borrower import NO_DESCRIPTOR, LinkBorrower, SegmentLostError, unread
from .briefs import BRIEF_HEAD_BYTES, is_brief
from .ring import RingError, RingReader, RingWriter, ring_bytes

INLINE_BYTES = 16 << 10
"""A payload up to here is copied through the ring, if that is not small; a larger one lies in a segment."""

RING_CAPACITY = 1 << 20
"""Bytes of each ring: some two thousand small requests."""

MOST_HEAD_BYTES = 384 << 10
MOST_SEGMENTS = 1_024
MOST_BORROWED = 256

_FRAME = struct.Struct("<IHHQQ")
"""Bytes of the head; segments given back; dropped; segment + 1, and bytes of the payload in it. Without a segment 0,
and 0; or the number of brief messages, of which the head is a list: the sizes of their payloads, and all heads."""
_MOST_NUMBERS = 512
_BELL = b"\0"
_INTRODUCTION = struct.Struct("<cQQ")  # the byte that says so; segment; bytes of it
_INTRODUCTION_BYTE = b"\1"
_SOCKET_BYTES = 4_096
_DESCRIPTOR = struct.Struct("i")
_MOST_DESCRIPTORS = 16  # of which the last may come with the same read
_FULL_ERRNOS = frozenset((errno.EAGAIN, errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM))
"""The socket, or the system, has too many descriptors on their way."""
_MOST_READS = 4_096  # at once: many times what a socket takes of bells and descriptors

_MOST_BRIEFS_BYTES = 64 << 10
"""Of those that go together: what is read at once is not to take long."""

NOTHING = Payload()

_new = tuple.__new__

LinkHead = Sequence[Any]
"""None, bool, int, float (no NaN, no infinity), str, list, dict with str keys; of integers those of 64 bits. A tuple
arrives as a list."""


class LinkError(Exception):
    """The other end is broken, or gone."""


class LinkMessage(NamedTuple):
    """A message that came. What views the payload keeps it."""

    head: list[Any]
    payload: memoryview


def ring_memory() -> tuple[int, int]:
    """A new memory file for the rings of a link: its descriptor, and its bytes.

    Raises:
        OSError: no memory or descriptor is left.
    """
    nbytes = 2 * ring_bytes(RING_CAPACITY)
    return create_file(nbytes), nbytes


def map_rings(descriptor: int, nbytes: int, *, first: bool) -> tuple[RingWriter, RingReader]:
    """The rings in a memory file, for the first of the two ends, or for the second.

    Raises:
        OSError, ValueError: it is none.
    """
    memory = memoryview(mmap.mmap(descriptor, nbytes))
    half = nbytes // 2
    mine, theirs = (memory[:half], memory[half:]) if first else (memory[half:], memory[:half])
    return RingWriter(mine), RingReader(theirs)


def _refuse(_head: list[Any], _payload: memoryview) -> None:
    raise LinkError(NO_DESCRIPTOR)


class FrontEndLink:
    """One end.

    Args:
        sock: connected, a stream, non-blocking.
        rings: of this end (`map_rings`).
        on_returned: called, in any thread, when so many segments of the other end can be given back that it may wait
            for one: `flush` does it.
        on_lost: called with the head of a message whose segment could not be taken over (`borrower`), and with so many
            bytes that are not to be looked at. It is not received otherwise.

    Attributes:
        inline_bytes: a payload up to here is copied through the ring.
        lender: segments of this end, to receive large bodies into, and to send (`arena`).
    """

    def __init__(
        self,
        sock: socket.socket,
        rings: tuple[RingWriter, RingReader],
        on_returned: Callable[[], object] = lambda: None,
        on_lost: Callable[[list[Any], memoryview], object] = _refuse,
    ) -> None:
        self.lender = ArenaLender(MOST_SEGMENTS)
        # A new segment may be introduced before the message is read that says which was dropped for it.
        self._borrower = LinkBorrower(2 * MOST_SEGMENTS, MOST_BORROWED)
        self._borrower.on_returned = on_returned
        self._on_lost = on_lost
        self._socket = sock
        self._writer, self._reader = rings
        self.inline_bytes = min(INLINE_BYTES, self._writer.largest // 4)
        self._wants_room = False
        self._may_have_room = False
        self._partial = b""  # of an introduction
        self._descriptors: list[int | None] = []  # None for one that there was no room for
        self._briefs: list[LinkHead] = []
        self._brief_sizes: list[int] = []
        self._brief_parts: list[Any] = []
        self._brief_room = 0
        self._unpacked: list[LinkMessage] = []  # the next one is the last

    def fileno(self) -> int:
        return self._socket.fileno()

    # Out.

    def send(self, head: LinkHead, payload: Payload = NOTHING) -> bool:
        """Send a message at the next `flush`; False if there is no room for it now.

        Raises:
            ValueError: the head holds something other than plain values, or is too long.
            OSError: no memory or descriptor is left.
            LinkError: the other end is broken, or gone.
        """
        if payload.nbytes <= self.inline_bytes:
            return self._add(head, payload) if is_brief(head) else self._put(head, payload)
        if isinstance(payload, LentPayload):
            return not self._wants_room and self.send_segment(head, payload.segment, payload.nbytes)
        if self._wants_room or not self.lender.has_room:  # else each try could introduce a segment
            self._wants_room = True
            return False
        segment = self.lender.take(payload.nbytes)
        at = 0
        for part in payload.parts:
            segment.memory[at : at + len(part)] = part  # type: ignore[assignment] - any buffer will do
            at += len(part)
        sent = False
        try:
            sent = self.send_segment(head, segment, payload.nbytes)
        finally:
            if not sent:
                self.lender.give_back(segment.number)
        return sent

    def send_plainly(self, head: LinkHead, payload: Payload) -> bool:
        """The same, through the ring if it can ever have room: what must not be lost needs no descriptor there."""
        if payload.nbytes <= self._writer.largest // 2:
            return self._put(head, payload)
        return self.send(head, payload)

    def send_segment(self, head: LinkHead, segment: Segment, nbytes: int) -> bool:
        """The same for a payload that lies in a segment of `lender`, which is the caller's until this returns True."""
        if segment.descriptor is not None and not self._introduce(segment):
            return False
        sent = self._put(head, NOTHING, segment.number + 1, nbytes)
        if sent:
            self.lender.lend(segment)
        return sent

    def flush(self) -> None:
        """Ring if anything was sent since the last call, or refused.

        Raises:
            LinkError: the other end is broken, or gone.
        """
        if self._briefs:
            self._put_briefs()
        if self._borrower.returned or self.lender.dropped:
            self._put((), NOTHING)
        if self._writer.publish():
            self._ring()

    def _add(self, head: LinkHead, payload: Payload) -> bool:
        """Have a brief message go with those before and behind it."""
        nbytes = payload.nbytes
        left = self._brief_room - nbytes - BRIEF_HEAD_BYTES
        if left < 0:
            if self._briefs:
                self._put_briefs()
            needed = nbytes + 2 * BRIEF_HEAD_BYTES
            try:
                left = self._writer.room(needed, _MOST_BRIEFS_BYTES) - needed
            except RingError as error:
                raise LinkError(str(error)) from None
            if left < 0:
                self._wants_room = True
                return False
        self._brief_room = left
        self._briefs.append(head)
        self._brief_sizes.append(nbytes)
        self._brief_parts += payload.parts
        return True

    def _put_briefs(self) -> None:
        """Write what was added, for which there is room."""
        packed = orjson.dumps([self._brief_sizes, *self._briefs])
        size = len(packed)
        frame = _FRAME.pack(size, 0, 0, 0, len(self._briefs))
        sent = self._write([frame, packed, bytes(-(_FRAME.size + size) % ALIGNMENT), *self._brief_parts])
        assert sent, "there was room"
        self._brief_room = 0
        self._briefs, self._brief_sizes, self._brief_parts = [], [], []

    def _put(self, head: LinkHead, payload: Payload, number: int = 0, nbytes: int = 0) -> bool:
        try:
            packed = orjson.dumps(head)
        except orjson.JSONEncodeError as error:
            raise ValueError(f"the head of a message is not of plain values: {error}") from None
        size = len(packed)
        if size > MOST_HEAD_BYTES:
            raise ValueError(f"names, parameters and texts take {size} bytes, and may take {MOST_HEAD_BYTES}")
        if self._briefs:
            self._put_briefs()
        returned, dropped = self._borrower.returned, self.lender.dropped
        back: list[int] = []
        gone: list[int] = []
        numbers = b""
        if returned or dropped:
            self._borrower.returned_bytes = 0
            back = [returned.popleft() for _ in range(min(len(returned), _MOST_NUMBERS))]
            gone = [dropped.pop() for _ in range(min(len(dropped), _MOST_NUMBERS))]
            numbers = struct.pack(f"<{len(back) + len(gone)}Q", *back, *gone)
        frame = _FRAME.pack(size, len(back), len(gone), number, nbytes)
        padding = bytes(-(_FRAME.size + len(numbers) + size) % ALIGNMENT)
        sent = False
        try:
            sent = self._write([frame, numbers, packed, padding, *payload.parts])
        finally:
            if not sent:
                returned.extend(back)
                dropped.extend(gone)
        return sent

    def _write(self, parts: list[Any]) -> bool:
        try:
            if self._writer.put(parts):
                return True
        except RingError as error:
            raise LinkError(str(error)) from None
        self._wants_room = True
        return False

    def _ring(self) -> None:
        try:
            self._socket.send(_BELL)
        except BlockingIOError:
            pass  # rule 6
        except OSError as error:
            raise LinkError(f"the other end is gone: {error}") from None

    def _introduce(self, segment: Segment) -> bool:
        """Pass a segment's descriptor on; False if the socket does not take it now."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _DESCRIPTOR.pack(segment.descriptor))]
        introduction = _INTRODUCTION.pack(_INTRODUCTION_BYTE, segment.number, segment.nbytes)
        try:
            sent = self._socket.sendmsg([introduction], rights)
        except OSError as error:
            if error.errno not in _FULL_ERRNOS:
                raise LinkError(f"the other end is gone: {error}") from None
            self._wants_room = True
            self._writer.ask_for_room()  # once the ring is read, so is the socket
            return False
        if sent < len(introduction):
            raise LinkError("a socket takes a part of seventeen bytes")
        segment.passed_on()
        return True

    @property
    def uses_segments(self) -> bool:
        """Whether `tidy` may have something to do, now or later."""
        return self.lender.used or self._borrower.used

    def tidy(self) -> None:
        """Let go of segments that have not been used since the last call; the next `flush` tells."""
        self.lender.used = self.lender.rest()
        self._borrower.used = self._borrower.in_use

    # In.

    def hear(self) -> bool:
        """Read the socket, whenever it can be read: bells and introductions. Then `receive` until there is no more, and
        `release`.

        Returns:
            Whether there may be room again for what was refused.

        Raises:
            LinkError: the other end is broken, or gone.
        """
        self._read_bells()
        wanted, self._wants_room = self._wants_room, False
        return wanted

    def _read_bells(self) -> None:
        for _ in range(_MOST_READS):
            if not self._read_socket():
                return
        raise LinkError("its doorbell does not stop")

    def receive(self) -> LinkMessage | None:
        """The next message; None if there is none.

        Raises:
            LinkError: the other end is broken.
        """
        unpacked = self._unpacked
        if unpacked:
            return unpacked.pop()
        try:
            while (record := self._reader.take()) is not None:
                message = self._read(memoryview(record))
                if message is not None:
                    return message
        except (RingError, struct.error, orjson.JSONDecodeError) as error:
            raise LinkError(str(error)) from None
        return None

    def release(self) -> bool:
        """Let the other end use the room of what was received.

        Returns:
            Whether a bell was heard meanwhile (rule 2), so that there may be room again for what was refused.

        Raises:
            LinkError: the other end is gone.
        """
        if self._reader.release():
            self._ring()
        may_have_room, self._may_have_room = self._may_have_room, False
        return may_have_room

    def _read_socket(self) -> bool:
        """Read once; whether there may be more."""
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(
                _SOCKET_BYTES, socket.CMSG_SPACE(_MOST_DESCRIPTORS * _DESCRIPTOR.size)
            )
        except BlockingIOError:
            return False
        except OSError as error:
            raise LinkError(f"the other end is gone: {error}") from None
        found = 0
        for level, kind, rights in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                size = _DESCRIPTOR.size
                for at in range(0, len(rights) - size + 1, size):
                    self._descriptors.append(_DESCRIPTOR.unpack_from(rights, at)[0])
                    found += 1
        cut = bool(flags & socket.MSG_CTRUNC)
        if (cut and found == _MOST_DESCRIPTORS) or len(self._descriptors) > _MOST_DESCRIPTORS:
            raise LinkError("more descriptors than segments")
        if cut:
            self._descriptors.append(None)  # the system has no free one for it
        if not data:
            raise LinkError("the other end is gone")
        self._adopt(self._partial + data)
        return len(data) == _SOCKET_BYTES or bool(ancillary) or cut

    def _adopt(self, data: bytes) -> None:
        """Adopt the segments that are introduced among bells."""
        at = 0
        while (at := data.find(_INTRODUCTION_BYTE, at)) >= 0 and at + _INTRODUCTION.size <= len(data):
            _, number, nbytes = _INTRODUCTION.unpack_from(data, at)
            at += _INTRODUCTION.size
            if not self._descriptors:
                raise LinkError(f"segment {number} came without its descriptor")
            descriptor = self._descriptors.pop(0)
            if descriptor is not None:
                os.set_inheritable(descriptor, False)
            try:
                self._borrower.adopt(number, descriptor, nbytes)
            except ValueError as error:
                raise LinkError(f"segment {number}: {error}") from None
        self._partial = data[at:] if at >= 0 else b""

    def _read(self, record: memoryview) -> LinkMessage | None:
        """Take a record apart; its message, or the first one. None if it says nothing more than the frame."""
        size, returned, dropped, number, nbytes = _FRAME.unpack_from(record)
        start = _FRAME.size
        if returned or dropped:
            numbers = struct.unpack_from(f"<{returned + dropped}Q", record, start)
            start += 8 * len(numbers)
            for each in numbers[:returned]:
                self.lender.give_back(each)
            for each in numbers[returned:]:
                self._borrower.forget(each)
        end = start + size
        head = orjson.loads(record[start:end])
        if end > len(record) or head.__class__ is not list:
            raise LinkError("a message without a head")
        if not head:
            return None
        if not number:
            payload = record[end + -end % ALIGNMENT :]
            return self._unpack(head, payload, nbytes) if nbytes else LinkMessage(head, payload)
        try:
            if number - 1 not in self._borrower:
                self._read_bells()
                self._may_have_room |= self._wants_room
                self._wants_room = False
            return LinkMessage(head, self._borrower.borrow(number - 1, nbytes).data)
        except SegmentLostError:
            self._on_lost(head, unread(nbytes))
            return None
        except (KeyError, ValueError) as error:
            raise LinkError(f"segment {number - 1}: {error}") from None

    def _unpack(self, heads: list[Any], payloads: memoryview, count: int) -> LinkMessage:
        """Brief messages: the first one; `receive` gives the others."""
        sizes = heads.pop(0)
        if sizes.__class__ is not list or not len(sizes) == len(heads) == count:
            raise LinkError("brief messages that are not as many as was said")
        at = 0
        messages: list[LinkMessage] = []
        for head, size in zip(heads, sizes, strict=True):
            if head.__class__ is not list or not head or size.__class__ is not int or size < 0:
                raise LinkError("a brief message without a head, or without a size")
            end = at + size
            messages.append(_new(LinkMessage, (head, payloads[at:end])))
            at = end
        if at > len(payloads):
            raise LinkError("brief messages that are longer than their record")
        messages.reverse()
        self._unpacked = messages
        return messages.pop()

    def close(self) -> None:
        """Give everything back. Tensors that still view segments of the other end stay valid."""
        with contextlib.suppress(OSError):
            self._socket.close()
        for descriptor in self._descriptors:
            if descriptor is not None:
                os.close(descriptor)
        self._descriptors.clear()
        self.lender.close()
        self._borrower.close()
        self._writer.close()
        self._reader.close()
