"""Changes of a model directory that a server is to see, however coarse the clock of the file system is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trireme.engine.repository.local import newest_change_ns


@contextmanager
def later_change(directory: Path) -> Iterator[list[Path]]:
    """What is done within makes a model directory newer than it, and anything in it, has been before.

    A server looks for what is newer than what it has loaded, and two changes may be nearer than a clock can tell.

    Yields:
        To be filled with files that were there before and have another content now: each of them is made newer, too.
    """
    before_ns = newest_change_ns(directory)
    changed: list[Path] = []
    yield changed
    later_ns = max(newest_change_ns(directory), before_ns) + 1
    for path in (directory, *changed):
        os.utime(path, ns=(later_ns, later_ns))
