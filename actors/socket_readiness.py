"""Tells who waits for a socket when it can be read, at one system call for many.

trio's own ``wait_readable`` arms the socket anew for each wait: a system call a request, as dear as receiving the
request itself. Here a socket is registered once, edge-triggered, with an epoll of its own; one task waits for that one,
through trio, and wakes the tasks whose data has come. Where there is no epoll, trio does it. A server has one of these
for its clients and for the processes of its models.

Rules:
 1. An edge says that something has arrived since the last one. A socket is `ready` from then on until a read has come
    back short or empty-handed: what comes after that makes a new edge.
 2. Who waits may leave a listener. It is called in the waking task, which spares a change of tasks; only if it says
    that it has not taken in everything is the waiting task woken. All listeners whose data came together are called in
    one turn, so that what they begin is decided together.
 3. The end of the stream makes its edge when it arrives, maybe together with data. So a socket whose peer has hung up
    stays ready, and its reader finds the end by reading.
 4. What a listener does is often answered at once: a process that was given a batch may have executed it by the time
    that the system comes back to us. So the task looks again, and goes through trio's loop, which costs far more than
    looking, only if there is nothing, or when it has woken `_BURST` sockets, or one that had more to say than it could
    hear at once (`give_way`): others want their turn, too.
 5. When more than `_BURST` sockets have something to say at once, they take turns, `_PASS` in each pass of trio's loop,
    and so do the addresses of their clients: a client waits for one socket of each other address, however many sockets
    those have. A task that could go on without waiting asks for such a turn with `yield_turn`, and what can be done
    later with `call_in_turn`. A model's process that has done its batch is heard between two of them (`keep_hearing`,
    `ahead`), and then what follows from it comes first: a model is not to wait while clients are refused. So it is
    between fewer sockets once a request of theirs was turned away (`Turn.turned_away_in`). While sockets wait for
    their turn (`crowded`), connections read little at a time: one that sends thousands of requests at
    once, or headers, is not to keep the others waiting until all of them are parsed.
 6. Before it sleeps, the task may poll for a while; `engine.polling` says when. It does not while another task, a
    deadline or a thread's call is due, and goes through trio's loop after each burst as ever. Between two looks it
    offers its core to other processes.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Awaitable, Callable, Iterator

import outcome
import trio

from ..engine.clock import Clock, SystemClock
from ..engine.fair_queue import FairQueue
from ..engine.polling import PollRecord
from .actor import Turn
from .offload import body_memory

_READ_BYTES = 65_536
_BURST = 16
_PASS = 8
"""In a pass of the loop. A task takes half a millisecond for a request, and others are to wait for 5 at most."""
_EDGES = getattr(select, "EPOLLIN", 0) | getattr(select, "EPOLLRDHUP", 0) | getattr(select, "EPOLLET", 0)
_HUNG_UP = getattr(select, "EPOLLRDHUP", 0) | getattr(select, "EPOLLHUP", 0) | getattr(select, "EPOLLERR", 0)


class Watch:
    """One socket's readiness; one task waits for it. This one leaves that to trio.

    Attributes:
        ready: there is something to read.
        listener: see rule 2; it must not raise.
        listens: the listener is called; it never is without an epoll.
    """

    __slots__ = ("_socket", "listener", "ready")
    listens = False

    def __init__(self, sock: socket.socket) -> None:
        self.ready = False
        self.listener: Callable[[], bool] | None = None
        self._socket = sock

    async def wait(self) -> None:
        """Wait until the socket can be read, or `wake` is called. May return too early, too."""
        await trio.lowlevel.wait_readable(self._socket)

    def wake(self) -> None:
        """Wake the task that waits; only a listener has to, so nothing here."""

    def drained(self) -> None:
        """A read came back short, or with nothing."""

    def close(self) -> None:
        """The socket is about to be closed, or handed to another owner."""


class Readiness:
    """Watches sockets.

    Args:
        start_soon: starts `keep_waking` when the first socket is to be watched; None if another task does.
        turn: in which listeners are called; None for one of its own.
        use_epoll: False leaves the waiting to trio.
        poll_s: seconds for which it may poll (rule 6).

    Attributes:
        turn: of the listeners.
        buffer: for reading into, between two checkpoints; what was read is copied out of it.
        crowded: sockets wait for their turn.
        memory: makes memory for so many bytes of a large body, not zeroed.
    """

    def __init__(
        self,
        start_soon: Callable[[Callable[[], Awaitable[None]]], None] | None = None,
        turn: Turn | None = None,
        *,
        use_epoll: bool = hasattr(select, "epoll"),
        poll_s: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        self.buffer = memoryview(bytearray(_READ_BYTES))
        self.crowded = False
        self.memory: Callable[[int], memoryview] = body_memory
        self.turn = turn or Turn()
        self._start_soon = start_soon
        self._gives_way = False
        self._polls = poll_s > 0
        self._after_client, self._after_process = PollRecord(poll_s), PollRecord(poll_s)
        self._last = self._after_client  # what has come last
        self._now_s = (clock or SystemClock()).now_s
        self._epoll = select.epoll() if use_epoll and start_soon is None else None
        self._processes: select.epoll | None = None  # has those that are heard ahead as well
        self._ahead: set[int] = set()
        self._opens = use_epoll and start_soon is not None
        self._watches: dict[int, _EpollWatch | Callable[[int], None]] = {}
        self._queue: FairQueue[Callable[[], None]] = FairQueue()  # rule 5
        self._yielding = 0  # tasks that go on in the next pass
        self._idle = trio.lowlevel.ParkingLot()  # of `_keep_granting`, when there is nothing to grant

    def watch(self, sock: socket.socket, address: str = "") -> Watch:
        """Begin to watch a non-blocking socket of a client's address."""
        self._open()
        if self._epoll is None:
            return Watch(sock)
        descriptor = sock.fileno()
        watch = self._watches[descriptor] = _EpollWatch(self, sock, address)
        self._epoll.register(descriptor, _EDGES)
        return watch

    async def keep_hearing(
        self, descriptor: int, hear: Callable[[], bool], *, often: bool = True, ahead: bool = False
    ) -> None:
        """Call `hear` whenever there is something to read, until it says False. It need not read all. What it raises is
        raised here. What has something to say not `often` is left to trio; what is heard `ahead` need not wait for
        clients that wait for their turn (rule 5)."""
        self._open()
        if self._epoll is None or not often:
            going_on = True
            while going_on:
                await trio.lowlevel.wait_readable(descriptor)
                with self.turn:
                    going_on = hear()
            return
        task = trio.lowlevel.current_task()

        def edge(_events: int) -> None:
            result = outcome.capture(hear)
            if isinstance(result, outcome.Value):
                if result.value:
                    return
                result = outcome.Value(None)
            self.forget(descriptor)
            trio.lowlevel.reschedule(task, result)

        def stop(_raise_cancel: object) -> trio.lowlevel.Abort:
            self.forget(descriptor)
            return trio.lowlevel.Abort.SUCCEEDED

        self._watches[descriptor] = edge
        self._epoll.register(descriptor, select.EPOLLIN)
        if ahead:
            if self._processes is None:
                self._processes = select.epoll()
            self._processes.register(descriptor, select.EPOLLIN)
            self._ahead.add(descriptor)
        try:
            await trio.lowlevel.wait_task_rescheduled(stop)
        finally:
            self.forget(descriptor)

    def forget(self, descriptor: int) -> None:
        """Stop watching."""
        if self._watches.pop(descriptor, None) is not None and self._epoll is not None:
            self._epoll.unregister(descriptor)
            if descriptor in self._ahead and self._processes is not None:
                self._ahead.remove(descriptor)
                self._processes.unregister(descriptor)

    def give_way(self) -> None:
        """Let other tasks have their turn before more is heard (rule 4)."""
        self._gives_way = True

    async def yield_turn(self, address: str) -> None:
        """Let others run before the calling task goes on, which works for a client of this address (rule 5)."""
        if self._epoll is None or (self._yielding < _PASS and not self._queue):
            self._yielding += 1
            try:
                await trio.lowlevel.checkpoint()
            finally:
                self._yielding -= 1
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
            its_turn = trio.Event()
            self._put(address, its_turn.set)
            await its_turn.wait()

    def call_in_turn(self, address: str, function: Callable[[], None]) -> None:
        """Call a function on behalf of a client of this address (rule 5); it must not raise."""
        if self._epoll is None:
            function()
        else:
            self._put(address, function)

    def _put(self, address: str, function: Callable[[], None]) -> None:
        self._queue.put(address, function)
        self.crowded = True
        self._idle.unpark_all()

    async def _keep_granting(self) -> None:
        """Give turns to what is queued, until cancelled (rule 5)."""
        while True:
            if self._queue:
                await trio.lowlevel.checkpoint()
            else:
                self.crowded = False
                await self._idle.park()
            left = _PASS
            while left and self._queue:
                with self.turn:
                    while left and self._queue:
                        left -= 1
                        self._queue.pop()()
                        if self._hear_processes():
                            break

    def _hear_processes(self) -> bool:
        """Whether one of them had something to say."""
        events = self._processes.poll(0) if self._processes is not None else []
        for descriptor, what in events:
            watch = self._watches.get(descriptor)
            if watch is not None and not isinstance(watch, _EpollWatch):
                watch(what)
        return bool(events)

    def _open(self) -> None:
        if self._opens and self._start_soon is not None:
            self._opens = False
            self._epoll = select.epoll()
            self._start_soon(self.keep_waking)

    async def keep_waking(self) -> None:
        """Wake tasks whose sockets can be read, until cancelled."""
        if self._epoll is None:
            return
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_granting)
                while True:
                    await trio.lowlevel.wait_readable(self._epoll.fileno())
                    while self._wake_burst(self._epoll):
                        await trio.lowlevel.checkpoint()
        finally:
            trio.lowlevel.notify_closing(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None
            if self._processes is not None:
                self._processes.close()
                self._processes = None

    def _wake_burst(self, epoll: select.epoll) -> bool:
        """Rules 4 to 6. Whether to come back after the others' turn, instead of sleeping."""
        woken = 0
        self._gives_way = False
        while woken < _BURST and not self._gives_way:
            events = epoll.poll(0) or self._poll(epoll)
            if not events:
                return False
            woken += len(events)
            crowded = len(events) > _BURST or self.crowded
            coming = iter(events)
            while self._wake(coming, crowded):
                pass
        return self._polls

    def _wake(self, events: Iterator[tuple[int, int]], crowded: bool) -> bool:
        """Rules 2 and 5, in one turn. Whether the others are for the next one."""
        watches, turn = self._watches, self.turn
        with turn:
            for descriptor, what in events:
                watch = watches.get(descriptor)
                if watch is None:
                    continue
                if not isinstance(watch, _EpollWatch):
                    self._last = self._after_process
                    watch(what)
                    continue
                self._last = self._after_client
                if crowded:
                    if not watch.queued_events:
                        self._put(watch.address, watch.have_turn)
                    watch.queued_events |= what
                else:
                    watch.edge(what)
                    if turn.turned_away_in == turn.number and self._hear_processes():
                        return True
        return False

    def _poll(self, epoll: select.epoll) -> list[tuple[int, int]]:
        """Rule 6. What has come; possibly nothing."""
        if not self._polls:
            return []
        record, turn, now_s = self._last, self.turn, self._now_s
        limit_s = record.poll_s()
        if not limit_s or _others_are_due(limit_s):
            return []
        events: list[tuple[int, int]] = []
        began_s = now = now_s()
        while not events and now < began_s + limit_s and not turn.called:
            os.sched_yield()
            events = epoll.poll(0)
            now = now_s()
        record.polled(bool(events) or turn.called, now - began_s)
        return events

    def __repr__(self) -> str:
        return f"<Readiness of {len(self._watches)} sockets>"


def _others_are_due(within_s: float) -> bool:
    """Whether trio has something else to do, or will have."""
    statistics = trio.lowlevel.current_statistics()
    return (
        statistics.tasks_runnable > 0
        or statistics.run_sync_soon_queue_size > 0
        or statistics.seconds_to_next_deadline <= within_s
    )


class _EpollWatch(Watch):
    __slots__ = ("_closed", "_descriptor", "_hung_up", "_readiness", "_task", "address", "queued_events")
    listens = True

    def __init__(self, readiness: Readiness, sock: socket.socket, address: str) -> None:
        super().__init__(sock)
        self.address = address
        self.queued_events = 0  # while it is queued (rule 5)
        self._readiness = readiness
        self._descriptor = sock.fileno()
        self._hung_up = False
        self._closed = False
        self._task: trio.lowlevel.Task | None = None

    def edge(self, events: int) -> None:
        """Something has come."""
        self.ready = True
        if events & _HUNG_UP:
            self._hung_up = True
        if self._task is not None and (self.listener is None or not self.listener()):
            self.wake()

    def have_turn(self) -> None:
        events, self.queued_events = self.queued_events, 0
        if not self._closed:
            self.edge(events)

    async def wait(self) -> None:
        if not self.ready:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._stop_waiting)

    def wake(self) -> None:
        task = self._task  # it may have been cancelled
        if task is not None:
            self._task = None
            trio.lowlevel.reschedule(task)

    def _stop_waiting(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def drained(self) -> None:
        self.ready = self._hung_up

    def close(self) -> None:
        self._closed = True
        self.listener = None  # which leads back here: a cycle left over would be work for the garbage collector
        self._readiness.forget(self._descriptor)
