"""What waits for room in the server-wide budget, and is in memory all the same.

A connection cannot stop one call's data without stopping all others', except by the call's window. So what a client may
send before its message has room is in memory, and no budget covers it. It is little for each call; here it is added up,
for all connections of the service, and what would be too much is refused.
"""

from __future__ import annotations

from grpclib.const import Status
from grpclib.exceptions import GRPCError


class WaitingRoom:
    """Bytes of calls that wait.

    Args:
        limit_bytes: most of them.
    """

    __slots__ = ("held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0

    def enter(self, nbytes: int) -> None:
        """A call begins to wait, which may hold so many bytes.

        Raises:
            GRPCError: UNAVAILABLE, there are too many.
        """
        if self.held_bytes + nbytes > self.limit_bytes:
            raise GRPCError(
                Status.UNAVAILABLE,
                f"the server has too many requests in flight, and {self.held_bytes} bytes of requests wait for room; "
                "try again later",
            )
        self.held_bytes += nbytes

    def leave(self, nbytes: int) -> None:
        """It waits no more."""
        self.held_bytes -= nbytes

    def __repr__(self) -> str:
        return f"<WaitingRoom: {self.held_bytes} of {self.limit_bytes} bytes>"
