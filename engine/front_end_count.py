"""How many front ends there are."""

from __future__ import annotations

MOST_FRONT_ENDS = 256

_CORES_OF_FRONT_END = 4
_LEAST_AUTOMATIC = 2
_MOST_AUTOMATIC = 8


def front_end_count(wanted: int | None, cores: int) -> int:
    """How many front ends there are to be: if nothing is said (None), none below 4 cores. Then one for each 4 of them,
    at least 2, for one alone gives less than no front end, and at most 8, for one engine keeps no more busy."""
    if wanted is not None:
        return wanted
    if cores < _CORES_OF_FRONT_END:
        return 0
    return min(max(_LEAST_AUTOMATIC, cores // _CORES_OF_FRONT_END), _MOST_AUTOMATIC)
