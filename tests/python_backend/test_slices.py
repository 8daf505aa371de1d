"""Time slices of models' processes."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from collections.abc import Iterator

import pytest

from trireme.python_backend import slices
from trireme.python_backend.slices import shorten_slices, slice_us


@pytest.fixture
def process() -> Iterator[int]:
    """A process that waits."""
    popen = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    yield popen.pid
    popen.communicate()


def test_a_process_gets_short_slices(process: int) -> None:
    if not slice_us(process):
        pytest.skip("this kernel does not tell slices")
    usual = slice_us(0)
    assert shorten_slices(process, 250)
    assert slice_us(process) == 250
    assert slice_us(0) == usual


def test_where_the_kernel_refuses_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    assert not shorten_slices(ended.pid, 100)
    assert not slice_us(ended.pid)
    monkeypatch.setattr(platform, "machine", lambda: "vax")
    assert not shorten_slices(0, 100)
    monkeypatch.undo()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not shorten_slices(0, 100)


def test_other_policies_than_the_usual_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "_attributes", lambda pid: [48, 1, 0, 0, 50, 0, 0, 0])  # SCHED_FIFO
    assert not shorten_slices(0, 100)
