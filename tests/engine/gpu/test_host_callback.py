"""Functions that a CUDA stream calls, against a stand-in for the driver; the bells are real."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_cuda import ILLEGAL_ADDRESS, SUCCESS, FakeCuda

from trireme.engine.errors import UnavailableError
from trireme.engine.gpu.host_callback import SWITCH_INTERVAL_S, CallRefusedError, HostCallbacks

PATIENCE_S = 10


class Streams:
    """Streams of a driver, which do something only when told to."""

    def __init__(self, driver: FakeCuda) -> None:
        self.waiting: dict[int, deque[Callable[[], None]]] = {}
        self.statuses: deque[int] = deque()
        self._driver = driver

    def make(self, handle: int) -> int:
        self.waiting[handle] = deque()
        self._driver.streams[handle] = lambda work: self._enqueue(handle, work)
        return handle

    def _enqueue(self, handle: int, work: Callable[[], None]) -> int:
        status = self.statuses.popleft() if self.statuses else SUCCESS
        if status == SUCCESS:
            self.waiting[handle].append(work)
        return status

    def go_on(self, handle: int) -> None:
        while self.waiting[handle]:
            self.waiting[handle].popleft()()


@pytest.fixture
def driver() -> FakeCuda:
    return FakeCuda()


@pytest.fixture
def streams(driver: FakeCuda) -> Streams:
    return Streams(driver)


@pytest.fixture
def callbacks(driver: FakeCuda) -> Iterator[HostCallbacks]:
    callbacks = HostCallbacks(driver)
    yield callbacks
    callbacks.close()


def test_a_function_is_called_when_its_stream_has_come_so_far_whatever_others_do(
    callbacks: HostCallbacks, streams: Streams
) -> None:
    first, second = streams.make(11), streams.make(12)
    called: list[str] = []
    done = {name: threading.Event() for name in ("one", "two", "three")}

    def note(name: str) -> Callable[[], None]:
        return lambda: (called.append(name), done[name].set())[0]

    callbacks.call(first, note("one"))
    callbacks.call(second, note("two"))
    callbacks.call(second, note("three"))
    streams.go_on(second)
    assert done["three"].wait(PATIENCE_S)
    assert called == ["two", "three"], "the first stream has not come so far"
    streams.go_on(first)
    assert done["one"].wait(PATIENCE_S)


class RingingLibc:
    """The C library, on which something happens in the midst of a look at the bells: after the first that is silent."""

    def __init__(self, libc: Any, happen: Callable[[], None]) -> None:
        self._libc = libc
        self._happen = [happen]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._libc, name)

    def sem_trywait(self, bell: Any) -> int:
        status = self._libc.sem_trywait(bell)
        if status and self._happen:
            self._happen.pop()()
        return status


def test_functions_of_one_stream_are_called_in_its_order(callbacks: HostCallbacks, streams: Streams) -> None:
    """Also if it comes so far while the thread looks which bells have rung."""
    stream, other = streams.make(11), streams.make(12)
    callbacks._libc = RingingLibc(callbacks._libc, lambda: streams.go_on(stream))  # type: ignore[assignment]
    called: list[str] = []
    done = threading.Event()
    callbacks.call(stream, lambda: called.append("first"))
    callbacks.call(stream, lambda: (called.append("second"), done.set())[1])
    callbacks.call(other, lambda: None)
    streams.go_on(other)
    assert done.wait(PATIENCE_S)
    assert called == ["first", "second"]


def test_it_is_called_on_another_thread_than_the_driver_s(callbacks: HostCallbacks, streams: Streams) -> None:
    stream = streams.make(11)
    threads: list[threading.Thread] = []
    done = threading.Event()
    callbacks.call(stream, lambda: (threads.append(threading.current_thread()), done.set())[1])
    streams.go_on(stream)
    assert done.wait(PATIENCE_S)
    assert threads != [threading.current_thread()], "which is where the stand-in calls"


def test_a_function_lives_until_it_was_called_and_no_longer(callbacks: HostCallbacks, streams: Streams) -> None:
    stream = streams.make(11)
    done = threading.Event()

    class Function:
        def __call__(self) -> None:
            done.set()

    function = Function()
    alive = weakref.ref(function)
    callbacks.call(stream, function)
    del function
    gc.collect()
    assert alive() is not None
    streams.go_on(stream)
    assert done.wait(PATIENCE_S)
    again = threading.Event()
    callbacks.call(stream, again.set)  # when this has been called, the thread has let go of the last one
    streams.go_on(stream)
    assert again.wait(PATIENCE_S)
    assert alive() is None


def test_threads_change_soon_where_a_thread_waits_for_streams(callbacks: HostCallbacks, streams: Streams) -> None:
    """Or a batch that has landed would wait for 5 ms of another thread's computation."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    try:
        stream, called = streams.make(11), threading.Event()
        callbacks.call(stream, called.set)
        streams.go_on(stream)
        assert called.wait(PATIENCE_S)
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
    finally:
        sys.setswitchinterval(before)


def test_what_it_raises_is_logged_and_the_next_one_is_called(
    callbacks: HostCallbacks, streams: Streams, caplog: pytest.LogCaptureFixture
) -> None:
    stream = streams.make(11)
    done = threading.Event()

    def fail() -> None:
        raise RuntimeError("nobody home")

    callbacks.call(stream, fail)
    callbacks.call(stream, done.set)
    with caplog.at_level(logging.ERROR):
        streams.go_on(stream)
        assert done.wait(PATIENCE_S)
    assert "nobody home" in caplog.text


@pytest.mark.parametrize("statuses", [[ILLEGAL_ADDRESS], [SUCCESS, ILLEGAL_ADDRESS]])
def test_a_refusal_tells_the_driver_s_error_and_the_function_is_never_called(
    callbacks: HostCallbacks, streams: Streams, statuses: list[int]
) -> None:
    stream = streams.make(11)
    streams.statuses.extend(statuses)
    called: list[int] = []
    refusal = r"cuLaunchHostFunc: an illegal memory access was encountered \(700\)"
    with pytest.raises(CallRefusedError, match=refusal) as caught:
        callbacks.call(stream, lambda: called.append(1))
    assert caught.value.status == ILLEGAL_ADDRESS
    done = threading.Event()
    callbacks.call(stream, done.set)
    streams.go_on(stream)
    assert done.wait(PATIENCE_S)
    assert called == []


def test_the_thread_ends_when_all_is_closed_and_nothing_is_in_flight(driver: FakeCuda, streams: Streams) -> None:
    """What is in flight is answered first: the driver writes to the memory of its bells until then."""
    stream = streams.make(11)
    callbacks = HostCallbacks(driver)
    done = threading.Event()
    callbacks.call(stream, done.set)
    thread = callbacks._thread
    assert thread is not None
    callbacks.close()
    with pytest.raises(UnavailableError, match="the server has stopped"):
        callbacks.call(stream, lambda: None)
    assert thread.is_alive()
    streams.go_on(stream)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert done.is_set()


@pytest.mark.parametrize("used", [False, True])
def test_it_can_be_closed_at_any_time_and_twice(driver: FakeCuda, streams: Streams, used: bool) -> None:
    stream = streams.make(11)
    callbacks = HostCallbacks(driver)
    if used:
        callbacks.call(stream, lambda: None)
        streams.go_on(stream)
    callbacks.close()
    callbacks.close()
    if callbacks._thread is not None:
        callbacks._thread.join(PATIENCE_S)
        assert not callbacks._thread.is_alive()


def test_an_unknown_stream_is_refused(callbacks: HostCallbacks) -> None:
    with pytest.raises(CallRefusedError, match="invalid resource handle"):
        callbacks.call(99, lambda: None)
