"""Python models in the server's own process, on a thread: for small code that one trusts.

There is no process to start and to lose, and ``breakpoint()`` works; but what such a model does to its process it does
to the server, and it takes turns with the server at the interpreter. A model asks for it by the parameter ``EXECUTION``
with the value ``in_process``.

Nothing else is different. The thread runs what a model's process runs (`child.process`), and is spoken to in the same
way, over a socket; so all that holds there, from back-pressure to calls to other models, holds here. A thread cannot be
killed, though: one that hangs is abandoned, and ends by itself when the model returns.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from .child.channel import Channel, ChannelClosedError, socket_pair
from .child.process import ModelProcess
from .child.process_host import ProcessHost
from .child.utils.event_loop import EventLoop


class ModelThread:
    """A thread in place of a `launching.Process`, with the same attributes and methods.

    Args:
        name: of the instance.
        make_loop: makes, from a name, what coroutines of the model run on.
    """

    stdout = stderr = -1
    killable = False

    def __init__(self, name: str, make_loop: Callable[[str], EventLoop]) -> None:
        ours, theirs = socket_pair()
        ours.setblocking(False)
        self.channel = Channel(ours, trusted=False)
        self.ended, self._end = os.pipe()
        self._hears, self.bell = os.pipe()
        arguments = (Channel(theirs), make_loop(f"{name} coroutines"))
        self._thread = threading.Thread(target=self._run, args=arguments, name=name, daemon=True)
        self._thread.start()

    def _run(self, channel: Channel, loop: EventLoop) -> None:
        host = ProcessHost(channel, loop)
        threading.Thread(target=host.keep_tidy, name=f"{self._thread.name} tidy", daemon=True).start()
        try:
            ModelProcess(host, self._hears).serve()
        except ChannelClosedError:
            return  # the server does not want it any more
        finally:
            host.close()
            os.close(self._end)
            loop.stop()  # which the model's end has done if there was one

    @property
    def status(self) -> int | None:
        return None if self._thread.is_alive() else 0

    def wait(self, timeout_s: float) -> bool:
        """Whether it ends within this time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def kill(self) -> None:
        """Send nothing more to it, and receive nothing more."""
        self.channel.hang_up()

    def close(self) -> None:
        """Give back what is left of it."""
        self.channel.close()
        os.close(self.bell)
        os.close(self.ended)

    def __repr__(self) -> str:
        return f"<ModelThread {self._thread.name}{'' if self._thread.is_alive() else ' (ended)'}>"
