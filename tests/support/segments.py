"""POSIX shared-memory segments, as clients make them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_DIRECTORY = Path("/dev/shm")


class Segment:
    """A segment of a name that is not in use.

    Attributes:
        key: what clients register it by.
        path: where Linux shows it.
    """

    def __init__(self, data: bytes) -> None:
        self.key = f"/trireme-test-{uuid.uuid4().hex}"
        self.path = _DIRECTORY / self.key[1:]
        self.path.write_bytes(data)

    @property
    def data(self) -> bytes:
        return self.path.read_bytes()

    def put(self, data: bytes, offset: int = 0) -> None:
        with self.path.open("r+b") as file:
            file.seek(offset)
            file.write(data)

    def cut(self, size: int) -> None:
        """Make it shorter, or longer again."""
        with self.path.open("r+b") as file:
            file.truncate(size)


@contextmanager
def open_segments() -> Iterator[Callable[[bytes], Segment]]:
    """Makes segments with given contents; in the end they are gone."""
    made: list[Segment] = []

    def make(data: bytes) -> Segment:
        made.append(Segment(data))
        return made[-1]

    try:
        yield make
    finally:
        for segment in made:
            segment.path.unlink(missing_ok=True)
