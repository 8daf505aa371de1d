"""The processes of front ends, which here are none, or ones that break off."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from trireme.actors import InferenceServer
from trireme.engine.errors import UnavailableError
from trireme.engine.options import ServerOptions
from trireme.front_ends import kinds, processes
from trireme.front_ends.calls import EngineCalls
from trireme.front_ends.child_process import FrontEndCommand
from trireme.front_ends.processes import FrontEnds


@asynccontextmanager
async def front_ends(path: Path, script: str, count: int = 1) -> AsyncIterator[FrontEnds]:
    """Front ends that run a Python script."""
    async with InferenceServer(ServerOptions(model_repository=(path,))) as server:
        command = FrontEndCommand((sys.executable, "-c", script), b"")
        yield FrontEnds(server, EngineCalls(server.management), count, command.start)


class Port:
    """In place of one: what it was told, and what it was ended by."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.error: Exception | None = None

    def say(self, head: Any, payload: object = None) -> None:
        self.said.append(head)

    def fail(self, error: Exception) -> None:
        self.error = error


async def test_a_front_end_that_never_starts_is_an_error(tmp_path: Path) -> None:
    async with front_ends(tmp_path, "raise SystemExit(3)", count=2) as members, trio.open_nursery() as nursery:
        with pytest.raises(UnavailableError, match=r"front end 0 cannot be started: .*exit code 3"):
            await nursery.start(members.run)


async def test_a_command_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    async with InferenceServer(ServerOptions(model_repository=(tmp_path,))) as server:
        command = FrontEndCommand((str(tmp_path / "none"),), b"")
        members = FrontEnds(server, EngineCalls(server.management), 1, command.start)
        async with trio.open_nursery() as nursery:
            with pytest.raises(UnavailableError, match=r"front end 0 cannot be started: .*No such file"):
                await nursery.start(members.run)


async def test_who_waits_for_a_front_end_that_does_not_answer_goes_on(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with front_ends(tmp_path, "", count=2) as members:
        silent, ended = Port(), Port()
        first, second = members._members
        first.port, second.port = silent, ended  # type: ignore[assignment] - enough of one
        second.heard = 1
        before = trio.current_time()
        await members._settled()
        assert silent.said == [(kinds.SYNC, 1)]
        assert trio.current_time() - before == pytest.approx(processes._HEAR_LIMIT_S)
        assert "does not answer" in str(silent.error)
        assert ended.error is None


async def test_what_has_ended_is_not_started_again_while_the_server_drains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    async with front_ends(tmp_path, "") as members:
        starts = []

        async def serve(member: object) -> None:
            starts.append(member)
            raise OSError("it is over")

        monkeypatch.setattr(members, "_serve", serve)
        (member,) = members._members
        member.opened.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(members._keep, member)
            await trio.testing.wait_all_tasks_blocked()
            await members.drain(1.0)
        assert len(starts) == 1
