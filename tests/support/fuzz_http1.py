"""Raw HTTP/1.1 to be fuzzed: whole conversations of several requests, of which bytes are spoilt."""

from __future__ import annotations

import random

import httptools
from fuzz_http import NOT_OF_THE_INTERFACE, any_request, check_form
from fuzz_mutations import mutate, pieces
from fuzz_target import Finding, Target, converse, described

STATUSES = {100, 200, 400, 403, 404, 405, 500, 501, 503} | NOT_OF_THE_INTERFACE


def conversation(rng: random.Random) -> bytes:
    """One to three requests behind each other; bodies of known length, or in chunks."""
    sent = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        request = any_request(rng)
        data = request.encoded(close=rng.random() < 0.2)
        if rng.random() < 0.2:
            head, _, body = data.partition(b"\r\n\r\n")
            lines = [line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length")]
            data = b"\r\n".join([*lines, b"Transfer-Encoding: chunked", b"", _chunked(rng, body)])
        if rng.random() < 0.1:
            extra = (
                b"Expect: 100-continue",
                b"Upgrade: h2c",
                b"Connection: upgrade",
                b"X: " + b"y" * 70_000,
                b"Host: z",
            )
            data = data.replace(b"\r\n", b"\r\n" + rng.choice(extra) + b"\r\n", 1)
        sent.append(data)
    return b"".join(sent)


def _chunked(rng: random.Random, body: bytes) -> bytes:
    chunks = []
    while body:
        size = rng.choice((1, 7, 100, len(body)))
        chunk, body = body[:size], body[size:]
        chunks.append(b"%x%b\r\n%b\r\n" % (len(chunk), rng.choice((b"", b"", b";x=y")), chunk))
    return b"".join(chunks) + b"0\r\n" + rng.choice((b"", b"", b"T: railer\r\n")) + b"\r\n"


def attack(target: Target, rng: random.Random) -> None:
    """Whatever is said, what comes back is HTTP, and its statuses are the server's."""
    said = conversation(rng)
    if rng.random() < 0.9:
        said = mutate(rng, said, rng.choice((1, 1, 2, 5)))
    abrupt = rng.random() < 0.05
    heard = converse(target, target.http_port, pieces(rng, said), abrupt=abrupt)
    if abrupt or b"HEAD" in said or b"PRI * HTTP/2" in said:
        return  # where an answer ends is not to be seen, or it is not HTTP/1
    reader = _Reader(said)
    try:
        reader.parser.feed_data(heard)
    except httptools.HttpParserCallbackError as error:
        raise error.__context__ or error from None
    except httptools.HttpParserError as error:
        raise Finding(f"what came back is no HTTP ({error}): {heard[:2_000]!r} to {described(said)}") from None


class _Reader:
    """Looks at each response."""

    def __init__(self, said: bytes) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self._said = said
        self._body = b""

    def on_message_begin(self) -> None:
        self._body = b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        status = self.parser.get_status_code()
        if status not in STATUSES:
            raise Finding(f"status {status} to {described(self._said)}")
        check_form(status, self._body, self._said)
