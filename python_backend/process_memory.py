"""How much memory a process takes, together with those that it has started."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def private_bytes(pid: int) -> int:
    """What is in memory of a process and of its descendants, without what lies in files or is shared; bytes, 0 of a
    process that is gone. Reads a few small files of ``/proc``."""
    return sum(_own_bytes(each) for each in _family(pid))


def _own_bytes(pid: int) -> int:
    with suppress(OSError):
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
        return (int(resident) - int(shared)) * _PAGE_BYTES
    return 0


def _family(pid: int) -> list[int]:
    found = [pid]
    for each in found:  # grows meanwhile; each process has one parent
        with suppress(OSError):
            for thread in Path(f"/proc/{each}/task").iterdir():
                with suppress(OSError):
                    found += map(int, (thread / "children").read_text().split())
    return found
