"""Mapped segments: what a client cuts off is noted, and costs nobody's life."""

from __future__ import annotations

import gc
import mmap
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from segments import Segment, open_segments

from trireme.engine.memory import mapping
from trireme.engine.memory.mapping import FaultGuard, Mapping, fault_guard

PAGE = mmap.PAGESIZE
DATA = bytes(range(1, 251)) * 200  # 50,000 bytes: 12 pages and a part of one, none of which is zero


@pytest.fixture
def segment() -> Iterator[Segment]:
    with open_segments() as make:
        yield make(DATA)


@pytest.fixture
def guard() -> FaultGuard:
    made = fault_guard()
    assert made is not None
    return made


def mapped(guard: FaultGuard, segment: Segment, offset: int = 0, nbytes: int = len(DATA)) -> Mapping:
    with segment.path.open("r+b") as file:
        return guard.map(file.fileno(), offset, nbytes)


def in_thread(act: Callable[[], None]) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


def at_once(act: Callable[[], None]) -> None:
    act()


def test_a_process_has_one_guard(guard: FaultGuard) -> None:
    assert fault_guard() is guard


def test_threads_that_ask_at_once_get_the_same_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """`lru_cache` alone would have each of them make one."""
    others: list[threading.Thread] = []
    made: list[object] = []
    given: list[object] = []

    def ask() -> None:
        given.append(mapping.fault_guard())

    class Guard:
        def __init__(self) -> None:
            assert mapping._making.locked()
            made.append(self)
            if len(made) == 1:
                others.append(threading.Thread(target=ask))
                others[0].start()

    monkeypatch.setattr(mapping, "FaultGuard", Guard)
    monkeypatch.setattr(mapping, "_make_guard", lru_cache(maxsize=1)(mapping._make_guard.__wrapped__))
    ask()
    others[0].join()
    assert made == [given[0]]
    assert given[0] is given[1]


def test_a_mapping_is_the_segment(guard: FaultGuard, segment: Segment) -> None:
    mapping = mapped(guard, segment)
    assert bytes(mapping.array) == DATA
    mapping.array[:3] = 7
    segment.put(b"\x08", 3)
    assert segment.data[:4] == b"\x07\x07\x07\x08" == bytes(mapping.array[:4])
    assert mapping.intact
    assert bytes(mapped(guard, segment, PAGE, 10).array) == DATA[PAGE : PAGE + 10]


@pytest.mark.parametrize("run", [at_once, in_thread])
def test_what_was_cut_off_is_zeros_when_it_is_read(
    guard: FaultGuard, segment: Segment, run: Callable[[Callable[[], None]], None]
) -> None:
    """Up to the page in which the segment ends it is what it was."""
    mapping = mapped(guard, segment)
    copy = np.full(len(DATA), 9, np.uint8)
    segment.cut(2 * PAGE + 5)

    def read() -> None:
        copy[:] = mapping.array

    run(read)
    assert bytes(copy) == DATA[: 2 * PAGE + 5] + bytes(len(DATA) - 2 * PAGE - 5)
    assert (mapping.intact, mapping.intact_bytes) == (False, 3 * PAGE)


@pytest.mark.parametrize("run", [at_once, in_thread])
def test_what_is_written_beyond_the_segment_goes_nowhere(
    guard: FaultGuard, segment: Segment, run: Callable[[Callable[[], None]], None]
) -> None:
    mapping = mapped(guard, segment)
    segment.cut(PAGE)

    def write() -> None:
        mapping.array[:] = 5

    run(write)
    assert mapping.intact_bytes == PAGE
    assert segment.data == b"\x05" * PAGE
    segment.cut(len(DATA))
    assert bytes(mapped(guard, segment).array[PAGE:]) == bytes(len(DATA) - PAGE)


def test_a_mapping_is_lost_once(guard: FaultGuard, segment: Segment) -> None:
    """Not again for each page; and less and less of it is left."""
    mapping = mapped(guard, segment)
    other = mapped(guard, segment)
    segment.cut(8 * PAGE)
    assert mapping.array[-1] == 0
    assert mapping.intact_bytes == 12 * PAGE  # where it was touched
    segment.cut(0)
    assert mapping.array[PAGE] == 0
    assert not mapping.array[PAGE:].any()
    assert mapping.intact_bytes == PAGE
    assert other.intact


def test_it_is_unmapped_when_nothing_refers_to_it(guard: FaultGuard, segment: Segment) -> None:
    def is_mapped() -> bool:
        gc.collect()
        return segment.key in Path("/proc/self/maps").read_text()

    array = mapped(guard, segment).array[PAGE:]
    assert is_mapped()
    assert bytes(array) == DATA[PAGE:]
    del array
    assert not is_mapped()


def test_a_segment_that_cannot_be_mapped(guard: FaultGuard, segment: Segment) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        mapped(guard, segment, 8)


OTHER_FAULT = """
import mmap, os, sys
from trireme.engine.memory.mapping import fault_guard
guard = fault_guard()
descriptor = os.open(sys.argv[1], os.O_RDWR)
known = guard.map(descriptor, 0, 10)
unknown = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
os.ftruncate(descriptor, 0)
assert known.array[0] == 0
print("on", flush=True)
unknown[0]
"""


def test_a_fault_elsewhere_ends_the_process_as_ever(segment: Segment) -> None:
    command = [sys.executable, "-c", OTHER_FAULT, str(segment.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("on\n", -signal.SIGBUS)


BEGIN = """
import ctypes, faulthandler, mmap, os, signal, sys
from trireme.engine.memory.mapping import fault_guard
from trireme.engine.memory.regions import Region
guard = fault_guard()
descriptor = os.open(sys.argv[1], os.O_RDWR)
size = os.fstat(descriptor).st_size
known = guard.map(descriptor, 0, size)
unknown = mmap.mmap(descriptor, size)


def lose(array):
    os.ftruncate(descriptor, 0)
    assert not array[-1]
    print("lost", flush=True)
"""


def run_script(segment: Segment, script: str) -> tuple[str, int, bool]:
    """What a process has printed, how it has ended, and whether it has said that it met a fault."""
    command = [sys.executable, "-c", BEGIN + script, str(segment.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout, done.returncode, "Fatal Python error: Bus error" in done.stderr


def test_a_handler_that_comes_in_front_does_not_end_the_process(segment: Segment) -> None:
    """It says what it has to say, and leaves the rest to the guard."""
    assert run_script(segment, "faulthandler.enable(); lose(known.array); faulthandler.disable()") == (
        "lost\n",
        0,
        True,
    )


def test_a_handler_that_comes_in_front_is_put_behind_before_a_region_is_used(segment: Segment) -> None:
    script = """
region = Region("A", "/a", 0, size, descriptor, size)
assert bytes(region.read(0, size)) == os.pread(descriptor, size, 0)
faulthandler.enable()
lose(region.lend(0, size).array)
"""
    segment.cut(0)
    segment.put(DATA * 2, 0)
    assert run_script(segment, script) == ("lost\n", 0, False)


@pytest.mark.parametrize(
    "handlers",
    [
        "faulthandler.enable(); guard.keep()",
        "faulthandler.enable()",
        "faulthandler.enable(); guard.keep(); faulthandler.disable(); faulthandler.enable(); guard.keep()",
    ],
)
def test_a_fault_elsewhere_is_told_by_the_handler_behind_and_ends_the_process(segment: Segment, handlers: str) -> None:
    script = f"{handlers}; lose(known.array); faulthandler.enable(); guard.keep(); unknown[0]"
    assert run_script(segment, script) == ("lost\n", -signal.SIGBUS, True)


def test_a_handler_behind_that_does_nothing_ends_the_process_all_the_same(segment: Segment) -> None:
    script = "faulthandler.enable(); guard.keep(); faulthandler.disable(); guard.keep(); lose(known.array); unknown[0]"
    assert run_script(segment, script) == ("lost\n", -signal.SIGBUS, False)


def test_a_signal_that_is_sent_ends_the_process(segment: Segment) -> None:
    assert run_script(segment, "os.kill(os.getpid(), signal.SIGBUS); lose(known.array)") == ("", -signal.SIGBUS, False)
