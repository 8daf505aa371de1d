"""The process of a front end, as the engine starts and ends it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from .link import map_rings, ring_memory
from .ring import RingReader, RingWriter

_EXIT_LIMIT_S = 5.0
"""How long a process may take to end that has nothing more to do."""

_VARIABLES = frozenset({"PATH", "HOME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV"})
_PREFIXES = ("LC_", "PYTHON")


class Child(Protocol):
    """A front end's process, and the engine's end of its link.

    Attributes:
        sock, rings: of the link; for who opens it, and closes it.
    """

    pid: int
    sock: socket.socket
    rings: tuple[RingWriter, RingReader]

    async def hand_over(self) -> None:
        """Give it its settings. One that ends before it has read them is heard of otherwise."""
        ...

    async def end(self) -> str:
        """Wait for the end of a process whose link is closed, or have it ended; how it has ended. Not cancelled."""
        ...


@dataclass(frozen=True, slots=True)
class FrontEndCommand:
    """How to start a front end.

    Attributes:
        words: the command, to be followed by the numbers of the descriptors of its socket and of its rings, and the
            bytes of these.
        settings: what it reads from its standard input.
    """

    words: Sequence[str]
    settings: bytes

    async def start(self) -> Child:
        """Start a process.

        Raises:
            OSError: it cannot be started.
        """
        ours, theirs = socket.socketpair()
        started = False
        try:
            ours.setblocking(False)
            descriptor, nbytes = ring_memory()
            try:
                with theirs:
                    process = await self._open(theirs.fileno(), descriptor, nbytes)
                child = _Process(process, ours, map_rings(descriptor, nbytes, first=True), self.settings)
                started = True
            finally:
                os.close(descriptor)
        finally:
            if not started:
                ours.close()
        return child

    async def _open(self, sock: int, rings: int, nbytes: int) -> trio.Process:
        words = [*self.words, str(sock), str(rings), str(nbytes)]
        return await trio.lowlevel.open_process(
            words, stdin=subprocess.PIPE, pass_fds=(sock, rings), start_new_session=True, env=_environment()
        )


class _Process:
    """See `Child`."""

    def __init__(
        self, process: trio.Process, sock: socket.socket, rings: tuple[RingWriter, RingReader], settings: bytes
    ) -> None:
        self.pid = process.pid
        self.sock = sock
        self.rings = rings
        self._process = process
        self._settings = settings

    async def hand_over(self) -> None:
        stdin = self._process.stdin
        assert stdin is not None, "it is a pipe"
        try:
            async with stdin:
                await stdin.send_all(self._settings)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def end(self) -> str:
        process = self._process
        with trio.CancelScope(shield=True):
            with trio.move_on_after(_EXIT_LIMIT_S):
                await process.wait()
            if process.returncode is None:
                process.send_signal(signal.SIGKILL)
                await process.wait()
        return f"exit code {process.returncode}"


def _environment() -> dict[str, str]:
    """What front ends may know of this process's environment, in which there may be keys."""
    return {name: value for name, value in os.environ.items() if name in _VARIABLES or name.startswith(_PREFIXES)}
