"""Asking a model about its configuration, in a process that lives no longer than that."""

from __future__ import annotations

import contextlib
import logging
import select
import threading
from typing import Any

from ..engine.backends.confinement import Confinement
from ..engine.cancellation import Cancellation
from ..engine.clock import SystemClock
from ..engine.errors import InternalError, UnavailableError
from .child import protocol
from .child.channel import Channel, ChannelClosedError
from .child.codec import MessageError
from .instance import unhealthy
from .launching import Interpreter, Process, describe_status
from .output import OutputLog, Pace, log_line

logger = logging.getLogger("trireme.python")

_LAST_WORD_S = 1.0
"""Between the end of what a process says and its own end."""

_END_S = 10.0
"""A process that was killed is gone within this time, or is beyond help."""


def completed_config(
    name: str,
    interpreter: Interpreter,
    confinement: Confinement,
    settings: dict[str, Any],
    limit_s: float,
    cancellation: Cancellation,
) -> str:
    """What ``auto_complete_config`` makes of the configuration, as JSON. What the model prints is logged as it comes.

    Args:
        name: of the model, for people.
        settings: `protocol.START`, with ``auto_complete``.
        limit_s: seconds that this may take.
        cancellation: of the load; it ends the process.

    Raises:
        InternalError: the model cannot be imported, does not like its configuration, or does not answer.
        UnavailableError: the load was cancelled.
    """
    process = Process(name, interpreter, confinement, timeout_s=limit_s)
    pace = Pace()
    logs = {
        process.stdout: OutputLog(process.stdout, name, pace),
        process.stderr: OutputLog(process.stderr, name, pace, logging.WARNING),
    }
    too_late = threading.Event()
    watchdog = threading.Timer(limit_s, _give_up, (process, too_late))
    watchdog.start()
    try:
        with cancellation.ending(process.kill):
            with contextlib.suppress(ChannelClosedError):  # it may have said why it is gone
                process.channel.send((protocol.START, settings))
            return _answer(process, logs, too_late)
    except (ChannelClosedError, MessageError):
        if cancellation.cancelled:
            raise UnavailableError(f"auto_complete_config of model '{name}' was ended with the load") from None
        if too_late.is_set():
            raise InternalError(
                f"auto_complete_config of model '{name}' has not returned within {limit_s:g} s"
            ) from None
        process.wait(_LAST_WORD_S)
        how = describe_status(process.status)
        logger.error("the process that was asked about the configuration of model '%s' is gone: %s", name, how)
        raise unhealthy(name) from None
    finally:
        watchdog.cancel()
        process.kill()
        process.wait(_END_S)
        for log in logs.values():
            log.close()
        process.close()


def _give_up(process: Process, too_late: threading.Event) -> None:
    too_late.set()
    process.kill()


def _answer(process: Process, logs: dict[int, OutputLog], too_late: threading.Event) -> str:
    clock = SystemClock()
    lines = _LogLines(process.channel)
    poll = select.poll()
    for descriptor in (process.channel.fileno(), *logs):
        poll.register(descriptor, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            log = logs.get(descriptor)
            if log is None:
                config = _heard(process, lines)
                if config is not None:
                    return config
                continue
            pause_s = log.read(clock.now_s())
            if pause_s is None:
                poll.unregister(descriptor)
            elif pause_s:
                too_late.wait(pause_s)


def _heard(process: Process, lines: _LogLines) -> str | None:
    """The configuration, if that is what has come."""
    message = process.channel.receive()
    if message is None:
        return None
    kind, *rest = message.head
    if kind == protocol.FAILED:
        raise InternalError(rest[0])
    if kind == protocol.LOG:
        lines.take(*rest)
    return rest[0] if kind == protocol.STARTED else None


class _LogLines:
    """Logs lines, and tells the process when it may send more.

    Not for each line: a process that logs need not read, and its socket holds few messages. When that is full, both
    ends would wait for each other.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._taken = 0

    def take(self, level: str, filename: str, line: int, text: str) -> None:
        log_line(level, filename, line, text)
        self._taken += protocol.log_cost(text)
        if self._taken >= protocol.LOG_WINDOW // 4:
            self._channel.send((protocol.LOGGED, self._taken))
            self._taken = 0
