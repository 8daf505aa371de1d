"""What a group of exceptions is about."""

from __future__ import annotations

import trio


def first_error(group: BaseExceptionGroup) -> BaseException:
    """The first exception in it that is an `Exception`: one is enough, and the others often say the same. The group
    itself if there is none."""
    leaves: list[BaseException] = []
    groups: list[BaseExceptionGroup] = [group]
    while groups:
        for part in groups.pop().exceptions:
            if isinstance(part, BaseExceptionGroup):
                groups.append(part)
            else:
                leaves.append(part)
    return next((leaf for leaf in leaves if isinstance(leaf, Exception)), group)


def is_cancelled(error: BaseException | None) -> bool:
    """Whether it says that its task is cancelled, and nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1] is None
    return isinstance(error, trio.Cancelled)
