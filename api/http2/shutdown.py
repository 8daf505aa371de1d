"""Leaving gracefully (RFC 9113 §6.8): clients hear of it before streams are refused.

Rule 1: First GOAWAY with the highest possible id and a PING: no new streams, please; those on their way are served.
Rule 2: When the client has surely read that, or nothing is open any more, or it does not answer: GOAWAY with the
        highest id that was used. Streams above it are refused, and the client knows that they may be tried elsewhere.

    SERVING ──begin──▶ WARNED ──confirm──▶ CLOSING
"""

from __future__ import annotations

import math
from enum import Enum

from . import frames
from .errors import ErrorCode
from .frames import MAX_STREAM_ID


class Phase(Enum):
    """How far it has come."""

    SERVING = "serving"
    WARNED = "warned"
    CLOSING = "closing"


PING_PAYLOAD = b"farewell"
"""Of the PING whose acknowledgement shows that the first GOAWAY was read."""


class Shutdown:
    """Where one connection stands.

    Attributes:
        phase: see above.
        last_stream_id: streams above it are refused.
        due_s: when `confirm` is due without a sign from the client; math.inf if it is not.
    """

    def __init__(self) -> None:
        self.phase = Phase.SERVING
        self.last_stream_id = MAX_STREAM_ID
        self.due_s = math.inf
        self.debug = ""

    def begin(self, due_s: float, debug: str) -> bytes:
        """The frames that announce it; nothing if it has begun already."""
        if self.phase is not Phase.SERVING:
            return b""
        self.phase = Phase.WARNED
        self.due_s = due_s
        self.debug = debug
        return frames.goaway(MAX_STREAM_ID, ErrorCode.NO_ERROR, debug) + frames.ping(PING_PAYLOAD)

    def confirm(self, highest_stream_id: int) -> bytes:
        """The frame that makes it definite; nothing if it was not announced, or is definite."""
        if self.phase is not Phase.WARNED:
            return b""
        self.phase = Phase.CLOSING
        self.due_s = math.inf
        self.last_stream_id = highest_stream_id
        return frames.goaway(highest_stream_id, ErrorCode.NO_ERROR, self.debug)
