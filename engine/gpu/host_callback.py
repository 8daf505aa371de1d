"""Functions that are called when a CUDA stream has come so far, through the driver's ``cuLaunchHostFunc``.

What the driver calls is no Python: it is the C library's ``sem_post``, which rings a bell, and a thread of ours that
waits for bells calls the function. One such thread serves all streams of a `HostCallbacks`, and it does not know of the
GPU at all. Python in the driver's thread would cost more than that one hop:

* The stream goes on only when the function has returned. It would wait for the interpreter's lock, and with it the
  copies of the next batch.
* A thread that calls CUDA and holds the lock while CUDA waits for the stream (a library that frees memory, say) would
  wait for ever: the stream for the lock, the holder of the lock for the stream.
* A function that the driver calls must not call CUDA. Python's cyclic garbage collector runs wherever it likes, and may
  find a tensor or an event there.

Rules:
 1. A function is held from `call` until it has been called, and so is the memory that the driver writes to. On a device
    that has failed that is for ever, which is a few words for each batch in flight.
 2. Two bells are rung for each call: the call's own, which tells what has happened, and the common one, which wakes the
    thread. So it does not matter in which order streams come so far. Functions of one stream are called in its order.
 3. What a function raises is logged, and goes no further.
 4. Once closed, nothing new is called; the thread, and with it the memory of rule 1, goes when the driver has rung all
    that it still owes.
 5. Where there is such a thread, the interpreter changes threads after at most `SWITCH_INTERVAL_S`, not after the usual
    5 ms: so long a busy thread would keep a landed batch waiting. It stays so for the process.

Written after the driver's reference and tested against a stand-in for it; no GPU has seen it yet.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import FailureReason, InternalError, UnavailableError
from ..memory.cuda import LIBRARY, error_text
from .device import SickDeviceError

_log = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0005

_SEMAPHORE_WORDS = 8  # glibc and musl take 32 bytes


class CallRefusedError(InternalError):
    """The driver did not take a function. Whether the device has failed, the device has to say.

    Attributes:
        status: CUDA's error number.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message, reason=FailureReason.BACKEND)
        self.status = status


@dataclass(slots=True, eq=False)
class _Call:
    """A function, and the bell that says that its time has come."""

    bell: Any
    function: Callable[[], None]


class HostCallbacks:
    """Calls functions when streams have come so far.

    Args:
        driver: ``libcuda``, initialised, or what behaves like it.
    """

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._libc = ctypes.CDLL(None)
        self._ring = ctypes.cast(self._libc.sem_post, ctypes.c_void_p)
        self._common = self._bell()
        self._lock = threading.Lock()
        self._pending: list[_Call] = []
        self._idle: list[Any] = []
        self._thread: threading.Thread | None = None
        self._owed = 0  # rings of the common bell
        self._closed = False

    def call(self, stream: int, function: Callable[[], None]) -> None:
        """Call `function`, on a thread of ours, when all that is in a stream by now has been done.

        Args:
            stream: its handle (``cudaStream_t``); its device is current.

        Raises:
            CallRefusedError: the driver refuses; the function is not called.
            UnavailableError: closed (rule 4).
        """
        with self._lock:
            if self._closed:
                raise UnavailableError("the server has stopped, and asks nothing more of its GPUs")
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="GPU callbacks", daemon=True)
                self._thread.start()
            call = _Call(self._idle.pop() if self._idle else self._bell(), function)
            self._pending.append(call)
            self._owed += 1
        for bell in (call.bell, self._common):
            status = self._driver.cuLaunchHostFunc(
                ctypes.c_void_p(stream), self._ring, ctypes.c_void_p(ctypes.addressof(bell))
            )
            if status:
                call.function = lambda: None  # rule 1: the bell may ring yet
                with self._lock:
                    self._owed -= 1
                raise CallRefusedError(status, f"cuLaunchHostFunc: {error_text(self._driver, status)}")

    def close(self) -> None:
        """No more calls will be made (rule 4). Does not wait."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._owed += 1
        self._libc.sem_post(ctypes.byref(self._common))

    def _bell(self) -> Any:
        bell = (ctypes.c_uint64 * _SEMAPHORE_WORDS)()
        self._libc.sem_init(ctypes.byref(bell), 0, 0)
        return bell

    def _serve(self) -> None:
        """The thread. ctypes lets go of the interpreter's lock while it waits, and it gets it back soon (rule 5)."""
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        while True:
            with self._lock:
                if self._closed and not self._owed and not self._pending:
                    return
            if self._libc.sem_wait(ctypes.byref(self._common)) == 0:
                self._answer()

    def _answer(self) -> None:
        with self._lock:
            self._owed -= 1
            # The latest first, and called in order: of one stream, whatever stands before one that has rung, has too.
            rung = [call for call in reversed(self._pending) if self._libc.sem_trywait(ctypes.byref(call.bell)) == 0]
            rung.reverse()
            for call in rung:
                self._pending.remove(call)
                self._idle.append(call.bell)
        for call in rung:
            try:
                call.function()
            except Exception:  # noqa: BLE001 - the boundary to those that wait: the others wait as well
                _log.exception("a function that waited for a GPU failed")


def load_driver() -> Any:
    """The machine's driver library.

    Raises:
        SickDeviceError: there is none, though a framework has found a GPU.
    """
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise SickDeviceError(f"the driver's library cannot be loaded: {error}") from error
