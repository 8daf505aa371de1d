"""What request headers mean, and which make no call."""

from __future__ import annotations

import base64

import pytest
from grpclib.const import Status
from grpclib.metadata import encode_timeout
from hypothesis import given
from hypothesis import strategies as st

from trireme.api.grpc.call_head import CallHead, CallRefusal, parse_head

HEAD = {
    b":method": b"POST",
    b":scheme": b"http",
    b":path": b"/a.B/C",
    b":authority": b"host",
    b"te": b"trailers",
    b"content-type": b"application/grpc",
}


BAD_BINARY = CallRefusal(Status.INTERNAL, "Metadata with a -bin key is not valid base64")


def parse(*extra: tuple[bytes, bytes], without: bytes = b"", **changed: bytes) -> CallHead:
    """The head of a usual request with some headers changed, one left out, or more behind them."""
    changes = {b":" + name.encode(): value for name, value in changed.items()}
    fields = {**HEAD, **changes}
    fields.pop(without, None)
    return parse_head([*fields.items(), *extra])


def test_a_usual_head() -> None:
    head = parse(
        (b"user-agent", b"grpc-python/1.60"),
        (b"grpc-accept-encoding", b"identity, deflate,gzip"),
        (b"grpc-encoding", b"gzip"),
        (b"grpc-timeout", b"250m"),
        (b"grpc-tags-bin", b"AAAA"),
        (b"x-one", b"1"),
        (b"x-two", b"a, b"),
        (b"x-one", b"2"),
    )
    assert head.refusal is None
    assert head.path == "/a.B/C"
    assert head.user_agent == "grpc-python/1.60"
    assert head.accepted_encodings == ("identity", "deflate", "gzip")
    assert head.encoding == "gzip"
    assert head.timeout_s == 0.25
    assert list(head.metadata.items()) == [("x-one", "1"), ("x-two", "a, b"), ("x-one", "2")]


def test_a_bare_head() -> None:
    head = parse(without=b"content-type")
    assert (head.refusal, head.timeout_s, head.encoding, head.accepted_encodings) == (None, None, "identity", ())
    assert not head.metadata


@given(st.binary(max_size=40))
def test_binary_metadata_is_decoded(value: bytes) -> None:
    """With padding or without."""
    padded = base64.b64encode(value)
    head = parse((b"a-bin", padded), (b"b-bin", padded.rstrip(b"=")))
    assert head.refusal is None
    assert dict(head.metadata) == {"a-bin": value, "b-bin": value}


def test_binary_metadata_may_be_a_list() -> None:
    assert parse((b"a-bin", b"YQ==, Yg,")).metadata.getall("a-bin") == [b"a", b"b", b""]


@given(st.floats(1e-6, 1e8))
def test_timeouts_of_clients_are_understood(timeout_s: float) -> None:
    """To within what grpclib's client writes."""
    read_s = parse((b"grpc-timeout", encode_timeout(timeout_s).encode())).timeout_s
    assert read_s is not None
    assert read_s == pytest.approx(timeout_s, rel=0.11)


@pytest.mark.parametrize(
    ("text", "timeout_s"),
    [
        (b"1H", 3600.0), (b"2M", 120.0), (b"0S", 0.0), (b"7u", 7e-6), (b"9n", 9e-9), (b" 1 S", 1.0),
        (b"99999999999S", 1e9),
    ],
)  # fmt: skip
def test_timeouts(text: bytes, timeout_s: float) -> None:
    assert parse((b"grpc-timeout", b"5S"), (b"grpc-timeout", text)).timeout_s == pytest.approx(timeout_s)


@pytest.mark.parametrize("text", [b"", b"5", b"S", b"-1S", b"1s", b".5S", b"1e3S", b"\xb2S", b"1" * 30 + b"S"])
def test_timeouts_that_are_none(text: bytes) -> None:
    refusal = parse((b"grpc-timeout", text)).refusal
    assert refusal == CallRefusal(Status.INTERNAL, f"Invalid grpc-timeout: '{text.decode('latin-1')}'")


@pytest.mark.parametrize(
    "content_type",
    [b"application/grpc", b"application/grpc+proto", b"application/grpc;x", b"application/grpc+json", b""],
)
def test_content_types_of_grpc(content_type: bytes) -> None:
    assert parse((b"content-type", content_type)).refusal is None


@pytest.mark.parametrize(
    ("head", "refusal"),
    [
        (parse(method=b"GET"), CallRefusal(Status.UNKNOWN, "Bad method header", 405)),
        (
            parse((b"content-type", b"application/json")),
            CallRefusal(Status.UNKNOWN, "Unacceptable content-type header", 415),
        ),
        (
            parse((b"content-type", b"application/grpc-web")),
            CallRefusal(Status.UNKNOWN, "Unacceptable content-type header", 415),
        ),
        (parse(without=b"te"), CallRefusal(Status.UNKNOWN, "Missing :te header")),
        (parse(without=b":authority"), CallRefusal(Status.UNKNOWN, "Missing :authority header")),
        (parse((b"host", b"x"), without=b":authority"), None),
        (
            parse((b"grpc-encoding", b"snappy")),
            CallRefusal(Status.UNIMPLEMENTED, "Compression algorithm 'snappy' is not supported"),
        ),
        (parse((b"a-bin", b"!!!")), BAD_BINARY),
        (parse((b"a-bin", b"YQ=="), (b"b-bin", b"Y")), BAD_BINARY),
    ],
)
def test_refusals(head: CallHead, refusal: CallRefusal | None) -> None:
    assert head.refusal == refusal


@given(st.lists(st.tuples(st.sampled_from([*HEAD, b"grpc-timeout", b"grpc-encoding", b"x-bin", b"x"]), st.binary())))
def test_nothing_in_a_header_list_raises(fields: list[tuple[bytes, bytes]]) -> None:
    parse_head([*HEAD.items(), *fields])
