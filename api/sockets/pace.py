"""Whether a request's body arrives fast enough.

Rule 1: Only the time counts in which the server waits for the client. While the application does not ask for the body,
        or waits for room, a client may be as slow as it likes.
Rule 2: When `Limits.body_grace_s` of such time have passed, the body must have come at `Limits.body_rate` on average.
"""

from __future__ import annotations

from .limits import Limits


class BodyPace:
    """How fast one body arrives. Times are in seconds, on any one clock."""

    __slots__ = ("_limits", "_nbytes", "_since_s", "_waited_s")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._nbytes = 0
        self._waited_s = 0.0
        self._since_s: float | None = None

    def wait(self, now_s: float) -> None:
        """The server begins to wait for more, or waits on."""
        if self._since_s is None:
            self._since_s = now_s

    def arrived(self, nbytes: int, now_s: float) -> None:
        """So many bytes have come, and the server has them to work on."""
        self._nbytes += nbytes
        if self._since_s is not None:
            self._waited_s += now_s - self._since_s
            self._since_s = None

    def is_slow(self, now_s: float) -> bool:
        """Whether the client is to be given up."""
        waited_s = self._waited_s + (0.0 if self._since_s is None else now_s - self._since_s)
        return waited_s > self._limits.body_grace_s and self._nbytes < waited_s * self._limits.body_rate

    def __repr__(self) -> str:
        return f"<BodyPace: {self._nbytes} bytes in {self._waited_s:.3f} s{' and more' if self._since_s else ''}>"
