"""The channel carries messages whole and in order, of any size, and gives all memory back."""

from __future__ import annotations

import enum
import gc
import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from python_models import open_descriptors
from wired import flat

from trireme.python_backend.child import segments
from trireme.python_backend.child.channel import INLINE_BYTES, Channel, ChannelClosedError, socket_pair
from trireme.python_backend.child.codec import (
    ALIGNMENT,
    PREFIX,
    MessageError,
    Payload,
    WireTensor,
    cut,
    decode,
    encode,
)
from trireme.python_backend.child.segments import Lender, capacity_for, create_file
from trireme.python_backend.child.wire import array_of

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    """A server's end, which does not block, and a model's, which does."""
    server, model = socket_pair()
    server.setblocking(False)
    pair = Channel(server), Channel(model)
    yield pair
    for end in pair:
        end.close()


def payload_of(*arrays: np.ndarray) -> tuple[Payload, list[WireTensor]]:
    payload = Payload()
    tensors: list[WireTensor] = []
    for number, array in enumerate(arrays):
        offset = payload.add(array.reshape(-1).view(np.uint8).data)
        tensors.append((f"T{number}", 11, array.shape, offset, array.nbytes))
    return payload, tensors


@given(st.tuples(PLAIN, PLAIN), st.lists(st.binary(max_size=100)))
def test_what_was_encoded_is_decoded(head: tuple, contents: list[bytes]) -> None:
    payload = Payload()
    places = [(payload.add(content), len(content)) for content in contents]
    message = decode(memoryview(flat(encode(head, payload))))
    assert message.head == head
    assert [bytes(message.payload[at : at + size]) for at, size in places] == contents
    assert all(at % ALIGNMENT == 0 for at, _ in places)


def test_what_is_nearly_plain_is_made_plain() -> None:
    head = (
        enum.IntEnum("Code", "A").A,
        np.float32(0.5),
        np.int64(7),
        np.str_("é"),
        [np.bool_(True)],
        {np.str_("k"): 1},
    )
    message = decode(memoryview(flat(encode(head, Payload()))))
    assert message.head == (1, 0.5, 7, "é", (True,), {"k": 1})
    assert [type(item) for item in message.head[:4]] == [int, float, int, str]
    with pytest.raises(ValueError, match="a object cannot be sent"):
        encode((object(),), Payload())


@given(st.binary(max_size=64))
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(MessageError):
        decode(memoryview(garbage))


@given(st.integers(0, 30), st.integers(0, 7))
def test_a_message_with_a_wrong_bit_is_refused(at: int, bit: int) -> None:
    """Anywhere in the head: what reads it would believe any size that it is told."""
    broken = bytearray(flat(encode(("infer", 1, (2.5, "name"), {"k": b"v"}), Payload())))
    broken[at] ^= 1 << bit
    with pytest.raises(MessageError):
        decode(memoryview(broken))


@given(st.tuples(PLAIN, PLAIN), st.data())
def test_half_a_message_is_refused(head: tuple, data: st.DataObject) -> None:
    message = flat(encode(head, Payload()))
    (size, _) = PREFIX.unpack_from(message)
    end = data.draw(st.integers(0, PREFIX.size + size - 1))
    with pytest.raises(MessageError):
        decode(memoryview(message)[:end])


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 65), (64, 1), (-1, 4), (0, -4), (1 << 70, 4)])
def test_tensor_outside_of_its_message_is_refused(offset: int, nbytes: int) -> None:
    with pytest.raises(MessageError, match="T0"):
        cut(memoryview(bytes(64)), ("T0", 11, (1,), offset, nbytes))


@pytest.mark.parametrize("shape", [(3,), (-5,), ("a",), (2, 3), (1 << 70,), (1 << 40, 1 << 40)])
def test_tensor_whose_contents_do_not_fit_its_shape_is_refused(shape: tuple) -> None:
    with pytest.raises(MessageError, match="T0"):
        array_of(memoryview(bytes(64)), ("T0", 11, shape, 0, 16))


@pytest.mark.parametrize("offset", [-16, -1, 49, 64, 1 << 70])
def test_array_outside_of_its_message_is_refused(offset: int) -> None:
    with pytest.raises(MessageError, match="T0"):
        array_of(memoryview(bytes(64)), ("T0", 11, (4,), offset, 16))


@pytest.mark.parametrize("number", [0, 13, 15])
def test_numbers_of_no_element_type_are_refused(number: int) -> None:
    """13 is BYTES, whose elements are objects: what came must not be taken for their addresses."""
    with pytest.raises(MessageError, match="T0"):
        array_of(memoryview(bytes(64)), ("T0", number, (2,), 0, 16))


@pytest.mark.parametrize("elements", [0, 1, 16, INLINE_BYTES // 4 - 200, INLINE_BYTES // 4 + 1, 1 << 20])
def test_tensors_arrive_whatever_their_size(ends: tuple[Channel, Channel], elements: int) -> None:
    server, model = ends
    sent = np.arange(elements, dtype=np.float32)
    payload, tensors = payload_of(sent, sent[: elements // 2])
    server.send(("go", tuple(tensors)), payload)
    message = model.receive()
    assert message is not None
    kind, wire = message.head
    assert kind == "go"
    received = [array_of(message.payload, tensor) for tensor in wire]
    np.testing.assert_array_equal(received[0], sent)
    np.testing.assert_array_equal(received[1], sent[: elements // 2])
    assert all(array.flags.writeable and array.flags.aligned for array in received)


def test_thousands_of_tensors_fit_into_a_message(ends: tuple[Channel, Channel]) -> None:
    server, model = ends
    payload, tensors = payload_of(*[np.full(2, i, np.float32) for i in range(3000)])
    server.send((tuple(tensors),), payload)
    message = model.receive()
    assert message is not None
    assert [array_of(message.payload, tensor)[0] for tensor in message.head[0]] == list(range(3000))


def test_memory_is_not_overwritten_while_an_array_refers_to_it(ends: tuple[Channel, Channel]) -> None:
    server, model = ends
    views = []
    for number in range(4):
        payload, (tensor,) = payload_of(np.full(1 << 18, number, np.float32))
        server.send((tensor,), payload)
        message = model.receive()
        assert message is not None
        views.append(array_of(message.payload, message.head[0]).reshape(2, -1)[1:, 5:9])
        del message
    assert [view.max() for view in views] == [view.min() for view in views] == [0, 1, 2, 3]


def test_a_segment_is_used_again_once_nothing_refers_to_it(ends: tuple[Channel, Channel]) -> None:
    server, model = ends
    before = open_descriptors()
    for number in range(20):
        payload, (tensor,) = payload_of(np.full(1 << 18, number, np.float32))
        server.send((tensor,), payload)
        message = model.receive()
        assert message is not None
        assert array_of(message.payload, message.head[0])[-1] == number
        del message
        gc.collect()
        model.send(("done",))  # says that the segment is free
        assert server.receive() is not None
    assert len(open_descriptors() - before) == 2  # one segment, mapped at both ends


def test_more_segments_than_may_be_held_are_copied(ends: tuple[Channel, Channel]) -> None:
    server, model = ends
    before = open_descriptors()
    held = []
    for number in range(segments.MOST_BORROWED + 20):
        payload, (tensor,) = payload_of(np.full(1 << 15, number, np.float32))
        server.send((tensor,), payload)
        message = model.receive()
        assert message is not None
        held.append(array_of(message.payload, message.head[0]))
        del message
        model.send(("done",))
        server.receive()
    assert [array[0] for array in held] == list(range(segments.MOST_BORROWED + 20))
    assert len(open_descriptors() - before) <= 2 * (segments.MOST_BORROWED + 1)


def test_memory_is_given_back_when_traffic_becomes_small(ends: tuple[Channel, Channel]) -> None:
    server, model = ends
    before = open_descriptors()
    sizes = [*[8 << 20] * 3, *[1 << 16] * 200]
    for size in sizes:
        payload, (tensor,) = payload_of(np.zeros(size, np.float32))
        server.send((tensor,), payload)
        message = model.receive()
        del message
        model.send(("done",))
        server.receive()
    assert 0 < server.lender.free_bytes <= segments.LEAST_KEPT_BYTES
    assert len(open_descriptors() - before) == 2


def test_closing_leaves_nothing_behind() -> None:
    before = open_descriptors()
    pair = [Channel(sock) for sock in socket_pair()]
    payload, (tensor,) = payload_of(np.ones(1 << 18, np.float32))
    pair[0].send((tensor,), payload)
    message = pair[1].receive()
    assert message is not None
    array = array_of(message.payload, message.head[0])
    for end in pair:
        end.close()
    assert array.sum() == 1 << 18  # what is still referred to stays valid
    del message, array
    gc.collect()
    assert open_descriptors() <= before


def test_what_the_socket_does_not_take_waits_in_order(ends: tuple[Channel, Channel]) -> None:
    server, model = ends
    count = 0
    while not server.congested or count % 7:  # a few more than the socket takes, large and small ones
        payload, (tensor,) = payload_of(np.full(1 << 15 if count % 3 else 4, count, np.float32))
        server.send((tensor,), payload)
        count += 1

    def flush() -> None:
        while not server.flush():
            pass

    flushing = threading.Thread(target=flush)
    flushing.start()
    for number in range(count):
        message = model.receive()
        assert message is not None
        assert array_of(message.payload, message.head[0])[0] == number
        del message
    flushing.join()
    assert not server.congested


def test_nothing_to_receive_is_none(ends: tuple[Channel, Channel]) -> None:
    assert ends[0].receive() is None


def test_an_introduction_without_its_segment_yet_is_no_error(ends: tuple[Channel, Channel]) -> None:
    """The receiver may come between two datagrams that belong together."""
    server, model = ends
    received = []

    def receive() -> None:
        while len(received) < 50:
            message = server.receive()
            if message is not None:
                received.append(array_of(message.payload, message.head[0])[0])

    receiving = threading.Thread(target=receive)
    receiving.start()
    for number in range(50):
        payload, (tensor,) = payload_of(np.full(1 << 15, number, np.float32))
        model.send((tensor,), payload)
    receiving.join()
    assert received == list(range(50))


@pytest.mark.parametrize("end", [0, 1])
def test_the_other_ends_death_is_noticed(ends: tuple[Channel, Channel], end: int) -> None:
    ends[1 - end].close()
    with pytest.raises(ChannelClosedError):
        ends[end].receive()
    with pytest.raises(ChannelClosedError):
        ends[end].send(("x",))


def test_the_last_words_of_one_that_ends_without_reading_are_heard(ends: tuple[Channel, Channel]) -> None:
    server, model = ends
    server.send(("unread",))
    model.send(("last",))
    model.send(("words",))
    model.close()
    assert [server.receive().head, server.receive().head] == [("last",), ("words",)]  # type: ignore[union-attr]
    with pytest.raises(ChannelClosedError):
        server.receive()


@pytest.mark.parametrize("datagram", [b"x", b"\x09" * 40, b"\x02" + bytes(23), b"\x01" + bytes(23), b"\x01\0\0\0" * 6])
def test_a_broken_peer_is_noticed(datagram: bytes) -> None:
    server, peer = socket_pair()
    peer.send(datagram)
    channel = Channel(server)
    with pytest.raises(MessageError):
        channel.receive()
    channel.close()
    peer.close()


@pytest.mark.parametrize("nbytes", [1, 65_536, 300_000, 4 << 20, (4 << 20) + 300, 100 << 20])
def test_a_segment_is_little_larger_than_it_must_be(nbytes: int) -> None:
    assert nbytes <= capacity_for(nbytes) <= max(nbytes + segments.SMALLEST_BYTES, nbytes * 5 // 4 + 1)


def test_a_large_segment_is_not_spent_on_a_small_message() -> None:
    lender = Lender()
    large = lender.take(64 << 20)
    lender.give_back(large.number)
    assert lender.take(100_000) is not large
    lender.close()


def test_what_could_not_be_sent_any_more_leaves_nothing_behind() -> None:
    before = open_descriptors()
    sock, peer = socket_pair()
    channel = Channel(sock)
    payload, (tensor,) = payload_of(np.ones(1 << 18, np.float32))
    never_posted = channel.prepare((tensor,), payload)
    letter = channel.prepare((tensor,), payload)
    peer.close()
    with pytest.raises(ChannelClosedError):
        channel.post(letter)
    channel.close()
    with pytest.raises(OSError, match="closed"):
        channel.prepare((tensor,), payload)
    del never_posted, letter
    assert open_descriptors() <= before


def test_the_largest_messages_are_not_kept_when_nothing_follows_them() -> None:
    """A segment that was not written to takes no memory, so this one costs nothing."""
    before = open_descriptors()
    lender = Lender()
    usual, largest = lender.take(8 << 20), lender.take(segments.MOST_KEPT_BYTES + 1)
    lender.give_back(largest.number)
    lender.give_back(usual.number)
    assert lender.take(8 << 20) is usual
    assert list(lender.dropped) == [largest.number]
    lender.close()
    assert open_descriptors() <= before


def test_segments_are_sealed_by_interpreters_of_any_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    descriptor = create_file(1 << 20)
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 0)
    os.close(descriptor)
