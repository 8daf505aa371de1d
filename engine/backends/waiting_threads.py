"""Which sessions of a framework (ONNX Runtime's) have threads that wait for work in a loop.

After a run the threads of a session look for more work for some milliseconds before they sleep, which saves waking them
up. Those of many sessions take the cores from each other, and from the rest of the server. Rules:

1. Sessions wait in a loop while all their threads together are no more than `most`.
2. The threads of a session beyond that sleep as soon as they have nothing to do.
3. A session that is gone leaves its share to those made later. No session changes what it does.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from ..host_policies import usable_cores

_EACH_CORE = 2
"""Threads in a loop for each core: two instances that have the cores in turn are faster so
(docs/benchmarks.md#models-on-demand)."""


class _Share:
    """Threads of one session."""

    def __init__(self, threads: int) -> None:
        self.threads = threads


class WaitingThreads:
    """The threads of all sessions that wait in a loop. Callable from any thread.

    Args:
        most: how many there may be; as many as twice the cores if None.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = _EACH_CORE * usable_cores() if most is None else most
        self._lock = threading.Lock()
        self._shares: WeakSet[_Share] = WeakSet()
        self._held: WeakKeyDictionary[Any, _Share] = WeakKeyDictionary()

    def share(self, threads: int) -> _Share | None:
        """A share for a session with so many threads (0: as many as there are cores); None if there is no room for it.
        It is free again when it is held no longer."""
        share = _Share(threads or usable_cores())
        with self._lock:
            if sum(each.threads for each in self._shares) + share.threads > self._most:
                return None
            self._shares.add(share)
        return share

    def keep(self, session: Any, share: _Share | None) -> None:
        """Have a session hold its share as long as it exists."""
        if share is not None:
            with self._lock:
                self._held[session] = share
