"""Remembers the heads of HTTP/1.1 requests, so that a client that repeats itself is parsed once.

A client that asks for one inference after the other sends the same head each time, and for a small request parsing it
is a good part of the work.

Rule 1: What is remembered is the head of a request that came alone, whole and in one piece, and that is nothing
        unusual: a body of announced length or none, and a connection that lives on.
Rule 2: The same head, followed by as many bytes as it announces and no more, is the same request with another body.
        Everything else is for the parser.
"""

from __future__ import annotations

from ..memo import Memo
from .h1_request import Request

_HEADS = 512
_HEAD_BYTES = 2_048
_END = b"\r\n\r\n"


class HeadMemory:
    """A memory of bounded size, for the connections of one service."""

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: Memo[tuple[Request, int]] = Memo(_HEADS, _HEAD_BYTES)  # and how long the body is

    def recall(self, data: bytes) -> Request | None:
        """The request that `data` is (rule 2); None if that is not known.

        Args:
            data: begins where a request may begin.
        """
        start = data.find(_END) + len(_END)
        known = self._heads.get(data[:start])
        if known is None or known[1] != len(data) - start:
            return None
        return known[0].again(data[start:])

    def learn(self, data: bytes, request: Request) -> None:
        """Remember the head of `request`, the only one that was begun in `data`, if rule 1 allows it."""
        start = data.find(_END) + len(_END)
        size = len(data) - start
        usual = request.complete and request.remaining == 0 and request.keep_alive and not request.expects_continue
        # Where the body is as long as what is left, nothing stood before the head or behind the body.
        if usual and request.http_version == "1.1" and size == sum(map(len, request.pieces)):
            self._heads.remember(data[:start], (request.again(b""), size))

    def __repr__(self) -> str:
        return f"<HeadMemory of {len(self._heads)} heads>"
