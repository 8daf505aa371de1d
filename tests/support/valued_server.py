"""A server of the valued models, without sockets, and what its tests ask of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from valued_models import Gates, value_of, valued_request

from trireme.actors import InferenceServer
from trireme.engine.errors import TriremeError
from trireme.engine.options import ControlMode, ServerOptions

POLL_FAILED = "failed to load '{}', failed to poll from model repository"


@asynccontextmanager
async def serving(
    root: Path | tuple[Path | str, ...], gates: Gates, *startup: str, **options: Any
) -> AsyncIterator[InferenceServer]:
    """Of one repository or several; `options` are `ServerOptions` fields, ``agents``, and ``source``."""
    given = {name: options.pop(name) for name in ("agents", "source") if name in options}
    settings: dict[str, Any] = {"model_control_mode": ControlMode.EXPLICIT, "startup_models": startup, **options}
    roots = root if isinstance(root, tuple) else (root,)
    server = InferenceServer(ServerOptions(model_repository=roots, **settings), backends=gates.backends(), **given)
    async with server:
        yield server


async def index(server: InferenceServer) -> list[tuple[str, str, str, str]]:
    """Name, version, state, reason."""
    await server.rescan()
    rows = server.repository_index()
    return [(row.name, row.version, row.state.value if row.state else "", row.reason) for row in rows]


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - what is waited for happens on other threads
            await trio.sleep(0.002)


async def ask(server: InferenceServer, model: str, version: int = -1) -> float:
    return value_of(await server.infer(valued_request(model, version=version)))


async def fails(call: Any, kind: type[TriremeError], text: str) -> None:
    with pytest.raises(kind) as caught:
        await call
    assert caught.value.message == text
