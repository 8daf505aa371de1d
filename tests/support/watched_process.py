"""What a `ServeProcess` and its front ends hold, as the system and the metrics tell it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from serve_process import PATIENCE_S, ServeProcess


def pids(server: ServeProcess) -> list[int]:
    """Of the front ends of a server."""
    found = []
    for task in Path(f"/proc/{server.process.pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread, or a process, that has just ended
            for pid in (task / "children").read_text().split():
                with suppress(FileNotFoundError, ProcessLookupError):
                    if b"front_end" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        found.append(int(pid))
    return found


def inflight(server: ServeProcess) -> tuple[float, float]:
    """Requests and bytes that the budget counts."""
    text = server.metrics()
    requests, nbytes = (
        re.search(rf"^trireme_inflight_{what} (\S+)", text, re.MULTILINE) for what in ("requests", "bytes")
    )
    assert requests
    assert nbytes
    return float(requests[1]), float(nbytes[1])


def wait_until(condition: Callable[[], bool]) -> None:
    """Ask until something is so."""
    over = threading.Event()
    for _ in range(int(PATIENCE_S / 0.05)):
        if condition():
            return
        over.wait(0.05)
    raise AssertionError("it has not come about")
