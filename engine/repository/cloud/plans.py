"""What is fetched into the local cache, and what leaves it.

Rules:
 1. An object is complete in the cache if a file of its key has its size, and has not been changed since it was fetched.
 2. What is not complete is fetched in ranges. Ranges that are there already, of an earlier attempt, are not fetched
    again.
 3. What is used never leaves the cache. Without a limit, everything else that no repository lists any more leaves it at
    once. With a limit, objects leave it until the rest is within the limit: those first that are listed no more, then
    those whose last use is longest ago. A limit of 0 keeps nothing that is not used.
 4. An object that is fetched in part stays for as long as it is listed: what it has is worth time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .listing import RemoteObject

RANGE_BYTES = 8 << 20
"""What one request fetches."""

ByteRange = tuple[int, int]
"""First byte, and the one after the last."""


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """What a model needs: `keep` is complete in the cache."""

    keep: tuple[RemoteObject, ...]
    fetch: tuple[RemoteObject, ...]


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file of the cache; as a complete object, or as one that was to be fetched.

    Attributes:
        modified_ns: what an object's file is given as its time of modification when it is complete.
        used: something has it besides the cache; or it is being fetched.
        used_ns: when that was so last, as time since the Unix epoch.
        listed: a repository has it now.
    """

    size: int
    modified_ns: int = 0
    used: bool = False
    used_ns: int = 0
    listed: bool = False
    partial: bool = False


def plan_fetch(wanted: Iterable[RemoteObject], cached: Mapping[str, CachedFile]) -> FetchPlan:
    """Compare what a model needs with what the cache has (rule 1).

    Args:
        cached: by key.
    """
    keep: list[RemoteObject] = []
    fetch: list[RemoteObject] = []
    for each in wanted:
        (keep if _is_complete(each, cached.get(each.key)) else fetch).append(each)
    return FetchPlan(tuple(keep), tuple(fetch))


def _is_complete(wanted: RemoteObject, cached: CachedFile | None) -> bool:
    if cached is None or cached.partial:
        return False
    return (cached.size, cached.modified_ns) == (wanted.size, wanted.modified_ns)


def ranges_left(size: int, done: Iterable[ByteRange], step: int = RANGE_BYTES) -> list[ByteRange]:
    """What is still to be fetched, in order, in pieces of at most `step` bytes.

    Args:
        size: of the object, in bytes.
        done: what is there, in any order; may overlap.
    """
    left: list[ByteRange] = []
    position = 0
    for first, end in [*merged(done), (size, size)]:
        while position < min(first, size):
            until = min(position + step, first, size)
            left.append((position, until))
            position = until
        position = max(position, end)
    return left


def merged(ranges: Iterable[ByteRange]) -> list[ByteRange]:
    """The same bytes in as few ranges as possible, in order."""
    result: list[ByteRange] = []
    for first, end in sorted(ranges):
        if result and first <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        elif end > first:
            result.append((first, end))
    return result


def plan_cleaning(files: Mapping[str, CachedFile], limit_bytes: int | None) -> list[str]:
    """Which files leave the cache (rules 3 and 4), by key.

    Args:
        limit_bytes: None for none.
    """
    unused = [key for key, file in files.items() if not file.used and not (file.partial and file.listed)]
    if limit_bytes is None:
        return sorted(key for key in unused if not files[key].listed)
    unused.sort(key=lambda key: (files[key].listed, files[key].used_ns, key))
    return _until_within(unused, files, limit_bytes)


def _until_within(order: Sequence[str], files: Mapping[str, CachedFile], limit_bytes: int) -> list[str]:
    total = sum(file.size for file in files.values())
    leaving: list[str] = []
    for key in order:
        if total <= limit_bytes:
            break
        leaving.append(key)
        total -= files[key].size
    return leaving


def progress_text(done: int, total: int) -> str:
    """``35 % (1.2 of 3.4 GiB)``."""
    unit, name = next((each for each in _UNITS if total >= each[0]), (1, "bytes"))
    share = 100 if total == 0 else 100 * done // total
    shown = f"{done} of {total}" if unit == 1 else f"{done / unit:.1f} of {total / unit:.1f}"
    return f"{share} % ({shown} {name})"


def size_text(nbytes: int) -> str:
    """``3.4 GiB``."""
    unit, name = next((each for each in _UNITS if nbytes >= each[0]), (1, "bytes"))
    return f"{nbytes} bytes" if unit == 1 else f"{nbytes / unit:.1f} {name}"


_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def same_bytes(one: Collection[RemoteObject], other: Collection[RemoteObject]) -> bool:
    """Whether two listings are of the same contents (`listing`, rule 4)."""
    return {(each.path, each.key) for each in one} == {(each.path, each.key) for each in other}
