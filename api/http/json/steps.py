"""Between two pieces of work on a large text.

A thread that lets go of the interpreter's lock again and again, but only for moments, as numpy does, keeps the event
loop waiting without end: each time the loop's thread wakes up too late, and begins anew to wait for the interval after
which it may insist on its turn. So the thread sleeps for as long as the other takes to wake up: before each piece, or
before some of them while the loop has nothing to do (`actors.piecework`). Nor are pieces of several texts done at a
time.
"""

from __future__ import annotations

import time

from ....actors.piecework import next_piece

_NAP_S = 1e-5
"""The system makes it 60 to 100 µs. Without sleep a thread has the lock again before the event loop's wakes up."""


def give_way() -> None:
    """Let the event loop have the interpreter's lock, and other texts their turn. For threads, before or after each
    piece of some 0.3 ms."""
    next_piece(_nap)


def _nap() -> None:
    time.sleep(_NAP_S)
