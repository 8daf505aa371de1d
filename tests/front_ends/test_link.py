"""The link: two ends in one process, over real sockets and memory files."""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from link_ends import all_of, both_ends, payload_of

from trireme.front_ends import link
from trireme.front_ends.link import (
    INLINE_BYTES,
    MOST_HEAD_BYTES,
    FrontEndLink,
    LinkError,
    map_rings,
    ring_memory,
)
from trireme.front_ends.ring import RingWriter
from trireme.python_backend.child.segments import MOST_BORROWED


@pytest.fixture
def ends() -> Iterator[tuple[FrontEndLink, FrontEndLink]]:
    with both_ends() as ends:
        yield ends


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc"), inner, max_size=3),
    max_leaves=10,
)


@settings(deadline=None, max_examples=50)
@given(
    messages=st.lists(
        st.tuples(st.lists(plain, min_size=1, max_size=4), st.lists(st.sampled_from([0, 1, 17, 5_000, 40_000]))),
        max_size=6,
    )
)
def test_messages_arrive_as_they_were_sent(messages: list[tuple[list[Any], list[int]]]) -> None:
    with both_ends() as (one, other):
        sent = []
        for number, (head, sizes) in enumerate(messages):
            contents = [bytes([number % 256]) * size for size in sizes]
            payload, places = payload_of(*contents)
            assert one.send(head, payload)
            sent.append((head, contents, places))
        one.flush()
        came = all_of(other)
        assert [message.head for message in came] == [head for head, _, _ in sent]
        for message, (_, contents, places) in zip(came, sent, strict=True):
            assert [message.payload[at : at + len(each)] for at, each in zip(places, contents, strict=True)] == contents


def test_nothing_is_seen_before_the_flush(ends: tuple[FrontEndLink, FrontEndLink]) -> None:
    one, other = ends
    one.send(["early"])
    assert all_of(other) == []
    one.flush()
    assert [message.head for message in all_of(other)] == [["early"]]


def test_a_turn_rings_once(ends: tuple[FrontEndLink, FrontEndLink]) -> None:
    one, other = ends
    for number in range(100):
        one.send([number])
    one.flush()
    one.flush()
    bells = socket.socket(fileno=os.dup(other.fileno()))
    assert bells.recv(100) == b"\0"
    bells.close()


def test_a_body_is_received_into_what_the_other_end_views(ends: tuple[FrontEndLink, FrontEndLink]) -> None:
    one, other = ends
    segment = one.lender.take(1 << 20)
    segment.memory[:4] = b"\1\2\3\4"
    assert one.send_segment(["body"], segment, 1 << 20)
    one.flush()
    (message,) = all_of(other)
    view = np.frombuffer(message.payload, np.uint8)
    assert view[:4].tolist() == [1, 2, 3, 4]
    segment.memory[0] = 9  # the same memory
    assert view[0] == 9
    assert one.lender.free_bytes == 0
    del message, view
    other.flush()
    all_of(one)
    assert one.lender.free_bytes >= 1 << 20  # nothing views it any more
    assert one.lender.take(1 << 20) is segment


def test_a_view_outlives_the_link() -> None:
    with both_ends() as (one, other):
        one.send(["large"], payload_of(b"\7" * 100_000)[0])
        one.flush()
        (message,) = all_of(other)
    assert message.payload[99_999] == 7


def test_a_full_ring_refuses_and_tells_when_there_is_room(ends: tuple[FrontEndLink, FrontEndLink]) -> None:
    one, other = ends
    sent = 0
    while one.send([sent], payload_of(bytes(INLINE_BYTES))[0]):
        sent += 1
    one.flush()
    assert sent > 50
    assert len(all_of(other)) == sent
    assert one.hear()
    assert not one.hear()  # told once
    assert one.send(["more"])
    one.flush()
    assert [message.head for message in all_of(other)] == [["more"]]


def test_a_segment_may_come_before_it_is_heard_which_was_dropped_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "MOST_SEGMENTS", 2)
    with both_ends() as (first, second):
        held = []
        for number, size in enumerate((1 << 20, 1 << 20)):
            assert first.send([number], payload_of(bytes(size))[0])
        first.flush()
        held += all_of(second)
        assert not first.send([2], payload_of(bytes(1 << 20))[0])
        held.clear()
        second.flush()
        all_of(first)
        assert first.send([2], payload_of(bytes(64 << 20))[0])  # another is dropped for it
        first.flush()
        (message,) = all_of(second)
        assert message.head == [2]
        assert len(message.payload) == 64 << 20


def test_no_segment_is_made_while_there_is_no_room(ends: tuple[FrontEndLink, FrontEndLink]) -> None:
    first, second = ends
    filler = payload_of(bytes(INLINE_BYTES))[0]
    while first.send(["full"], filler):
        pass
    for size in range(1, 9):
        assert not first.send(["large"], payload_of(bytes(size << 20))[0])
    assert first.lender.free_bytes == 0
    first.flush()
    all_of(second)
    second.flush()
    assert first.hear()
    assert first.send(["large"], payload_of(bytes(1 << 20))[0])


def test_segments_that_go_back_are_not_forgotten_by_a_full_ring(ends: tuple[FrontEndLink, FrontEndLink]) -> None:
    one, other = ends
    one.send(["large"], payload_of(bytes(100_000))[0])
    one.flush()
    messages = all_of(other)
    while other.send(["x"], payload_of(bytes(INLINE_BYTES))[0]):
        pass
    while other.send([[""]]):
        pass
    del messages
    other.flush()
    all_of(one)
    assert one.lender.free_bytes == 0  # there was no room to say so
    other.hear()
    other.flush()
    all_of(one)
    assert one.lender.free_bytes >= 100_000


def test_the_end_of_the_other_process_is_heard(ends: tuple[FrontEndLink, FrontEndLink]) -> None:
    one, other = ends
    one.send(["last words"])
    one.flush()
    one.close()
    other.hear()  # the bell
    with pytest.raises(LinkError, match="the other end is gone"):
        other.hear()
    message = other.receive()  # what it said before counts, if anybody wants it
    assert message is not None
    assert message.head == ["last words"]
    other.send(["hello"])
    with pytest.raises(LinkError, match="the other end is gone"):
        other.flush()


@pytest.mark.parametrize(
    "head", [[b"bytes"], [object()], [2**64], ["x" * MOST_HEAD_BYTES], ["\ud800"]], ids=lambda head: str(type(head[0]))
)
def test_a_head_that_cannot_be_sent_is_refused_and_costs_nothing(
    ends: tuple[FrontEndLink, FrontEndLink], head: list[Any]
) -> None:
    one, other = ends
    with pytest.raises(ValueError, match=r"head of a message|names, parameters and texts"):
        one.send(head)
    one.send(["well"])
    one.flush()
    assert [message.head for message in all_of(other)] == [["well"]]


FRAME = struct.Struct("<IHHQQ")


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (b"", "unpack"),
        (b"\0" * 23, "unpack"),
        (FRAME.pack(4, 0, 0, 0, 0) + b"[1,2", "JSON|unexpected"),
        (FRAME.pack(4, 0, 0, 0, 0) + b"null", "without a head"),
        (FRAME.pack(100, 0, 0, 0, 0) + b"[1]", "without a head|JSON|unexpected"),
        (FRAME.pack(3, 65_535, 0, 0, 0) + b"[1]", "unpack"),
        (FRAME.pack(3, 0, 0, 8, 100) + b"[1]", "segment 7"),
        (FRAME.pack(9, 0, 0, 0, 2) + b"[[0],[1]]", "not as many"),
        (FRAME.pack(7, 0, 0, 0, 1) + b"[1,[1]]", "not as many"),
        (FRAME.pack(9, 0, 0, 0, 1) + b"[[0],[ ]]", "without a head"),
        (FRAME.pack(10, 0, 0, 0, 1) + b"[[-1],[1]]", "without a size"),
        (FRAME.pack(12, 0, 0, 0, 1) + b"[[true],[1]]", "without a size"),
        (FRAME.pack(10, 0, 0, 0, 1) + b"[[99],[1]]" + bytes(64), "longer than their record"),
    ],
)
def test_what_is_no_message_ends_the_link(record: bytes, text: str) -> None:
    descriptor, nbytes = ring_memory()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    writer, _ = map_rings(descriptor, nbytes, first=False)
    link = FrontEndLink(ours, map_rings(descriptor, nbytes, first=True))
    os.close(descriptor)
    writer.put([record])
    writer.publish()
    with pytest.raises(LinkError, match=text):
        link.receive()
    link.close()
    theirs.close()


def test_brief_messages_of_a_turn_are_one_record(ends: tuple[FrontEndLink, FrontEndLink]) -> None:
    one, other = ends
    put: list[int] = []
    writer: Any = one._writer
    write = writer.put
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(one, "_write", lambda parts: put.append(len(parts)) is None and write(parts))
        for number in range(20):
            assert one.send((1, number, "id"), payload_of(bytes([number]) * number)[0])
        one.flush()
        assert len(put) == 1
        one.send((1, 20, "id"))
        one.send((2, 21, [1]))  # is not brief, and goes behind those before it
        one.send((1, 22, "id"))
        one.flush()
        assert len(put) == 4
    came = all_of(other)
    assert [message.head[1] for message in came] == list(range(23))
    assert all(bytes(each.payload[:number]) == bytes([number]) * number for number, each in enumerate(came[:20]))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 12_000), st.booleans(), st.integers(0, 30)), max_size=60))
def test_messages_of_all_sizes_fill_the_ring_and_come_in_order(steps: list[tuple[int, bool, int]]) -> None:
    with both_ends() as (one, other):
        sent: list[int] = []
        came: list[int] = []
        for size, brief, times in steps:
            for _ in range(times):
                number = len(sent)
                if one.send([number] if brief else [number, None], payload_of(bytes(size))[0]):
                    sent.append(number)
            one.flush()
            if size % 3:
                came += [message.head[0] for message in all_of(other)]
                one.hear()
        came += [message.head[0] for message in all_of(other)]
        assert came == sent


@given(records=st.lists(st.binary(max_size=200), max_size=5), bells=st.binary(max_size=100))
@settings(deadline=None)
def test_no_bytes_do_harm(records: list[bytes], bells: bytes) -> None:
    descriptor, nbytes = ring_memory()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    writer: RingWriter = map_rings(descriptor, nbytes, first=False)[0]
    link = FrontEndLink(ours, map_rings(descriptor, nbytes, first=True))
    os.close(descriptor)
    for record in records:
        writer.put([FRAME.pack(len(record), 0, 0, 0, 0), record] if record[:1] == b"[" else [record])
    writer.publish()
    theirs.send(b"\0" + bells)
    try:
        link.hear()
        while link.receive() is not None:
            pass
        link.release()
    except LinkError:
        pass
    finally:
        link.close()
        theirs.close()


def test_descriptors_that_nobody_introduced_are_closed(ends: tuple[FrontEndLink, FrontEndLink]) -> None:
    one, other = ends
    before = len(os.listdir("/proc/self/fd"))
    raw = socket.socket(fileno=os.dup(one.fileno()))
    rights = struct.pack("17i", *[0] * 17)
    raw.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    raw.close()
    with pytest.raises(LinkError, match="more descriptors than segments"):
        other.hear()
    other.close()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_segment_that_may_shrink_is_not_taken(ends: tuple[FrontEndLink, FrontEndLink]) -> None:
    one, other = ends
    descriptor = os.memfd_create("shrinks")
    os.ftruncate(descriptor, 1 << 20)
    raw = socket.socket(fileno=os.dup(one.fileno()))
    raw.sendmsg(
        [struct.pack("<cQQ", b"\1", 5, 1 << 20)],
        [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", descriptor))],
    )
    raw.close()
    os.close(descriptor)
    with pytest.raises(LinkError, match="segment 5: it may shrink"):
        other.hear()


def test_a_doorbell_without_end_is_given_up() -> None:
    class Socket:
        """Always has more to read."""

        def recvmsg(self, nbytes: int, _ancillary: int) -> tuple[bytes, list[Any], int, None]:
            return bytes(nbytes), [], 0, None

        def close(self) -> None: ...

    descriptor, nbytes = ring_memory()
    sock: Any = Socket()
    link = FrontEndLink(sock, map_rings(descriptor, nbytes, first=True))
    os.close(descriptor)
    with pytest.raises(LinkError, match="does not stop"):
        link.hear()
    link.close()


def test_a_segment_may_be_introduced_while_messages_are_read(ends) -> None:
    """A message that comes after the socket was read names a segment of which the socket tells."""
    one, other = ends
    assert one.send([1])
    one.flush()
    other.hear()
    payload, _ = payload_of(b"a" * (INLINE_BYTES + 1))
    assert one.send([2], payload)
    one.flush()
    first, second = other.receive(), other.receive()
    assert first is not None
    assert second is not None
    assert (first.head, second.head) == ([1], [2])
    assert bytes(second.payload[: INLINE_BYTES + 1]) == b"a" * (INLINE_BYTES + 1)
    assert not other.release()


def test_a_bell_that_is_heard_while_messages_are_read_is_not_lost(ends) -> None:
    """Whoever has been refused room waits for a bell, which may come with the introduction of a segment."""
    one, other = ends
    while other.send([3, "a" * 1_000]):
        pass
    other.flush()
    assert one.send([1])
    one.flush()
    assert not other.hear() or not other.send([3, "a" * 1_000])
    all_of(one)  # makes room, and rings
    payload, _ = payload_of(b"a" * (INLINE_BYTES + 1))
    assert one.send([2], payload)
    one.flush()
    while other.receive() is not None:
        pass
    assert other.release()
    assert other.send([3, "a" * 1_000])
    assert not other.release()


def test_who_finds_the_socket_full_of_introductions_hears_when_it_is_read(ends) -> None:
    one, other = ends
    payload, _ = payload_of(b"a" * (INLINE_BYTES + 1))
    while one.send([1], payload):
        one.flush()
    one.flush()
    received = all_of(other)  # which keeps all segments: none can be used again
    readable, _, _ = select.select([one], [], [], 0)
    assert readable, "it is told that it may try again"
    assert one.hear()
    assert one.send([2], payload)
    one.flush()
    assert [message.head for message in all_of(other)] == [[2]]
    assert received


@pytest.mark.parametrize("kept", [0, MOST_BORROWED])
def test_segments_that_are_done_with_are_given_back_though_nothing_is_sent(kept: int) -> None:
    """Few of them need not be: they are with the next message."""
    with both_ends() as (one, other):
        calls: list[None] = []
        other._borrower.on_returned = lambda: calls.append(None)
        payload, _ = payload_of(b"a" * (INLINE_BYTES + 1))
        held = []
        for number in range(kept + 2 * MOST_BORROWED):
            assert one.send([number], payload)
            one.flush()
            other.hear()
            message = other.receive()
            if number < kept:
                held.append(message)
            del message
        assert calls
        other.flush()
        all_of(one)
        assert len(one.lender._lent) == kept
