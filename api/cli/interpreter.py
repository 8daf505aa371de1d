"""How the interpreter is set for an event loop that serves many clients."""

from __future__ import annotations

import gc
import sys

_GC_THRESHOLD = 5_000
"""Containers that a crowd of clients leaves for one collection, which takes 1 µs for each."""

_SWITCH_INTERVAL_S = 0.0005
"""So long a busy event loop keeps an instance's thread waiting, each time that a batch needs the interpreter. With
Python's own 5 ms a flood of one client delayed another's small batch by 50 ms."""


def switch_often() -> None:
    """Let threads have their turn soon."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


def settle_memory() -> None:
    """Take what loading left behind out of the garbage collector's sight.

    A request makes no reference cycles, so there is next to nothing to collect; but collecting means looking through
    every object that numpy, ONNX Runtime and the models brought along, again and again. That took two fifths of the
    time of a small request.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 50, 100)
