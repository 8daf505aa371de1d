"""What front ends know of registered shared memory (`kinds.REGIONS`): names, kinds and sizes, so that requests can be
checked. The memory itself is the engine's alone, which reads inputs and writes outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..engine.memory.regions import Region, RegionKind, Regions, RegionSlice
from .kinds import REGIONS
from .link import LinkHead
from .values import broken, read_integer, read_list, read_text, write_text

_END_64 = 2**64


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

    def places_for_models(self, places: Mapping[str, RegionSlice]) -> Mapping[str, RegionSlice] | None:
        """All of them: the engine puts outputs there."""
        return places or None

    def read(self, head: list[Any]) -> None:
        """Take in a message. Slices of what is still there stay equal to new ones.

        Raises:
            LinkError: it is none.
        """
        _, generation, rows = read_list(head, 3, 3)
        before, self._regions = self._regions, {}
        for row in read_list(rows):
            name, kind, byte_size, number = read_list(row, 4, 4)
            given = read_text(name)
            known = before.get(given)
            fresh = (number, read_integer(byte_size, 0, _END_64))
            if isinstance(known, _Numbered) and (known.number, known.byte_size) == fresh:
                self._regions[given] = known
            else:
                self._regions[given] = _Numbered(given, _kind(kind), *fresh)
        self.generation = read_integer(generation)


class _Numbered(RemoteRegion):
    """One that is known by its number: a name may be registered again."""

    def __init__(self, name: str, kind: RegionKind, number: Any, byte_size: int) -> None:
        super().__init__(name, kind, byte_size)
        self.number = read_integer(number)


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
        self._numbers: dict[Any, int] = {}
        self._last = 0

    def refresh(self) -> bool:
        """Look at the regions again; whether anything has changed."""
        now = [region for kind in RegionKind for region in self._regions.status(kind)]
        if now == list(self._numbers):
            return False
        numbers: dict[Any, int] = {}
        for region in now:
            number = self._numbers.get(region)
            if number is None:
                number = self._last = self._last + 1
            numbers[region] = number
        self._numbers = numbers
        self.generation += 1
        return True

    def write(self) -> LinkHead:
        """The message that tells of all regions."""
        rows = [
            [write_text(region.name), region.kind.value, region.byte_size, number]
            for region, number in self._numbers.items()
        ]
        return (REGIONS, self.generation, rows)
