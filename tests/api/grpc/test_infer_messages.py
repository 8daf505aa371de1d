"""Our reader of infer requests against protobuf's own: it reads the same in everything, and refuses the same."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st
from infer_wire_strategies import Request, RequestWithoutMaps, requests, said_by_protobuf, said_by_us, varint, wires

from trireme.api.grpc.infer_request import read_infer_request
from trireme.api.grpc.wire import UnreadableError


def ours(message: bytes) -> tuple[Any, ...] | None:
    """None if it is refused."""
    try:
        return said_by_us(read_infer_request(message))
    except UnreadableError:
        return None


def theirs(message: bytes) -> tuple[Any, ...] | None:
    try:
        return said_by_protobuf(RequestWithoutMaps.FromString(message))
    except DecodeError:
        return None


@settings(max_examples=150, deadline=None)
@given(requests)
def test_what_protobuf_writes_is_read_as_it_was_meant(request: Any) -> None:
    message = request.SerializeToString()
    assert ours(message) == said_by_protobuf(request)
    assert said_by_us(read_infer_request(memoryview(message))) == said_by_protobuf(request)


@settings(max_examples=300, deadline=None)
@given(wires)
@example(b"\x0a\x02\xff\xfe")
@example(b"\x0a\x05ab")
def test_any_encoding_is_read_as_protobuf_reads_it(message: bytes) -> None:
    assert ours(message) == theirs(message)


@settings(max_examples=100, deadline=None)
@given(requests, st.data())
def test_damaged_requests_are_read_or_refused_as_by_protobuf(request: Any, data: st.DataObject) -> None:
    message = bytearray(request.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(message)))
        change = data.draw(st.sampled_from(["cut", "insert", "replace", "remove", "double"]))
        octet = data.draw(st.integers(0, 255))
        if change == "cut":
            del message[at:]
        elif change == "insert":
            message.insert(at, octet)
        elif change == "replace":
            message[at : at + 1] = bytes([octet])
        elif change == "remove":
            del message[at : at + 1]
        else:
            message += message[at:]
    assert ours(bytes(message)) == theirs(bytes(message))


@settings(max_examples=40, deadline=None)
@given(requests, requests)
def test_messages_one_behind_the_other_are_merged(first: Any, second: Any) -> None:
    message = first.SerializeToString() + second.SerializeToString()
    first.MergeFrom(second)
    assert ours(message) == said_by_protobuf(first)


def test_unknown_fields_of_a_map_entry_do_not_cost_the_entry() -> None:
    assert read_infer_request(b"\x22\x0b\x0a\x03foo\x12\x02\x10\x05\x48\x01").parameters == {"foo": 5}


@pytest.mark.parametrize("depth", [1, 98, 99, 100, 101, 5000])
def test_groups_are_skipped_to_the_depth_that_protobuf_allows(depth: int) -> None:
    message = varint(9 << 3 | 3) * depth + varint(9 << 3 | 4) * depth + b"\x0a\x01m"
    assert ours(message) == theirs(message)
    assert (ours(message) is None) == (depth > 100)


def test_raw_contents_are_views_on_the_message() -> None:
    message = bytearray(Request(raw_input_contents=[b"1234"]).SerializeToString())
    (raw,) = read_infer_request(message).raw
    message[-4:] = b"5678"
    assert raw == b"5678"
