"""What may arrive as the body of a request: decided from its head, before a byte of the body is read.

Rules:
 1. What a request's route and headers allow is bounded by a flag: JSON, raw and compressed bodies, and load requests by
    ``--http-max-input-size``, other calls that change or ask about the server by ``--http-max-management-size``.
 2. An inference request with binary tensors is bounded by ``--max-inflight-bytes`` alone, as its tensors are not
    bounded in Triton (docs/reference/http.md#request-bodies); its JSON, whose length its head says, as all JSON.
 3. Nothing larger than ``--max-inflight-bytes`` is read.
 4. What is announced to be larger is refused at once, what turns out to be larger as soon as it does: 413.
"""

from __future__ import annotations

from dataclasses import dataclass

from .asgi import Headers
from .errors import error_body
from .exchange import JSON, Answer, BodyKind

UNCOUNTED_BYTES = 65_536
"""A body up to this size may arrive before the server-wide budget counts it: as much as one read takes anyway."""

UNCOUNTED_BYTES_OF_STREAM = 1024
"""The same where a connection has a hundred bodies arriving at a time, as over HTTP/2."""


@dataclass(frozen=True, slots=True)
class BodyTerms:
    """On which terms a body may arrive.

    Attributes:
        length: in bytes, as announced; None if it is not.
        limit_bytes: most that it may have.
        flag: which sets that.
        waited_for: the client sends the body when it is told to (``Expect: 100-continue``).
    """

    length: int | None
    limit_bytes: int
    flag: str
    waited_for: bool = False

    @property
    def arrives(self) -> bool:
        """It is large or slow enough for the request to be looked at before the body is there."""
        return self.waited_for or self.length is None or self.length > UNCOUNTED_BYTES

    def refusal(self) -> Answer | None:
        """What to answer at once; None if the body may come."""
        if self.length is None or self.length <= self.limit_bytes:
            return None
        return too_large(self.length, self.limit_bytes, self.flag)


def too_large(nbytes: int | None, limit_bytes: int, flag: str) -> Answer:
    """What to answer to a body that has more bytes than it may have.

    Args:
        nbytes: how many, if that is known.
        flag: which sets the limit.
    """
    size = "" if nbytes is None else f"of {nbytes} bytes "
    text = f"request size {size}exceeds the maximum allowed input size of {limit_bytes} bytes. "
    return Answer(413, JSON, error_body(f"{text}Use --{flag} to increase the limit."))


class BodyLimits:
    """The terms for every request.

    Args:
        input_bytes: ``--http-max-input-size``.
        management_bytes: ``--http-max-management-size``.
        inflight_bytes: ``--max-inflight-bytes``.
    """

    __slots__ = ("_inflight_bytes", "_input_bytes", "_management_bytes")

    def __init__(self, input_bytes: int, management_bytes: int, inflight_bytes: int) -> None:
        self._input_bytes = input_bytes
        self._management_bytes = management_bytes
        self._inflight_bytes = max(inflight_bytes, UNCOUNTED_BYTES)  # a small body is in memory before it is asked for

    def terms(self, kind: BodyKind, headers: Headers) -> BodyTerms:
        """The terms for one request.

        Args:
            headers: lower-case names.
        """
        length = json_length = None
        compressed = waited_for = False
        for name, value in headers:
            if name == b"content-length":
                length = _number(value)
            elif name == b"inference-header-content-length":
                json_length = _number(value)
            elif name == b"content-encoding":
                compressed = value not in (b"", b"identity")
            elif name == b"expect":
                waited_for = value.lower() == b"100-continue"
        limit_bytes, flag = self._input_bytes, "http-max-input-size"
        if kind is BodyKind.MANAGEMENT:
            limit_bytes, flag = self._management_bytes, "http-max-management-size"
        elif kind is BodyKind.TENSORS and json_length and json_length <= limit_bytes and not compressed:
            limit_bytes, flag = self._inflight_bytes, "max-inflight-bytes"
        if limit_bytes > self._inflight_bytes:
            limit_bytes, flag = self._inflight_bytes, "max-inflight-bytes"
        return BodyTerms(length, limit_bytes, flag, waited_for)

    def __repr__(self) -> str:
        return f"<BodyLimits {self._input_bytes}, {self._management_bytes}, {self._inflight_bytes}>"


def _number(text: bytes) -> int | None:
    """A length; None if `text` is none."""
    digits = text.strip()
    if not digits.isdigit():
        return None
    return int(digits) if len(digits) < 100 else 10**100  # int() refuses thousands of digits; no limit is so high
