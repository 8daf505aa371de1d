"""What front ends know of registered shared memory (`kinds.REGIONS`): names, kinds and sizes, so that requests can be
checked. The memory itself is the engine's alone, which reads inputs and writes outputs.

A row is ``[name, kind, bytes]`` of a region that is new, or ``[name]`` of one that is gone. Rows are JSON in the
payload: names may be long.
"""

from __future__ import annotations

from typing import Any

import orjson

from ..engine.memory.regions import CudaRegion, Region, RegionKind, Regions
from ..python_backend.child.codec import Payload
from .kinds import REGIONS
from .link import LinkHead
from .slots import read_json
from .values import broken, read_integer, read_list, read_text, write_text

_END_64 = 2**64

RegionRow = list[Any]


class RemoteRegion(Region):
    """A region of the engine's. Nothing of it can be read or written here."""

    def __init__(self, name: str, kind: RegionKind, byte_size: int) -> None:
        # Not what a `Region` begins with, which has a descriptor.
        self.name = name
        self.kind = kind
        self.byte_size = byte_size

    def read(self, start: int, end: int) -> memoryview:
        raise AssertionError("a front end has no memory of clients")

    def write(self, start: int, data: object) -> None:
        raise AssertionError("a front end has no memory of clients")

    def check_size(self, nbytes: int) -> None:
        """The engine does."""


class RemoteRegions(Regions):
    """The regions that the engine has told of. They are changed by `Management`.

    Attributes:
        generation: of what it was told last.
    """

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.generation = 0

    def read(self, head: list[Any], payload: memoryview) -> None:
        """Take in a message. Slices of what is still there stay equal to new ones.

        Raises:
            LinkError: it is none.
        """
        _, generation, nbytes = read_list(head, 3, 3)
        for row in read_list(read_json(nbytes, payload)):
            parts = read_list(row, 1, 3)
            name = read_text(parts[0])
            self._regions.pop(name, None)
            if len(parts) > 1:
                _, kind, byte_size = read_list(parts, 3, 3)
                self._regions[name] = RemoteRegion(name, _kind(kind), read_integer(byte_size, 0, _END_64))
        self.generation = read_integer(generation)


def _kind(value: Any) -> RegionKind:
    try:
        return RegionKind(value)
    except ValueError:
        raise broken("a kind of region", value) from None


class RegionTable:
    """The engine's end: one for all front ends.

    Attributes:
        generation: grows with each change.
    """

    def __init__(self, regions: Regions) -> None:
        self.generation = 0
        self._regions = regions
        self._known: dict[str, Region | CudaRegion] = {}

    def refresh(self) -> list[RegionRow]:
        """Look at the regions again; a row of each that has come or gone since the last call."""
        now = {region.name: region for kind in RegionKind for region in self._regions.status(kind)}
        before, self._known = self._known, now
        rows = [_row(region) for name, region in now.items() if before.get(name) is not region]
        rows += [[write_text(name)] for name in before if name not in now]
        self.generation += bool(rows)
        return rows

    def everything(self) -> list[RegionRow]:
        """For a front end that knows nothing yet."""
        return [_row(region) for region in self._known.values()]


def _row(region: Region | CudaRegion) -> RegionRow:
    return [write_text(region.name), region.kind.value, region.byte_size]


def write_regions(generation: int, rows: list[RegionRow]) -> tuple[LinkHead, Payload]:
    """The message that rows become."""
    payload = Payload()
    said = orjson.dumps(rows)
    payload.add(said)
    return (REGIONS, generation, len(said)), payload
