"""A file of settings that operators change while the server runs: access rules, routes.

It is looked at every `POLL_S`; it has changed if its time, size or inode has. Who reads it does that outside of the
event loop, and refuses a file that is missing or faulty as a whole: what was read before holds on, and the log says
why, once.
"""

from __future__ import annotations

import os
from pathlib import Path

import trio

from ..engine.errors import InvalidArgumentError

POLL_S = 2.0
_MAX_BYTES = 16 << 20

Fingerprint = tuple[int, int, int] | None
"""Time, size and inode of a file; None if there is none."""


class WatchedFile:
    """One file.

    Args:
        seen: what it was like when it was read.
    """

    def __init__(self, path: Path, seen: Fingerprint = None) -> None:
        self.path = path
        self._seen = seen

    async def has_changed(self) -> bool:
        """Whether it has since the last call."""
        before, self._seen = self._seen, await trio.to_thread.run_sync(fingerprint, self.path)
        return before != self._seen


def fingerprint(path: Path) -> Fingerprint:
    """What a file is like, to see whether it has changed."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_text(path: Path) -> str:
    """What stands in a file. Blocks.

    Raises:
        InvalidArgumentError: it cannot be read, or is no text.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise InvalidArgumentError(f"{path}: larger than {_MAX_BYTES} bytes")
        return data.decode("utf-8-sig")  # some editors begin files with a byte order mark
    except OSError as error:
        raise InvalidArgumentError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path}: not UTF-8: {error}") from error
