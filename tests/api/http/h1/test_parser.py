"""The request parser: what comes out, in whatever pieces the bytes arrive, and what is refused."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.api.http.h1.messages import HeadMemory, Refusal, Request, RequestParser
from trireme.api.sockets.limits import Limits

GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
LIMITS = Limits(head_bytes=1024, body_chunks=3)


def parse(*pieces: bytes, limits: Limits = LIMITS) -> RequestParser:
    parser = RequestParser(limits)
    for piece in pieces:
        parser.feed(piece)
        while parser.read_on():
            pass
    return parser


def facts(request: Request) -> tuple:
    return (
        request.method,
        request.target,
        request.http_version,
        request.headers,
        request.header_names,
        b"".join(request.pieces),
        request.complete,
        request.keep_alive,
    )


@st.composite
def valid_requests(draw: st.DrawFn) -> bytes:
    name = st.from_regex(rb"X-[A-Za-z0-9]{1,8}", fullmatch=True)
    value = st.from_regex(rb"[!-~]([ -~]{0,10}[!-~])?", fullmatch=True)
    headers = draw(st.lists(st.tuples(name, value), max_size=3))
    lines = [b"%b /%b HTTP/1.1" % (draw(st.sampled_from([b"GET", b"POST"])), draw(st.sampled_from([b"", b"v2?a=b"])))]
    lines.append(b"Host: x")
    lines += [b"%b: %b" % header for header in headers]
    body = draw(st.binary(max_size=40))
    framing = draw(st.sampled_from(["none", "length", "chunked"]))
    if framing == "length":
        return b"\r\n".join([*lines, b"Content-Length: %d" % len(body)]) + b"\r\n\r\n" + body
    if framing == "chunked":
        chunk = b"%x;e=1\r\n%b\r\n" % (len(body), body) if body else b""
        lines.append(b"Transfer-Encoding: chunked")
        return b"\r\n".join(lines) + b"\r\n\r\n" + chunk + b"0\r\nX-Trailer: t\r\n\r\n"
    return b"\r\n".join(lines) + b"\r\n\r\n"


@settings(deadline=None)
@given(requests=st.lists(valid_requests(), min_size=1, max_size=4), cuts=st.lists(st.integers(0, 400), max_size=8))
def test_pieces_make_no_difference(requests: list[bytes], cuts: list[int]) -> None:
    """However pipelined requests are cut up, the same ones come out, all of them."""
    stream = b"".join(requests)
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(edges)]
    whole, cut_up = parse(stream), parse(*pieces)
    assert [facts(each) for each in cut_up.requests] == [facts(each) for each in whole.requests]
    assert len(whole.requests) == len(requests)
    assert all(each.complete for each in whole.requests)
    assert whole.failure is None
    assert cut_up.failure is None
    assert cut_up.between_requests


@settings(deadline=None, max_examples=50)
@given(
    requests=st.lists(valid_requests(), min_size=1, max_size=3),
    order=st.lists(st.integers(0, 2), max_size=6),
    cuts=st.lists(st.integers(0, 400), max_size=3),
    junk=st.sampled_from([b"", b"\r\n", b"\r\n\r\n", b"\r"]),
)
def test_remembered_heads_make_no_difference(
    requests: list[bytes], order: list[int], cuts: list[int], junk: bytes
) -> None:
    """What repeats itself, with another body or none, alone or among others, is read as if nothing was remembered."""
    heads = HeadMemory()
    pieces = [requests[number % len(requests)] + junk for number in [*order, *order]]
    stream = b"".join(pieces)
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    for fed in (pieces, pieces[::-1], [stream[a:b] for a, b in itertools.pairwise(edges)]):
        plain, remembering = RequestParser(LIMITS), RequestParser(LIMITS, heads=heads)
        for piece in fed:
            plain.feed(piece)
            remembering.feed(piece)
            assert [facts(each) for each in remembering.requests] == [facts(each) for each in plain.requests]
            assert remembering.between_requests == plain.between_requests
            assert remembering.failure == plain.failure


POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"


@pytest.mark.parametrize(
    ("data", "learnt"),
    [
        (POST + b"\r\nab", 1),
        (GET + b"\r\n", 1),
        (POST + b"\r\nab" + POST, 0),
        (POST + b"\r\nab\r\n", 0),
        (POST + b"\r\na", 0),
        (POST + b"Connection: close\r\n\r\nab", 0),
        (POST + b"Expect: 100-continue\r\n\r\nab", 0),
        (b"POST / HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nab", 0),
        (GET + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0),
        (GET + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n", 1),
    ],
)
def test_only_usual_heads_are_remembered(data: bytes, learnt: int) -> None:
    heads = HeadMemory()
    RequestParser(LIMITS, heads=heads).feed(data)
    assert len(heads) == learnt


def test_remembered_requests_share_nothing_that_changes() -> None:
    """The receiver of a request may take it apart."""
    parser = RequestParser(LIMITS, heads=HeadMemory())
    firsts: list[Request] = []
    for _ in range(3):
        parser.feed(POST + b"\r\nab")
        (request,) = parser.requests
        assert request.headers == ((b"host", b"x"), (b"content-length", b"2"))
        assert request.header_names == (b"Host", b"Content-Length")
        assert request.pieces == [b"ab"]
        if request.first is not None:
            firsts.append(request.first)
        request.pieces.clear()
        parser.requests.clear()
    assert [(first.first, first.pieces) for first in firsts] == [(None, [])] * 2


def test_a_head_like_the_one_before_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most clients send the same on a connection again and again."""
    parser = RequestParser(LIMITS, heads=HeadMemory())
    for _ in range(2):
        parser.feed(POST + b"\r\nab")
    monkeypatch.delattr(HeadMemory, "recall")
    parser.feed(POST + b"\r\ncd")
    assert [request.pieces for request in parser.requests] == [[b"ab"], [b"ab"], [b"cd"]]


TAIL = b"Authorization: k1\r\nContent-Length: 2\r\n\r\nab"
REPEATED = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\n" + TAIL


@pytest.mark.parametrize("other", [b"\x00", b" ", b"\r", b"\n", b"1", b"3", b"x", b"\xff", b"", b"ab"])
def test_a_byte_that_differs_makes_no_difference_on_any_connection(other: bytes) -> None:
    """Wherever it is in a request that is like the one before otherwise. Connections share what is remembered."""
    heads = HeadMemory()
    for at in range(len(REPEATED)):
        changed = REPEATED[:at] + other + REPEATED[at + 1 :]
        for fed in ([REPEATED, REPEATED, changed, REPEATED], [changed, REPEATED, changed]):
            plain, remembering = RequestParser(LIMITS), RequestParser(LIMITS, heads=heads)
            for piece in fed:
                plain.feed(piece)
                remembering.feed(piece)
                assert [facts(each) for each in remembering.requests] == [facts(each) for each in plain.requests]
                assert remembering.failure == plain.failure


def test_memory_of_heads_is_bounded() -> None:
    heads = HeadMemory()
    parser = RequestParser(LIMITS, heads=heads)
    most = 0
    for number in range(3000):
        parser.feed(GET + b"X: %d\r\n\r\n" % number)
        parser.requests.clear()
        most = max(most, len(heads))
    assert most == heads.limit == 2_048


@settings(deadline=None)
@given(st.lists(st.binary(max_size=60) | st.sampled_from([GET, b"\r\n", b"Content-Length: 5\r\n"]), max_size=8))
def test_rubbish_never_raises(pieces: list[bytes]) -> None:
    """Whatever comes, `feed` returns, and after a failure nothing more comes out."""
    parser = RequestParser(LIMITS)
    failed_with = None
    for piece in pieces:
        parser.feed(piece)
        if failed_with is not None:
            assert len(parser.requests) == failed_with
        elif parser.failure is not None:
            failed_with = len(parser.requests)


def test_head_is_read() -> None:
    (request,) = parse(
        b"POST /a%20b?q=1 HTTP/1.1\r\nHost: x\r\nX-Name:  some value \r\nExpect: 100-Continue\r\n\r\n"
    ).requests
    assert (request.method, request.target, request.http_version) == ("POST", b"/a%20b?q=1", "1.1")
    assert request.headers == ((b"host", b"x"), (b"x-name", b"some value"), (b"expect", b"100-Continue"))
    assert request.header_names == (b"Host", b"X-Name", b"Expect")
    assert request.expects_continue
    assert request.keep_alive


@pytest.mark.parametrize(
    ("head", "keep_alive"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True),
    ],
)
def test_keep_alive_by_version_and_header(head: bytes, keep_alive: bool) -> None:
    assert parse(head).requests[0].keep_alive is keep_alive


@pytest.mark.parametrize(
    "stream",
    [
        b"\x16\x03\x01\x02\x00",
        b"GET\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/1.2\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET / FTP/1.1\r\n\r\n",
        b"F00 / HTTP/1.1\r\nHost: x\r\n\r\n",
        GET + b"no colon\r\n\r\n",
        GET + b"Name : value\r\n\r\n",
        GET + b"A: b\r\n folded\r\n\r\n",
        GET + b"A: b\nB: c\n\n",
        GET + b"A: \x00\r\n\r\n",
    ],
)
def test_malformed_requests_fail_silently(stream: bytes) -> None:
    parser = parse(stream)
    assert parser.failure == Refusal()
    assert not parser.requests


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n",
        b"Content-Length: 1\r\nContent-Length: 2\r\n",
        b"Content-Length: 1\r\nContent-Length: 1\r\n",
        b"Content-Length: 1, 1\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: +1\r\n",
        b"Content-Length: 1a\r\n",
        b"Content-Length: 99999999999999999999999\r\n",
        b"Transfer-Encoding: gzip\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    ],
)
def test_ambiguous_lengths_are_refused(framing: bytes) -> None:
    """Two readers of such a request could disagree on where it ends."""
    parser = parse(GET + framing + b"\r\n0\r\n\r\n")
    assert parser.failure is not None
    assert parser.failure.status == 400
    assert "length" in parser.failure.message
    assert not parser.requests


def test_chunked_is_refused_in_http_1_0() -> None:
    parser = parse(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    assert parser.failure is not None
    assert parser.failure.status == 400


@pytest.mark.parametrize("rest", [b"zz\r\n", b"3\r\nabcd\r\n", b"-1\r\n", b"FFFFFFFFFFFFFFFFF\r\n"])
def test_malformed_chunks_are_refused_with_the_piece_they_come_in(rest: bytes) -> None:
    parser = parse(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + rest)
    assert parser.failure is not None
    assert parser.failure.status == 400
    assert parser.failure.message.startswith("malformed request body: ")


@pytest.mark.parametrize(("count", "fine"), [(0, False), (1, True), (2, False)])
def test_a_request_has_one_host(count: int, fine: bool) -> None:
    parser = parse(b"GET / HTTP/1.1\r\n" + b"HOST: x\r\n" * count + b"\r\n")
    text = f"an HTTP/1.1 request needs one Host header, this one has {count}"
    assert parser.failure == (None if fine else Refusal(400, text))


@pytest.mark.parametrize(("count", "fine"), [(0, True), (1, True), (2, False)])
def test_an_http_1_0_request_may_have_no_host(count: int, fine: bool) -> None:
    parser = parse(b"GET / HTTP/1.0\r\n" + b"Host: x\r\n" * count + b"\r\n")
    assert (parser.failure is None) is fine


def test_requests_before_a_failure_stand() -> None:
    parser = parse(GET + b"\r\n" + GET + b"\r\n" + b"\x00 rubbish")
    assert [each.complete for each in parser.requests] == [True, True]
    assert parser.failure == Refusal()


def test_head_over_the_limit_is_431() -> None:
    exact = 1024 - len(b"/") - len(b"Host") - len(b"x") - 4 - len(b"X") - 4
    assert parse(GET + b"X: " + b"a" * exact + b"\r\n\r\n").failure is None
    parser = parse(GET + b"X: " + b"a" * (exact + 1) + b"\r\n\r\n")
    assert parser.failure == Refusal(431, "request header block exceeds 1024 bytes")


@pytest.mark.parametrize("endless", [b"a" * 100, b"X: y\r\n" * 10, b"\r\n" * 50])
def test_head_without_end_is_431_before_it_ends(endless: bytes) -> None:
    """A header value, a list of headers, or blank lines that never stop are cut off."""
    parser = RequestParser(LIMITS)
    parser.feed(b"" if endless.startswith(b"\r") else GET + b"X: ")
    fed = 0
    while parser.failure is None and fed < 10_000:
        parser.feed(endless)
        fed += len(endless)
    assert parser.failure is not None
    assert parser.failure.status == 431
    assert fed < 2 * 1024


def test_chunk_count_is_limited() -> None:
    """docs/reference/http.md#request-bodies, with its text; empty last chunk not counted."""
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert parse(head + b"1\r\na\r\n" * 3 + b"0\r\n\r\n").failure is None
    parser = parse(head + b"1\r\na\r\n" * 4 + b"0\r\n\r\n")
    text = "Chunked request body exceeds maximum of 3 non-empty chunks. Send fewer or larger HTTP chunks."
    assert parser.failure == Refusal(400, text)
    assert not parser.requests[0].complete


@pytest.mark.parametrize("endless", [b"1;ext=" + b"x" * 3000, b"0\r\n" + b"T: t\r\n" * 500])
def test_chunk_extensions_and_trailers_are_limited(endless: bytes) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    parser = parse(head, *[endless[start : start + 100] for start in range(0, len(endless), 100)])
    assert parser.failure is not None
    assert parser.failure.status == 400


def test_trailers_do_not_become_headers() -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    parser = parse(head + b"0\r\nX-Late: 1\r\n\r\n" + GET + b"\r\n")
    host = (b"host", b"x")
    assert [each.headers for each in parser.requests] == [(host, (b"transfer-encoding", b"chunked")), (host,)]
    assert [each.header_names for each in parser.requests] == [(b"Host", b"Transfer-Encoding"), (b"Host",)]


def test_body_arrives_in_pieces_and_counts_down() -> None:
    parser = parse(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab")
    (request,) = parser.requests
    assert (request.pieces, request.remaining, request.complete) == ([b"ab"], 3, False)
    parser.feed(b"cde" + GET)
    assert (request.pieces, request.remaining, request.complete) == ([b"ab", b"cde"], 0, True)
    assert not parser.between_requests


@pytest.mark.parametrize(
    ("upgrade", "body"),
    [
        (b"Upgrade: websocket\r\n", b"abc"),
        (b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n", b"abc"),
        (b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n", b""),
        (b"Upgrade: h2c\r\n", b""),
    ],
)
def test_upgrades_are_ignored(upgrade: bytes, body: bytes) -> None:
    """The request is served as if it had not asked, body and successors included."""
    length = b"Content-Length: %d\r\n" % len(body) if body else b""
    parser = parse(GET + b"Connection: Upgrade\r\n" + upgrade + length + b"\r\n" + body + GET + b"\r\n")
    assert parser.requests[0].header_names[1] == b"Connection"
    assert b"Upgrade" not in parser.requests[0].header_names
    assert [b"".join(each.pieces) for each in parser.requests] == [body, b""]
    assert all(each.complete for each in parser.requests)
    assert parser.failure is None


def test_many_ignored_upgrades_in_one_piece() -> None:
    head = GET + b"Connection: Upgrade\r\nUpgrade: x\r\n\r\n"
    assert len(parse(head * 2000, limits=Limits()).requests) == 2000


def test_of_many_requests_in_one_piece_few_are_read_at_once() -> None:
    parser = RequestParser(LIMITS)
    body = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n" + bytes(5000)
    parser.feed((GET + b"\r\n") * 1000 + body + GET + b"\r\n")
    seen, read = [len(parser.requests)], len(parser.requests)
    parser.requests.clear()
    while parser.read_on():
        seen.append(len(parser.requests))
        read += len(parser.requests)
        parser.requests.clear()
    assert max(seen) < 200
    assert read == 1002
    assert parser.between_requests


def test_what_was_left_comes_before_what_is_fed_next() -> None:
    parser = RequestParser(LIMITS)
    parser.feed(b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number for number in range(500)))
    parser.feed(b"GET /last HTTP/1.1\r\nHost: x\r\n\r\n")
    targets = []
    while parser.requests or parser.read_on():
        targets += [request.target for request in parser.requests]
        parser.requests.clear()
    assert targets == [*(b"/%d" % number for number in range(500)), b"/last"]


def test_nothing_of_what_was_left_is_read_after_it_was_abandoned() -> None:
    parser = RequestParser(LIMITS)
    parser.feed((GET + b"\r\n") * 1000)
    parser.abandon(Refusal(503, "too much"))
    assert not parser.read_on()
    assert parser.requests == []


def test_connect_is_a_request_and_the_last() -> None:
    parser = parse(b"CONNECT host:80 HTTP/1.1\r\nHost: x\r\n\r\nbytes of a tunnel")
    assert [(each.method, each.keep_alive) for each in parser.requests] == [("CONNECT", False)]
    assert parser.failure == Refusal()
