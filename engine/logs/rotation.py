"""Files that lines are appended to: bounded, and rotated when they are full.

A file that would grow beyond its bound is renamed before (`.1`, that one `.2`, and so on); the oldest is deleted.
"""

from __future__ import annotations

import contextlib
import os
import stat


def append_lines(path: str, data: bytes, max_bytes: int, kept: int, head: bytes = b"") -> None:
    """Write lines at the end of a file that only its owner may read. What is written in part is taken back.

    Args:
        max_bytes: which the file is not to exceed, unless `data` does.
        kept: so many files that are full.
        head: what a file begins with.

    Raises:
        OSError: it cannot be written.
    """
    with contextlib.suppress(FileNotFoundError):
        size = os.stat(path).st_size
        if size and size + len(data) > max_bytes:
            rotate(path, kept)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        before = os.fstat(descriptor).st_size
        data = head + data if data and not before else data
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, before)
            raise
    finally:
        os.close(descriptor)


def rotate(path: str, kept: int) -> None:
    """Rename a file that has something in it, so that the next line begins a new one.

    Raises:
        OSError: it cannot be renamed.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return
    if not status.st_size or not stat.S_ISREG(status.st_mode):
        return
    if not kept:
        os.truncate(path, 0)
        return
    for number in range(kept - 1, 0, -1):
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}.{number}", f"{path}.{number + 1}")
    os.replace(path, f"{path}.1")
