"""Asking a model about its configuration, in a process that lives no longer than that."""

from __future__ import annotations

import contextlib
import tempfile
from typing import Any

from ...errors import InternalError
from .child import protocol
from .child.channel import ChannelClosedError
from .child.codec import MessageError
from .instance import unhealthy
from .launching import Interpreter, Process
from .output import OutputLog

LIMIT_S = 300.0
"""However long a model takes to complete its configuration, this is enough."""


def completed_config(name: str, interpreter: Interpreter, settings: dict[str, Any]) -> str:
    """What ``auto_complete_config`` makes of the configuration, as JSON.

    Args:
        name: of the model, for people.
        settings: `protocol.START`, with ``auto_complete``.

    Raises:
        InternalError: the model cannot be imported, does not like its configuration, or does not answer.
    """
    with tempfile.TemporaryFile() as printed:
        process = Process(name, interpreter, output=printed.fileno(), timeout_s=LIMIT_S)
        try:
            with contextlib.suppress(ChannelClosedError):  # it may have said why it is gone
                process.channel.send((protocol.START, settings))
            return _answer(name, process)
        except (ChannelClosedError, MessageError):
            raise unhealthy(name) from None
        finally:
            process.kill()
            process.wait(LIMIT_S)
            process.close()
            printed.seek(0)
            log = OutputLog(printed.fileno(), name)
            while log.read():
                pass


def _answer(name: str, process: Process) -> str:
    while True:
        message = process.channel.receive()
        if message is None:
            raise unhealthy(name)
        kind, *rest = message.head
        if kind == protocol.FAILED:
            raise InternalError(rest[0])
        if kind == protocol.STARTED:
            return rest[0]
