"""Responses on the wire: framing, and nothing but what the application gave."""

from __future__ import annotations

from trireme.api.http.exchange import TEXT, Answer
from trireme.api.http.h1.messages import CHUNKED, chunk, whole_response


def encode(answer: Answer, keep_alive: bool = True, **how: bool) -> bytes:
    return b"".join(whole_response(answer, keep_alive, **how))  # type: ignore[arg-type]


OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


def test_a_body_has_its_length() -> None:
    answer = Answer(200, TEXT, b"abc", [(b"X", b"y")], tail=b"de")
    assert encode(answer) == OK + b"Content-Length: 5\r\nX: y\r\n\r\nabcde"


def test_streamed_body_is_chunked() -> None:
    """An empty piece is no chunk: it would end the body."""
    assert whole_response(Answer(200, TEXT), framing=CHUNKED) == [OK + CHUNKED + b"\r\n"]
    assert b"".join(chunk(b"c" * 16, last=False)) == b"10\r\n" + b"c" * 16 + b"\r\n"
    assert chunk(b"", last=False) == []
    assert b"".join(chunk(b"c", last=True)) == b"1\r\nc\r\n0\r\n\r\n"


def test_connection_header_is_echoed() -> None:
    """docs/reference/http.md#transport; keep-alive is the default of 1.1 and must be named in 1.0."""
    answer = Answer(200, TEXT)
    assert b"Connection" not in encode(answer)
    assert encode(answer, keep_alive=False).endswith(b"Connection: close\r\n\r\n")
    assert encode(answer, http10=True).startswith(b"HTTP/1.0 200 OK\r\n")
    assert encode(answer, http10=True).endswith(b"Connection: keep-alive\r\n\r\n")
    assert b"Connection" not in encode(answer, keep_alive=False, http10=True)


def test_head_has_headers_and_no_body() -> None:
    assert encode(Answer(200, TEXT, b"abc", tail=b"d"), with_body=False) == OK + b"Content-Length: 4\r\n\r\n"


def test_reason_phrases() -> None:
    assert encode(Answer(405, TEXT)).startswith(b"HTTP/1.1 405 Not Allowed\r\n")
    assert encode(Answer(404, TEXT)).startswith(b"HTTP/1.1 404 Not Found\r\n")


def test_large_body_is_not_copied() -> None:
    body, tail = b"x" * 100_000, bytearray(b"x" * 100_000)
    assert whole_response(Answer(200, TEXT, body))[1] is body
    assert whole_response(Answer(200, TEXT, b"", tail=tail))[1] is tail
