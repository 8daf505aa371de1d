"""A client of OpenAI's completions for benchmarks: so many requests at a time, streamed; it looks at little of them."""

from __future__ import annotations

import json
import re
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

_TEXT = re.compile(rb'"text": ?"[^"]')
_TOKENS = re.compile(rb'"completion_tokens": ?(\d+)')


@dataclass(frozen=True)
class Asked:
    """A request: a prompt, and how many tokens are to follow."""

    prompt: str
    tokens: int


@dataclass(frozen=True)
class Answered:
    """What came of a request: its number, the tokens that followed, and the seconds until the first text and until the
    end."""

    number: int
    tokens: int
    first_s: float
    whole_s: float


class _Call:
    """One request under way, on a connection of its own."""

    def __init__(self, port: int, model: str, number: int, asked: Asked, counts: bool) -> None:
        body = {"model": model, "prompt": asked.prompt, "max_tokens": asked.tokens, "temperature": 0, "stream": True}
        body["stream_options"] = {"include_usage": True}
        data = json.dumps(body).encode()
        self._number, self._asked, self._counts = number, asked, counts
        self.socket = socket.create_connection(("127.0.0.1", port))
        self._begun = time.perf_counter()
        self._first: float | None = None
        self._received = b""
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json"
        self.socket.sendall(f"{head}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)

    def receive(self) -> Answered | None:
        """Take what has come; what came of the request if that is all."""
        data = self.socket.recv(1 << 16)
        self._received += data
        now = time.perf_counter()
        if self._first is None and _TEXT.search(self._received):
            self._first = now
        if data:
            return None
        self.socket.close()
        if not self._received.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"no text came: {self._received[-2000:]!r}")
        if self._first is None:  # some tokens of a random network are no text, all in all
            self._first = now
        counted = _TOKENS.findall(self._received)
        if self._counts and [int(count) for count in counted[-1:]] != [self._asked.tokens]:
            raise RuntimeError(f"expected {self._asked.tokens} tokens: {self._received[-2000:]!r}")
        return Answered(self._number, self._asked.tokens, self._first - self._begun, now - self._begun)


def ask(
    port: int, model: str, requests: Sequence[Asked], clients: int, *, counts: bool = True
) -> tuple[list[Answered], float]:
    """Send requests, so many at a time; as one is over the next one is sent.

    Args:
        counts: the server tells how many tokens followed, and it must be as many as were asked for.

    Returns:
        What came of them, in the order in which they ended, and the seconds from the first to the last.
    """
    pending, answers = list(enumerate(requests))[::-1], []
    begun = time.perf_counter()
    with selectors.DefaultSelector() as selector:
        calls = 0
        while pending or calls:
            while pending and calls < clients:
                call = _Call(port, model, *pending.pop(), counts)
                selector.register(call.socket, selectors.EVENT_READ, call)
                calls += 1
            for key, _ in selector.select():
                if (answer := key.data.receive()) is not None:
                    selector.unregister(key.fileobj)
                    answers.append(answer)
                    calls -= 1
    return answers, time.perf_counter() - begun
