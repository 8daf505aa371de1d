"""Processes that have no descriptor left."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def no_file_left(pid: int | None = None) -> Iterator[None]:
    """A process, by default this one, can open nothing. What it has open stays so."""
    process = os.getpid() if pid is None else pid
    soft, hard = resource.prlimit(process, resource.RLIMIT_NOFILE)
    resource.prlimit(process, resource.RLIMIT_NOFILE, (_lowest_free(process), hard))
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_NOFILE, (soft, hard))


def _lowest_free(pid: int) -> int:
    """The number that the next descriptor of a process gets."""
    if pid == os.getpid():
        lowest = os.dup(0)
        os.close(lowest)
        return lowest
    held = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    return next(number for number in range(len(held) + 1) if number not in held)
