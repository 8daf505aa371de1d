"""The response encoder: framing, and nothing but what the application gave."""

from __future__ import annotations

import pytest

from trireme.api.http.h1.response import ResponseEncoder, ResponseMessageError, ResponseState


def encode(start: dict, *bodies: bytes, **encoder: bool) -> tuple[bytes, ResponseEncoder]:
    """What a response of these bodies looks like on the wire."""
    response = ResponseEncoder(**encoder)
    response.start({"status": 200, "headers": [], **start})
    wire = b""
    for index, body in enumerate(bodies):
        wire += b"".join(response.body({"body": body, "more_body": index < len(bodies) - 1}))
    return wire, response


def test_body_at_once_has_a_content_length() -> None:
    wire, response = encode({"headers": [(b"Content-Type", b"text/plain")]}, b"abc")
    assert wire == b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nabc"
    assert response.state is ResponseState.DONE
    assert response.keep_alive


def test_streamed_body_is_chunked() -> None:
    """An empty piece is no chunk: it would end the body."""
    wire, response = encode({}, b"ab", b"", b"c" * 16, b"")
    chunks = b"2\r\nab\r\n" + b"10\r\n" + b"c" * 16 + b"\r\n" + b"0\r\n\r\n"
    assert wire == b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    assert response.keep_alive


def test_last_piece_of_a_streamed_body_is_sent() -> None:
    wire, _ = encode({}, b"ab", b"c")
    assert wire.endswith(b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")


def test_streamed_body_with_its_length_declared() -> None:
    wire, _ = encode({"headers": [(b"content-length", b"3")]}, b"ab", b"c")
    assert wire == b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc"


def test_streamed_body_in_http_1_0_ends_with_the_connection() -> None:
    wire, response = encode({}, b"ab", b"c", http10=True)
    assert wire == b"HTTP/1.0 200 OK\r\n\r\nabc"
    assert not response.keep_alive


def test_connection_header_is_echoed() -> None:
    """docs/reference/http.md#transport; keep-alive is the default of 1.1 and must be named in 1.0."""
    assert b"Connection" not in encode({}, b"")[0]
    assert encode({}, b"", keep_alive=False)[0].endswith(b"Connection: close\r\n\r\n")
    assert encode({}, b"", http10=True)[0].endswith(b"Connection: keep-alive\r\n\r\n")
    assert b"Connection" not in encode({}, b"", http10=True, keep_alive=False)[0]


def test_head_has_headers_and_no_body() -> None:
    assert encode({}, b"abc", head_only=True)[0] == b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n"
    declared = {"headers": [(b"Content-Length", b"30")]}
    assert encode(declared, b"", head_only=True)[0] == b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n"
    assert encode({}, b"a", b"b", head_only=True)[0] == b"HTTP/1.1 200 OK\r\n\r\n"


@pytest.mark.parametrize("status", [204, 304])
def test_statuses_without_body(status: int) -> None:
    wire, _ = encode({"status": status}, b"abc")
    assert wire.startswith(b"HTTP/1.1 %d " % status)
    assert wire.endswith(b"\r\n\r\n")
    assert b"Content-Length" not in wire


def test_reason_phrases() -> None:
    assert encode({"status": 405, "reason": b"Not Allowed"}, b"")[0].startswith(b"HTTP/1.1 405 Not Allowed\r\n")
    assert encode({"status": 404}, b"")[0].startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert encode({"status": 599}, b"")[0].startswith(b"HTTP/1.1 599 Unknown\r\n")
    assert encode({"status": 200, "reason": b"Fine"}, b"", http10=True)[0].startswith(b"HTTP/1.0 200 Fine\r\n")


def test_large_body_is_not_copied() -> None:
    body = bytearray(b"x" * 100_000)
    response = ResponseEncoder()
    response.start({"status": 200})
    buffers = response.body({"body": body})
    assert isinstance(buffers[1], memoryview)
    assert buffers[1].obj is body


@pytest.mark.parametrize("bodies", [(b"ab",), (b"abcd",), (b"a", b"b"), (b"a", b"bcd")])
def test_body_must_have_its_declared_length(bodies: tuple[bytes, ...]) -> None:
    """Otherwise the next response would be read from the wrong place."""
    with pytest.raises(ResponseMessageError, match="Content-Length"):
        encode({"headers": [(b"Content-Length", b"3")]}, *bodies)


@pytest.mark.parametrize(
    "start",
    [
        {"headers": [(b"X", b"a\r\nSet-Cookie: b")]},
        {"headers": [(b"X\r\nY", b"a")]},
        {"headers": [(b"X", b"a\nb")]},
        {"reason": b"OK\r\n"},
    ],
)
def test_line_breaks_cannot_be_smuggled_in(start: dict) -> None:
    with pytest.raises(ResponseMessageError, match="line break"):
        encode(start, b"")


def test_order_of_messages() -> None:
    response = ResponseEncoder()
    with pytest.raises(ResponseMessageError, match="START"):
        response.body({"body": b""})
    response.start({"status": 200})
    with pytest.raises(ResponseMessageError, match="HEAD"):
        response.start({"status": 200})
    response.body({"body": b""})
    with pytest.raises(ResponseMessageError, match="DONE"):
        response.body({"body": b""})
