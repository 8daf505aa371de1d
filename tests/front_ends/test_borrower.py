"""What an end of a link does that has no descriptor left for a segment."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from link_ends import all_of, both_ends, payload_of
from open_files import no_file_left

from trireme.engine.request import InferenceRequest
from trireme.front_ends.arena import memory_for
from trireme.front_ends.borrower import LOST, LinkBorrower, SegmentLostError, unread
from trireme.front_ends.link import INLINE_BYTES, FrontEndLink, LinkError
from trireme.front_ends.requests import NO_DESCRIPTION, RequestWriter

LARGE = 1 << 20


@pytest.fixture
def ends() -> Iterator[tuple[FrontEndLink, FrontEndLink]]:
    with both_ends() as ends:
        yield ends


def send(link: FrontEndLink, number: int, nbytes: int = LARGE) -> None:
    assert link.send([number], payload_of(bytes([number]) * nbytes)[0])
    link.flush()


def losses(link: FrontEndLink) -> list[tuple[Any, int]]:
    """Heads, and bytes, of the messages that come without what they have in a segment."""
    lost: list[tuple[Any, int]] = []
    link._on_lost = lambda head, payload: lost.append((head, len(payload)))
    return lost


def test_a_message_without_its_segment_is_told_of_and_those_behind_it_come(
    ends: tuple[FrontEndLink, FrontEndLink],
) -> None:
    one, other = ends
    lost = losses(other)
    before = len(os.listdir("/proc/self/fd"))
    send(one, 1)
    one.send([2])
    with no_file_left():
        one.flush()
        assert [message.head for message in all_of(other)] == [[2]]
    assert lost == [([1], LARGE)]
    other.flush()
    all_of(one)
    assert (one.lender._lent, one.lender.free_bytes) == ({}, 0), "it is of no use"
    assert len(os.listdir("/proc/self/fd")) == before
    send(one, 3)
    (message,) = all_of(other)
    assert message.payload[0] == 3


def test_bells_and_messages_that_come_with_it_are_not_lost(ends: tuple[FrontEndLink, FrontEndLink]) -> None:
    one, other = ends
    lost = losses(other)
    came = []
    with no_file_left():
        for number in range(1, 9):
            os_error = None
            try:
                one.send([0, number])
                one.flush()
                send(one, number)
            except OSError as error:  # no file for a segment of its own
                os_error = error.errno
            assert os_error == errno.EMFILE
            came += [message.head for message in all_of(other)]
    for number in range(10, 13):
        send(one, number)
    with no_file_left():
        came += [message.head for message in all_of(other)]
    assert came == [[0, number] for number in range(1, 9)]
    assert [head for head, _ in lost] == [[10], [11], [12]]


def test_a_segment_that_is_viewed_here_too_is_dropped_when_it_is_not(ends: tuple[FrontEndLink, FrontEndLink]) -> None:
    one, other = ends
    lost = losses(other)
    body = memory_for(one.lender, LARGE)
    head, payload = RequestWriter(one.lender).write(1, InferenceRequest("m", raw_input=body), NO_DESCRIPTION)
    assert one.send(head, payload)
    one.flush()
    with no_file_left():
        assert all_of(other) == []
    assert len(lost) == 1
    other.flush()
    all_of(one)
    assert len(one.lender._lent) == 1, "it is viewed here"
    body[0] = 5
    del body, payload
    one.lender.sweep()
    assert (one.lender._lent, one.lender.free_bytes, one.lender._unusable) == ({}, 0, set())


def test_a_segment_that_is_dropped_before_a_message_names_it(ends: tuple[FrontEndLink, FrontEndLink]) -> None:
    one, other = ends
    lost = losses(other)
    filler = payload_of(bytes(INLINE_BYTES))[0]
    while one.send([0], filler):
        pass
    segment = one.lender.take(LARGE)
    with no_file_left():
        assert one._introduce(segment)
        one.flush()
        all_of(other)
    one.hear()
    one.lender.give_back(segment.number)
    one.lender.rest()
    one.lender.rest()
    assert one.lender.dropped == [segment.number]
    one.flush()
    all_of(other)
    assert segment.number not in other._borrower
    assert lost == []


def test_what_nobody_can_do_without_ends_the_link(ends: tuple[FrontEndLink, FrontEndLink]) -> None:
    one, other = ends
    send(one, 1)
    with no_file_left(), pytest.raises(LinkError, match="no open file"):
        all_of(other)


def test_what_must_not_be_lost_needs_no_descriptor(ends: tuple[FrontEndLink, FrontEndLink]) -> None:
    one, other = ends
    with no_file_left():
        assert one.send_plainly([1], payload_of(bytes(200 << 10))[0])
        one.flush()
        (message,) = all_of(other)
    assert len(message.payload) >= 200 << 10
    assert one.send_plainly([2], payload_of(bytes(LARGE))[0])  # a ring has no room for that
    one.flush()
    assert len(all_of(other)[0].payload) == LARGE


def test_lost_segments_are_bounded_and_named_once() -> None:
    borrower = LinkBorrower(2, 1)
    borrower.adopt(7, None, LARGE)
    borrower.adopt(8, None, LARGE)
    with pytest.raises(ValueError, match="more than 2 segments"):
        borrower.adopt(9, None, LARGE)
    assert 7 in borrower
    with pytest.raises(SegmentLostError):
        borrower.borrow(7, LARGE)
    assert list(borrower.returned) == [7 | LOST]
    assert 7 not in borrower
    with pytest.raises(KeyError):
        borrower.borrow(7, LARGE)


def test_memory_that_cannot_be_mapped_is_lost_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with both_ends() as (one, other):
        lost = losses(other)
        send(one, 1)

        def fails(*_given: object) -> None:
            raise OSError(errno.ENOMEM, "no memory")

        with monkeypatch.context() as patched:
            patched.setattr("mmap.mmap", fails)
            assert all_of(other) == []
        assert [head for head, _ in lost] == [[1]]


@pytest.mark.parametrize("error", [errno.ETOOMANYREFS, errno.EAGAIN, errno.ENOBUFS])
def test_descriptors_that_are_too_many_on_their_way_are_sent_later(
    ends: tuple[FrontEndLink, FrontEndLink], error: int
) -> None:
    one, other = ends
    real: Any = one._socket

    class Socket:
        """Takes no descriptor."""

        def sendmsg(self, *_given: object) -> int:
            raise OSError(error, "no")

        def send(self, data: bytes) -> int:
            return real.send(data)

    one._socket = Socket()  # type: ignore[assignment]
    assert not one.send([1], payload_of(bytes(LARGE))[0])
    one.flush()
    one._socket = real
    all_of(other)
    assert one.hear(), "it is told when to try again"
    send(one, 1)
    assert [message.head for message in all_of(other)] == [[1]]


def test_bytes_that_are_not_there_can_be_counted_and_cut() -> None:
    payload = unread(1 << 63)
    assert len(payload) == 1 << 62
    assert len(payload[16:48]) == 32
    assert len(unread(0)) == 0
    assert np.asarray(unread(100)).base is not None


def test_more_descriptors_than_introductions_end_the_link_still(ends: tuple[FrontEndLink, FrontEndLink]) -> None:
    one, other = ends
    raw = socket.socket(fileno=os.dup(one.fileno()))
    raw.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, np.zeros(17, np.int32).tobytes())])
    raw.close()
    with pytest.raises(LinkError, match="more descriptors than segments"):
        other.hear()
