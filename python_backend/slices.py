"""Short time slices for models' processes.

A request goes from the server to a model's process and back. Where both share a core, the one that is woken waits until
the other sleeps or has used up its time slice, a few milliseconds; unless its own slice is shorter: then it runs at
once. Linux lets a thread choose its slice from version 6.12 on, and takes no notice before.
"""

from __future__ import annotations

import ctypes
import platform
import struct

_ATTRIBUTES = struct.Struct("<IIQiIQQQ")  # size, policy, flags, nice, priority, runtime in ns, deadline, period
_POLICY, _RUNTIME = 1, 5
_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""Numbers of the system calls ``sched_setattr`` and ``sched_getattr``."""
_USUAL_POLICIES = (0, 3)  # SCHED_OTHER, SCHED_BATCH


def shorten_slices(pid: int, slice_us: int) -> bool:
    """Give a process of one thread, and what it starts from now on, slices of so many microseconds; the kernel makes
    them 100 at least. Whether it has accepted that; where it does not, nothing changes."""
    attributes = _attributes(pid)
    if attributes is None or attributes[_POLICY] not in _USUAL_POLICIES:
        return False
    attributes[_RUNTIME] = slice_us * 1000
    return _call(0, pid, _ATTRIBUTES.pack(*attributes), 0)


def slice_us(pid: int) -> float:
    """A thread's slice; 0 if the kernel does not tell."""
    attributes = _attributes(pid)
    return 0.0 if attributes is None else attributes[_RUNTIME] / 1000


def _attributes(pid: int) -> list[int] | None:
    there = ctypes.create_string_buffer(_ATTRIBUTES.size)
    return list(_ATTRIBUTES.unpack(there.raw)) if _call(1, pid, there, _ATTRIBUTES.size, 0) else None


def _call(which: int, *arguments: object) -> bool:
    """Whether a call of `_CALLS` has succeeded."""
    calls = _CALLS.get(platform.machine())
    if calls is None:
        return False
    try:
        return ctypes.CDLL(None).syscall(calls[which], *arguments) == 0
    except (AttributeError, OSError):  # there is no such function
        return False
