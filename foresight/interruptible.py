"""Work that runs a server inside of this process, and that Ctrl-C ends.

Python raises KeyboardInterrupt in whatever is executed at that moment. In a process that is busy with a server's tasks
and a framework's callbacks that may be code from which an exception does not get out, and then the work goes on as if
nothing had been said. So the signal comes to a task of its own here, and nowhere else.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from ..actors.offload import first_error

T = TypeVar("T")


async def interruptible(work: Callable[[], Awaitable[T]]) -> T:
    """Do it, to its end or to an interrupt: that cancels it.

    Raises:
        KeyboardInterrupt: so it was.
        Exception: what the work raised.
    """
    try:
        async with trio.open_nursery() as nursery:
            if threading.current_thread() is threading.main_thread() and _is_heard():
                await nursery.start(_raise_interrupt)
            result = await work()
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        interrupts = group.subgroup(KeyboardInterrupt)
        error = KeyboardInterrupt() if interrupts is not None else first_error(group)
    else:
        return result
    raise error


def _is_heard() -> bool:
    """Whether this process was started to be interrupted: a shell starts what is in the background otherwise."""
    return signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


async def _raise_interrupt(task_status: trio.TaskStatus[None]) -> None:
    with trio.open_signal_receiver(signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            raise KeyboardInterrupt
