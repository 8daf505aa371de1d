"""Starting the process of a Python model, and getting rid of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...errors import InternalError
from .child.channel import Channel, socket_pair

MAIN = Path(__file__).parent / "child" / "main.py"


@dataclass(frozen=True, slots=True)
class Interpreter:
    """Which Python hosts a model.

    Attributes:
        command: to be followed by the file to run.
        environment: variables to set, on top of the server's own; empty ones to take away.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]


class Process:
    """A running process.

    Args:
        name: of the instance, for people.
        timeout_s: how long the channel may block; without it, it does not.

    Attributes:
        channel: the server's end.
        bell: writing end of a pipe; see `child.protocol`.
        pid: its number.
        ended: a descriptor that can be read when the process has ended.
        stdout, stderr: reading ends of pipes; whoever reads them closes them.

    Raises:
        InternalError: it cannot be started.
    """

    def __init__(self, name: str, interpreter: Interpreter, *, timeout_s: float = 0.0) -> None:
        ours, theirs = socket_pair()
        ours.settimeout(timeout_s)
        hears, self.bell = os.pipe()
        variables = {**os.environ, **interpreter.environment}
        try:
            with theirs:
                self._popen = subprocess.Popen(
                    [*interpreter.command, str(MAIN), str(theirs.fileno()), str(hears)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=(theirs.fileno(), hears),
                    env={name: value for name, value in variables.items() if value},
                )
        except OSError as error:
            ours.close()
            os.close(self.bell)
            raise InternalError(f"cannot start the process of instance '{name}': {error}") from None
        finally:
            os.close(hears)
        self.channel = Channel(ours)
        self.pid = self._popen.pid
        self.ended = os.pidfd_open(self.pid)
        assert self._popen.stdout is not None, "these are pipes"
        assert self._popen.stderr is not None, "both"
        with self._popen.stdout as stdout, self._popen.stderr as stderr:
            self.stdout, self.stderr = os.dup(stdout.fileno()), os.dup(stderr.fileno())

    def wait(self, timeout_s: float) -> bool:
        """Whether it ends within this time."""
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    @property
    def status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._popen.poll()

    def kill(self) -> None:
        """End it."""
        with contextlib.suppress(ProcessLookupError):
            self._popen.kill()

    def close(self) -> None:
        """Give back what is left of it. It must have ended, or been killed."""
        self.channel.close()
        os.close(self.bell)
        self._popen.poll()
        os.close(self.ended)

    def __repr__(self) -> str:
        return f"<Process {self.pid}{'' if self.status is None else f' (ended: {self.status})'}>"


def describe_status(status: int | None) -> str:
    """How a process ended, for people: ``killed by SIGSEGV``, ``exit status 1``."""
    if status is None:
        return "still running"
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"
