"""A model's connection to the server, shared by the threads of its process.

There is no thread that reads. A thread that waits for something reads, for all threads; so a model that only ever
answers what it is asked never changes threads, which would cost as much as all the rest.

Rules:
 1. One thread at a time reads (the reader). What it receives is handled at once, under the lock.
 2. A thread that waits while another one reads sleeps, and looks again after every message.
 3. A reader that has what it waited for wakes the others, so that one of them reads on.
 4. Once the server is gone, every thread that waits or sends gets an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from .channel import EMPTY, Channel, ChannelClosedError
from .codec import Head, Message, Payload


class Link:
    """The connection.

    Args:
        channel: the model's end, blocking. To leave or hang it up gives threads that wait the error of rule 4.
        handle: takes a message in; called under the lock, so it must neither block nor call back.
    """

    def __init__(self, channel: Channel, handle: Callable[[Message], None]) -> None:
        self.channel = channel
        self._handle = handle
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._reading = False
        self._sleepers = 0
        self.closed = False

    def send(self, head: Head, payload: Payload = EMPTY) -> None:
        """Send a message, waiting for room.

        Raises:
            ChannelClosedError: the server is gone.
            OSError: no memory is left.
            ValueError: the head holds something other than plain values, or is too large.
        """
        if not self.channel.has_room:
            self.wait(lambda: self.channel.has_room)
        self.channel.send(head, payload)

    def wait(self, is_there: Callable[[], object], timeout_s: float | None = None) -> None:
        """Return when `is_there` says so; it is called under the lock.

        Args:
            timeout_s: return after this time in any case; only while another thread reads.

        Raises:
            ChannelClosedError: the server is gone.
        """
        with self._lock:
            while not is_there():
                if self.closed:
                    raise ChannelClosedError("the server is gone")
                if self._reading:
                    self._sleepers += 1
                    slept_through = not self._changed.wait(timeout_s)
                    self._sleepers -= 1
                    if slept_through:
                        return
                else:
                    self._read()
            if self._sleepers:
                self._changed.notify_all()

    def poll(self) -> None:
        """Take in what has come, without waiting."""
        with self._lock:
            if self._reading or self.closed:
                return
            came = False
            try:
                while (message := self.channel.receive(wait=False)) is not None:
                    came = True
                    self._handle(message)
            except ChannelClosedError:
                came = self.closed = True
            if came and self._sleepers:
                self._changed.notify_all()

    def change(self, action: Callable[[], None]) -> None:
        """Do something under the lock."""
        with self._lock:
            action()
            if self._sleepers:
                self._changed.notify_all()

    def close(self) -> None:
        """Threads that wait get the error that the server is gone."""
        self.channel.hang_up()
        with self._lock:
            while self._reading:
                self._sleepers += 1
                self._changed.wait()
                self._sleepers -= 1
            self.closed = True
            self._changed.notify_all()
        self.channel.close()

    def _read(self) -> None:
        """Receive a message, and handle it. The lock is held, but not while waiting."""
        self._reading = True
        self._lock.release()
        message = None
        try:
            message = self.channel.receive()
        except ChannelClosedError:
            self.closed = True
        finally:
            self._lock.acquire()
            self._reading = False
        if message is not None:
            self._handle(message)
        if self._sleepers:
            self._changed.notify_all()

    def __repr__(self) -> str:
        return f"<Link {'closed' if self.closed else 'open'}: {self.channel!r}>"
