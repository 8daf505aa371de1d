"""Bytes that are no good request, through the whole stack: an answer or a hang-up for each, and the server goes on.

The models count nothing of all this.
"""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from repository_models import link_models
from serve_process import PATIENCE_S, infer, outputs_of, tensor

PATH = b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: localhost\r\n"
MIB = 1 << 20


@pytest.fixture(scope="module")
def server(serve: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with serve(link_models(tmp_path_factory.mktemp("models"), "simple")) as live:
        yield live


@pytest.fixture(autouse=True)
def server_goes_on(server: Any) -> Iterator[None]:
    """Afterwards a good request gets the right answer, and it is the only one that was counted."""
    before = counts(server)
    yield
    inputs = [tensor("INPUT0", "INT32", list(range(16))), tensor("INPUT1", "INT32", [1] * 16)]
    status, answer = infer(server.port, "simple", *inputs)
    assert status == 200
    assert outputs_of(answer)["OUTPUT0"] == list(range(1, 17))
    assert counts(server) == (before[0] + 1, before[1], 0)


def counts(server: Any) -> tuple[int, int, int]:
    """Successes, failures and pending requests of the model."""
    (entry,) = server.server.statistics("simple")
    return entry.statistics.success.count, entry.statistics.fail.count, entry.statistics.pending


def say(server: Any, *pieces: bytes, hang_up: bool = False) -> bytes:
    """All that the server says to these bytes until it closes, or until its first answer is whole.

    Args:
        hang_up: say that nothing follows.
    """
    received = b""
    with socket.create_connection((server.host, server.port), timeout=PATIENCE_S) as client:
        try:
            for piece in pieces:
                client.sendall(piece)
            if hang_up:
                client.shutdown(socket.SHUT_WR)
            while data := client.recv(65_536):
                received += data
                head, end, body = received.partition(b"\r\n\r\n")
                length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                if end and length and len(body) >= int(length[0][15:]) and b"connection: close" not in head.lower():
                    break
        except (ConnectionResetError, BrokenPipeError):
            pass
    return received


def parts(answer: bytes) -> tuple[int, Any]:
    """Status and JSON of one answer, which must be all that was said."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), json.loads(body)


def post(body: bytes, *headers: bytes) -> bytes:
    lines = [*headers, b"Content-Length: %d" % len(body), b"", b""]
    return PATH + b"\r\n".join(lines) + body


def good_inputs(**changes: Any) -> list[dict[str, Any]]:
    """JSON of both inputs in binary form, the first with changes."""
    plain = [
        {"name": name, "datatype": "INT32", "shape": [1, 16], "parameters": {"binary_data_size": 64}}
        for name in ("INPUT0", "INPUT1")
    ]
    return [{**plain[0], **changes}, plain[1]]


def binary(inputs: list[dict[str, Any]], data: bytes, length: bytes | None = None) -> bytes:
    head = json.dumps({"inputs": inputs}).encode()
    said = b"%d" % len(head) if length is None else length
    return post(head + data, b"Inference-Header-Content-Length: " + said)


@pytest.mark.parametrize(
    "headers",
    [b"X-Long: " + b"x" * MIB, b"\r\n".join(b"X-%d: value" % number for number in range(80_000))],
    ids=["one long", "many"],
)
def test_a_megabyte_of_headers(server: Any, headers: bytes) -> None:
    status, body = parts(say(server, PATH + headers + b"\r\n\r\n"))
    assert status == 431
    assert body["error"]


def test_a_body_that_ends_too_soon_is_not_answered(server: Any) -> None:
    body = json.dumps({"inputs": [tensor("INPUT0", "INT32", [1] * 16)]}).encode()
    assert say(server, PATH + b"Content-Length: %d\r\n\r\n" % (len(body) + 100) + body, hang_up=True) == b""


def test_a_body_that_is_longer_than_said(server: Any) -> None:
    """What is said to be the body is refused; the rest is no request, and the connection ends."""
    body = json.dumps({"inputs": [tensor("INPUT0", "INT32", [1] * 16)]}).encode()
    answer = say(server, PATH + b"Content-Length: %d\r\n\r\n" % (len(body) - 9) + body)
    status, error = parts(answer)
    assert status == 500
    assert error["error"].startswith("failed to parse the request JSON buffer: ")


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: -1",
        b"Content-Length: many",
        b"Content-Length: 99999999999999999999999",
        b"Content-Length: 2\r\nContent-Length: 3",
        b"Content-Length: 2\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: gzip",
    ],
)
def test_lengths_that_cannot_be_believed(server: Any, headers: bytes) -> None:
    """400, or no answer at all; never a guess."""
    answer = say(server, PATH + headers + b"\r\n\r\n{}")
    assert answer == b"" or parts(answer)[0] == 400


@pytest.mark.parametrize("chunks", [b'5\r\n{"inp', b'5\r\n{"inp\r\n', b"zz\r\n{}\r\n0\r\n\r\n", b"2\r\n{}garbage"])
def test_chunks_that_are_cut_off_or_malformed(server: Any, chunks: bytes) -> None:
    answer = say(server, PATH + b"Transfer-Encoding: chunked\r\n\r\n" + chunks, hang_up=True)
    assert answer == b"" or parts(answer)[0] == 400


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (b"1000000", "inference header size should be in range"),
        (b"-1", "inference header size should be in range"),
        (b"99999999999", "value is out of range"),
        (b"a few", "Unable to parse Inference-Header-Content-Length, got: a few"),
    ],
)
def test_lies_about_the_length_of_the_json(server: Any, length: bytes, words: str) -> None:
    status, body = parts(say(server, binary(good_inputs(), bytes(128), length)))
    assert status == 400
    assert words in body["error"]


@pytest.mark.parametrize(
    ("changes", "data", "words"),
    [
        ({}, bytes(127), "unexpected size for input 'INPUT1', expecting 1 additional bytes for model 'simple'"),
        ({}, bytes(129), "unexpected additional input data for model 'simple'"),
        ({"parameters": {"binary_data_size": 2**62}}, bytes(128), "unexpected size for input 'INPUT0', expecting "),
        ({"shape": [1, 2**40]}, bytes(128), "unexpected shape for input 'INPUT0' for model 'simple'"),
        ({"shape": [2**31, 2**31]}, bytes(128), "'INPUT0'"),
        ({"shape": [0, 16]}, bytes(128), "'INPUT0'"),
    ],
)
def test_lies_about_the_sizes_of_tensors(server: Any, changes: dict[str, Any], data: bytes, words: str) -> None:
    status, body = parts(say(server, binary(good_inputs(**changes), data)))
    assert status == 400
    assert words in body["error"]


@pytest.mark.parametrize(
    ("packed", "expected"),
    [
        (b"this is not gzip", 400),
        (gzip.compress(json.dumps({"inputs": list(range(1000))}).encode(), mtime=0)[:-200], 500),
        (gzip.compress(bytes(80 * MIB), 9, mtime=0), 400),
    ],
    ids=["not packed", "cut off", "bomb"],
)
def test_packed_bodies_that_cannot_be_unpacked(server: Any, packed: bytes, expected: int) -> None:
    status, body = parts(say(server, post(packed, b"Content-Encoding: gzip")))
    assert status == expected  # 500 is for JSON that ends too soon: what could be unpacked counts, as in Triton
    assert body["error"]


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_json_that_goes_too_deep(server: Any, opening: bytes) -> None:
    status, body = parts(say(server, post(opening * 200_000)))
    assert status in (400, 500)
    assert body["error"]


def test_no_http_at_all(server: Any) -> None:
    for rubbish in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"hello\r\n\r\n", bytes(1000)):
        assert say(server, rubbish, hang_up=True) == b""
