"""An error's text and kind survive the way over gRPC, whatever they are."""

from __future__ import annotations

import pytest
from grpclib.const import Status
from hypothesis import given
from hypothesis import strategies as st

from trireme.api.grpc import blocks
from trireme.api.grpc.replica.status import ReplyHead, error_of_kind, parse_reply_head
from trireme.api.http2.headers import HeaderReader, check_answer
from trireme.api.http2.limits import Http2Limits
from trireme.engine.errors import ErrorKind, RefusalReason, TriremeError


def read(block: bytes) -> ReplyHead:
    return HeaderReader(Http2Limits(), parse_reply_head, check_answer).read(block)


@given(
    kind=st.sampled_from(ErrorKind),
    text=st.text(max_size=1_000).filter(str.isprintable) | st.just("x" * 5_000),
    refused=st.none() | st.sampled_from(RefusalReason),
    begun=st.booleans(),
)
def test_errors_are_what_they_were(kind: ErrorKind, text: str, refused: RefusalReason | None, begun: bool) -> None:
    status, message = blocks.grpc_error(error_of_kind(kind, text))
    assert message == text
    head = read((blocks.trailers if begun else blocks.trailers_only)(status, message, refused))
    error = head.error()
    assert (error.kind, error.message, str(error), head.refused) == (kind, text[:6144], text[:6144], refused)
    assert error.refusal is refused


def test_a_status_of_http_alone_is_an_error() -> None:
    for code, kind in ((503, ErrorKind.UNAVAILABLE), (404, ErrorKind.UNSUPPORTED), (500, ErrorKind.UNKNOWN)):
        error = parse_reply_head([(b":status", b"%d" % code), (b"content-type", b"text/html")]).error()
        assert error.kind is kind
        assert error.message == f"the replica answered with HTTP status {code}, expected gRPC"


@pytest.mark.parametrize("said", [b"77", b"-1", b"", b"9999", b"x"])
def test_statuses_that_are_none_are_unknown(said: bytes) -> None:
    assert parse_reply_head([(b"grpc-status", said)]).error().kind is ErrorKind.UNKNOWN


def test_a_reason_that_is_not_known_here_counts_as_none() -> None:
    head = parse_reply_head([(b"grpc-status", b"14"), (blocks.REFUSED, b"newer")])
    assert (head.status, head.refused) == (Status.UNAVAILABLE.value, None)


def test_errors_are_of_the_class_that_their_kind_names() -> None:
    for kind in ErrorKind:
        error = error_of_kind(kind, "text")
        assert isinstance(error, TriremeError)
        assert (error.kind, type(error).kind) == (kind, kind)
