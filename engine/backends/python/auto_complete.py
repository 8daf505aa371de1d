"""Asking a model about its configuration, in a process that lives no longer than that."""

from __future__ import annotations

import contextlib
import select
import threading
from typing import Any

from ...errors import InternalError
from .child import protocol
from .child.channel import ChannelClosedError
from .child.codec import MessageError
from .instance import unhealthy
from .launching import Interpreter, Process
from .output import OutputLog, log_line

_END_S = 10.0
"""A process that was killed is gone within this time, or is beyond help."""


def completed_config(name: str, interpreter: Interpreter, settings: dict[str, Any], limit_s: float) -> str:
    """What ``auto_complete_config`` makes of the configuration, as JSON. What the model prints is logged as it comes.

    Args:
        name: of the model, for people.
        settings: `protocol.START`, with ``auto_complete``.
        limit_s: seconds that this may take.

    Raises:
        InternalError: the model cannot be imported, does not like its configuration, or does not answer.
    """
    process = Process(name, interpreter, timeout_s=limit_s)
    logs = {pipe: OutputLog(pipe, name) for pipe in (process.stdout, process.stderr)}
    too_late = threading.Event()
    watchdog = threading.Timer(limit_s, _give_up, (process, too_late))
    watchdog.start()
    try:
        with contextlib.suppress(ChannelClosedError):  # it may have said why it is gone
            process.channel.send((protocol.START, settings))
        return _answer(process, logs)
    except (ChannelClosedError, MessageError):
        if too_late.is_set():
            raise InternalError(
                f"auto_complete_config of model '{name}' has not returned within {limit_s:g} s"
            ) from None
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


def _answer(process: Process, logs: dict[int, OutputLog]) -> str:
    poll = select.poll()
    for descriptor in (process.channel.fileno(), *logs):
        poll.register(descriptor, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            log = logs.get(descriptor)
            if log is None:
                config = _heard(process)
                if config is not None:
                    return config
            elif not log.read():
                poll.unregister(descriptor)


def _heard(process: Process) -> str | None:
    """The configuration, if that is what has come."""
    message = process.channel.receive()
    assert message is not None, "the channel blocks"
    kind, *rest = message.head
    if kind == protocol.FAILED:
        raise InternalError(rest[0])
    if kind == protocol.LOG:
        log_line(*rest)
    return rest[0] if kind == protocol.STARTED else None
