"""Header blocks of answers: what a client decodes is what was meant, and never too much."""

from __future__ import annotations

import sys

import hpack
import pytest
from grpclib.const import Status
from grpclib.metadata import decode_grpc_message
from hypothesis import given
from hypothesis import strategies as st

from trireme.api.grpc import blocks


def fields(block: bytes) -> list[tuple[str, str]]:
    return [(str(name), str(value)) for name, value in hpack.Decoder().decode(block)]


def test_success() -> None:
    """As Triton's server says it."""
    assert fields(blocks.HEADERS["identity"]) == [
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-accept-encoding", "identity, deflate, gzip"),
    ]
    assert fields(blocks.OK["identity"].trailers) == [("grpc-status", "0")]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_packed_answers_say_so(encoding: str) -> None:
    assert ("grpc-encoding", encoding) in fields(blocks.HEADERS[encoding])


def test_trailers_only() -> None:
    """As Triton's server says it: no word about encodings, and no empty message."""
    assert fields(blocks.trailers_only(Status.NOT_FOUND, "gone")) == [
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-status", "5"),
        ("grpc-message", "gone"),
    ]
    assert fields(blocks.trailers_only(Status.UNIMPLEMENTED, "", http_status=415))[0] == (":status", "415")
    assert fields(blocks.trailers_only(Status.UNIMPLEMENTED, ""))[2:] == [("grpc-status", "12")]


def test_unknown_encodings_are_told_which_are_known() -> None:
    assert ("grpc-accept-encoding", "identity, deflate, gzip") in fields(
        blocks.trailers_only(Status.UNIMPLEMENTED, "no", tell_encodings=True)
    )


@given(st.text(st.characters()))
def test_messages_arrive(text: str) -> None:
    """Even ones that contain what is no character: half a surrogate pair, as undecodable bytes leave it."""
    found = dict(fields(blocks.trailers(Status.INTERNAL, text))).get("grpc-message", "")
    assert found.isascii()
    assert decode_grpc_message(found) == text.encode("utf-8", "replace").decode()


@given(st.text(st.sampled_from("a%é漢😀\n"), min_size=1, max_size=9), st.integers(1000, 4000))
def test_long_messages_are_cut_between_characters(text: str, times: int) -> None:
    """So that the status gets through to clients that take header lists of 8 KiB."""
    message = text * times
    found = dict(fields(blocks.trailers(Status.INTERNAL, message)))["grpc-message"]
    assert len(found) <= blocks.MAX_MESSAGE_BYTES
    decoded = decode_grpc_message(found)
    assert "\ufffd" not in decoded
    assert message.startswith(decoded)
    assert len(found) > blocks.MAX_MESSAGE_BYTES - 16 or decoded == message


def test_what_many_calls_are_refused_with_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[object] = []
    encode = blocks.encode_block
    monkeypatch.setattr(blocks, "encode_block", lambda fields: encoded.append(fields) or encode(fields))
    blocks._kept_trailers_only.cache_clear()
    first, second = (blocks.trailers_only(Status.UNAVAILABLE, "Exceeds maximum queue size") for _ in range(2))
    assert first == second
    assert len(encoded) == 1
    assert blocks.trailers_only(Status.UNAVAILABLE, "another text") != first


def test_of_a_long_message_no_more_is_kept_than_is_sent() -> None:
    message = "é" * 1_000_000
    before = sys.getrefcount(message)
    assert fields(blocks.trailers_only(Status.INTERNAL, message)) == fields(
        blocks.trailers_only(Status.INTERNAL, message[: blocks.MAX_MESSAGE_BYTES + 1])
    )
    assert sys.getrefcount(message) == before
