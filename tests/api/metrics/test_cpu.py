"""Readings of the machine (docs/reference/metrics.md#gpu-and-cpu-families)."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace

import psutil
import pytest

from trireme.api.metrics.host import CpuMeter
from trireme.engine.metrics.families import CpuReading


def test_everything_is_zero_before_the_first_reading() -> None:
    assert CpuMeter().latest == CpuReading(0.0, 0, 0)


def test_a_reading_covers_the_time_since_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ("user", "nice", "system", "irq", "softirq", "steal", "idle", "iowait", "guest")
    readings = iter(
        [
            dict.fromkeys(kinds, 100.0),
            dict.fromkeys(kinds, 101.0) | {"idle": 110.0, "iowait": 108.0},
            dict.fromkeys(kinds, 101.0) | {"idle": 110.0, "iowait": 108.0},
        ]
    )
    monkeypatch.setattr(psutil, "cpu_times", lambda: SimpleNamespace(**next(readings)))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=1000, available=400))
    meter = CpuMeter()
    assert meter.read() == CpuReading(6 / 24, 1000, 600)
    assert meter.latest == CpuReading(6 / 24, 1000, 600)
    assert meter.read().utilization == 0.0, "no time has passed"


def test_a_machine_that_cannot_be_read_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients may have used up the descriptors; the latest reading stays."""

    def full() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/proc/stat")

    meter = CpuMeter()
    first = meter.read()
    with monkeypatch.context() as patch:
        patch.setattr(psutil, "cpu_times", full)
        assert meter.read() == meter.read() == first
        assert caplog.messages == ["unable to read how busy the CPUs are: [Errno 24] Too many open files: '/proc/stat'"]
    meter.read()
    monkeypatch.setattr(psutil, "virtual_memory", full)
    meter.read()
    assert len(caplog.messages) == 2


def test_this_machine_can_be_read() -> None:
    reading = CpuMeter().read()
    assert 0.0 <= reading.utilization <= 1.0
    assert 0 < reading.used_bytes < reading.total_bytes
