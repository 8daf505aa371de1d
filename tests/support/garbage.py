"""What only the garbage collector would find, which hardly ever runs in a server."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def watched_garbage() -> Iterator[Callable[[], list[object]]]:
    """Gives a function that finds Trireme's objects which became garbage in the block, in cycles.

    What was alive before, of servers and clients of other tests, may become garbage meanwhile, and is not looked at.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)

    def find() -> list[object]:
        gc.collect()
        return [found for found in gc.garbage if type(found).__module__.startswith("trireme.")]

    try:
        yield find
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()
