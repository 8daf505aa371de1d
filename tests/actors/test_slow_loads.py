"""Ending loads that take long (what becomes of a model then: test_load_attempts)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from trireme.actors.repository import Replacement, SlowLoads
from trireme.engine.description import ModelState
from trireme.engine.repository.known import always


class SlowFiles:
    """Executors whose work with files takes until the test says so."""

    def __init__(self) -> None:
        self.ready = trio.Event()

    async def look(self, work: Callable[[], Any]) -> Any:
        with trio.CancelScope(shield=True):  # as a thread, which nothing ends
            await self.ready.wait()
        return work()


async def test_a_load_that_began_while_files_were_looked_at_goes_on() -> None:
    """The slow one came to its own end meanwhile; this may be the very load that waited for it."""
    told: list[str] = []
    model = SimpleNamespace(
        id="m", loaded=False, state=ModelState.LOADING, unload=lambda: told.append("unload"), end_resize=told.clear
    )
    files, options = SlowFiles(), SimpleNamespace(load_patience_s=0.0)
    surroundings: Any = SimpleNamespace(clock=SimpleNamespace(now_s=lambda: 0.0), options=options, executors=files)
    models: Any = lambda: [model]  # noqa: E731
    loads = SlowLoads(surroundings, models)
    known: Any = {"m": SimpleNamespace(source=SimpleNamespace(name="m"))}
    waiting = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        with loads.under_way("m"):
            nursery.start_soon(loads.keep_ending, waiting, known, Replacement("newer", "m", always))
            await wait_all_tasks_blocked()
        with loads.under_way("m") as second:
            waiting.cancel()
            files.ready.set()
            await wait_all_tasks_blocked()
            assert (second.ended, told) == ("", [])
