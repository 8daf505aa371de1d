"""Frames for all consoles that are open: each is made once, when the first of its readers is ready for it.

Rules:
 1. A frame is made at most every `LEAST_INTERVAL_S`, and so seldom that making them takes no more than one part in
    `_SHARE` of a processor's time, however many models there are.
 2. There is no queue: a reader that is slow gets the frame of when it comes back, and those in between are not for it.
 3. While no console is open nothing is made, kept or noted. At most `MOST_CONSOLES` are open at a time.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import orjson
import trio

from ...engine.clock import Clock, SystemClock
from ...engine.config import config_json
from ...engine.description import ActorNode, ModelDescription
from ...engine.errors import TriremeError
from ...engine.metrics.batch_tap import TappedBatch, place_window
from ...engine.metrics.batching_reasons import BatchingCounts, BatchingSettings, explain_batching, settings_of
from ...engine.metrics.statistics import ModelStatisticsEntry
from .frames import Look, ModelKey, batching_counts, frame, key_of

if TYPE_CHECKING:
    from ...actors import InferenceServer

LEAST_INTERVAL_S = 0.4
MOST_CONSOLES = 16

_SHARE = 100
_MOST_BATCHES = 96
"""Of all models together, in a window."""
_LEAST_BATCHES = 12
_MOST_OPEN = 32
"""Requests of one model that are being executed."""
_MOST_TAPPED = 64
"""Models whose batches are shown singly, the busiest ones."""
_HISTORY = 13
_HISTORY_STEP_S = 5.0
"""So sentences are about the last minute."""


class Feed:
    """The frames of one server.

    Args:
        more: nodes that the tree of actors has besides the server's own.
        clock: for times in frames.
        cpu_ns: the time that the event loop's thread has computed.
    """

    def __init__(
        self,
        server: InferenceServer,
        more: Callable[[], Sequence[ActorNode]] = lambda: (),
        clock: Clock | None = None,
        cpu_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self._cpu_ns = cpu_ns
        self._server = server
        self._more = more
        self._clock = clock or SystemClock()
        self._readers = 0
        self._windows = _Windows()
        self._why = _LastMinute()
        self._settings: dict[ModelKey, tuple[ModelDescription, BatchingSettings]] = {}
        self._number = 0
        self._frame = b""
        self._next_s = -math.inf
        self._began_ns = 0

    @property
    def readers(self) -> int:
        """How many consoles are open."""
        return self._readers

    @property
    def full(self) -> bool:
        """No more may be opened."""
        return self._readers >= MOST_CONSOLES

    @contextmanager
    def reader(self) -> Iterator[None]:
        """A console is open inside the block."""
        if not self._readers:
            self._began_ns = self._clock.now_ns()
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                self._rest()

    def _rest(self) -> None:
        """Rule 3."""
        self._windows.close(self._entries())
        self._why = _LastMinute()
        self._settings.clear()
        self._frame = b""
        self._next_s = -math.inf

    async def next(self, seen: int) -> tuple[int, bytes]:
        """Wait for a frame that is newer than the one with the number `seen` (0: any); its number and its JSON."""
        while self._number <= seen or not self._frame:
            await trio.sleep_until(self._next_s)
            if trio.current_time() >= self._next_s:
                self.make()
        await trio.lowlevel.checkpoint()
        return self._number, self._frame

    def make(self) -> None:
        """The next frame, now."""
        began_ns, computed_ns = self._clock.now_ns(), self._cpu_ns()
        entries = self._entries()
        now_s = trio.current_time()
        self._remember_settings(entries)
        settings = {key: each for key, (_, each) in self._settings.items()}
        server = self._server
        tree = server.actors() if server.started else ActorNode("server", server.options.server_id, "not started")
        look = Look(
            began_ns,
            entries,
            server.repository_index() if server.started else [],
            server.model_statistics(),
            _with_more(tree, self._more()),
            server.budget_statistics(),
            server.refusal_statistics(),
            settings,
            self._why.sentences(entries, settings, now_s),
        )
        still_open = server.open_requests(_MOST_OPEN) if server.started else {}
        requests = {
            key_of(entry): [*entry.statistics.tap.take_requests(), *still_open.get(key_of(entry), ())]
            for entry in entries
        }
        made = frame(look, self._began_ns, self._windows.turn(entries), requests)
        self._frame = orjson.dumps(made)
        self._number += 1
        took_s = (self._cpu_ns() - computed_ns) / 1e9
        self._next_s = trio.current_time() + max(LEAST_INTERVAL_S, _SHARE * took_s)

    def _entries(self) -> list[ModelStatisticsEntry]:
        return self._server.statistics() if self._server.started else []

    def _remember_settings(self, entries: Sequence[ModelStatisticsEntry]) -> None:
        """What configurations say is read once for each description."""
        known, self._settings = self._settings, {}
        for entry in entries:
            try:
                described = self._server.describe(entry.name, entry.version)
            except TriremeError:  # two repositories have one of this name
                continue
            before = known.get(key_of(entry))
            if before is None or before[0] is not described:
                before = described, settings_of(orjson.loads(config_json(described.config)))
            self._settings[key_of(entry)] = before


def _with_more(tree: ActorNode, more: Sequence[ActorNode]) -> ActorNode:
    if not more:
        return tree
    box = tree.restarts, tree.mail, tree.room
    return ActorNode(tree.kind, tree.name, tree.state, tree.detail, *box, (*more, *tree.children))


class _Windows:
    """Which batches are shown singly."""

    def __init__(self) -> None:
        self._executions: dict[ModelKey, int] = {}
        self._turn = 0

    def turn(self, entries: Sequence[ModelStatisticsEntry]) -> Mapping[ModelKey, Sequence[TappedBatch]]:
        """What was seen, and the next windows."""
        before, self._executions = self._executions, {}
        grown = []
        for entry in entries:
            key, now = key_of(entry), entry.statistics.execution_count
            self._executions[key] = now
            grown.append((now - before.get(key, now), entry))
        grown.sort(key=lambda each: -each[0])
        busy = sum(more > 0 for more, _ in grown[:_MOST_TAPPED])
        most = max(_LEAST_BATCHES, _MOST_BATCHES // max(1, busy))
        seen: dict[ModelKey, Sequence[TappedBatch]] = {}
        self._turn += 1
        for at, (expected, entry) in enumerate(grown):
            tap = entry.statistics.tap
            if taken := tap.take():
                seen[key_of(entry)] = taken
            if at < _MOST_TAPPED:
                tap.open(place_window(expected, most, self._turn), most)
            else:
                tap.close()
        return seen

    def close(self, entries: Sequence[ModelStatisticsEntry]) -> None:
        """Show none any more."""
        for entry in entries:
            entry.statistics.tap.close()
        self._executions.clear()


class _LastMinute:
    """What was counted in the last minute, or since the first console was opened."""

    def __init__(self) -> None:
        self._history: deque[tuple[float, Mapping[ModelKey, BatchingCounts]]] = deque(maxlen=_HISTORY)
        self._sentences: dict[ModelKey, list[str]] = {}
        self._told_s = -math.inf

    def sentences(
        self, entries: Sequence[ModelStatisticsEntry], settings: Mapping[ModelKey, BatchingSettings], now_s: float
    ) -> Mapping[ModelKey, Sequence[str]]:
        """About each model; anew once a second."""
        if now_s < self._told_s + 1.0:
            return self._sentences
        self._told_s = now_s
        counts = {key_of(entry): batching_counts(entry.statistics) for entry in entries}
        if not self._history or now_s >= self._history[-1][0] + _HISTORY_STEP_S:
            self._history.append((now_s, counts))
        began_s, earlier = self._history[0]
        seconds = now_s - began_s
        when = "in the last minute" if seconds >= 55 else f"in the last {max(1, round(seconds))} s"
        nothing = BatchingCounts()
        self._sentences = {
            key: explain_batching(now.since(earlier.get(key, nothing)), settings.get(key, _UNKNOWN), when)
            for key, now in counts.items()
        }
        return self._sentences


_UNKNOWN = BatchingSettings("dynamic", 1)


def about(server: InferenceServer, actions: str, version: str) -> dict[str, Any]:
    """What a page has to know before the first frame.

    Args:
        actions: why the page can only look; empty if it can do more.
    """
    return {
        "server": server.options.server_id,
        "version": version,
        "refusal": actions,
        "takesOrders": server.options.model_control_mode.takes_orders,
        "control": server.options.model_control_mode.value,
        "access": server.access is not None,
    }
