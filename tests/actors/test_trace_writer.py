"""The trace writer: whole files, whatever happens to the disk, and nothing unbounded."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from traces import elements

from trireme.actors.tracing import TraceWriter
from trireme.engine.clock import SystemClock
from trireme.engine.tracing import Trace, TraceConfig, TraceLevel, Tracer
from trireme.engine.tracing.files import TraceWrite, write_traces


def traces(count: int, **fields: object) -> tuple[Trace, ...]:
    writer = TraceWriter("unused")
    tracer = Tracer(TraceConfig(level=TraceLevel.TIMESTAMPS, rate=1, file="t"), SystemClock(), writer)
    taken = []
    for _ in range(count):
        trace = tracer.begin("m")
        assert trace is not None
        trace.note_subject("m", 1, "r" * 100)
        taken.append(trace)
    return tuple(taken)


def test_a_file_that_is_extended_is_one_array_all_the_time(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text("what was there before")
    for size, extend in ((2, False), (1, True), (3, True)):
        write_traces(TraceWrite(str(path), traces(size), extend))
    assert [element["id"] for element in elements(path)] == [1, 2, 1, 1, 2, 3]
    assert b"\n" not in path.read_bytes()


@pytest.mark.parametrize("there", [None, b"", b"[]", b"not ours"])
def test_what_cannot_be_extended_is_begun_anew(tmp_path: Path, there: bytes | None) -> None:
    path = tmp_path / "t"
    if there is not None:
        path.write_bytes(there)
    write_traces(TraceWrite(str(path), traces(1), True))
    assert len(elements(path)) == 1


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process can grow beyond 1,000 bytes; not even one that the test run itself is written to."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    path, other = tmp_path / "t", tmp_path / "u"
    write_traces(TraceWrite(str(path), traces(2), False))
    before = path.read_bytes()
    with full_disk():
        with pytest.raises(OSError, match="File too large"):
            write_traces(TraceWrite(str(path), traces(20), True))
        with pytest.raises(OSError, match="File too large"):
            write_traces(TraceWrite(str(other), traces(20), False))
    assert path.read_bytes() == before
    assert other.read_bytes() == b""


async def test_what_comes_faster_than_it_is_written_is_dropped_and_counted(tmp_path: Path) -> None:
    writer = TraceWriter(str(tmp_path / "t"), max_unwritten=3)
    config = TraceConfig(level=TraceLevel.TIMESTAMPS, rate=1, file="t", log_frequency=1)
    tracer = Tracer(config, SystemClock(), writer)
    for _ in range(5):
        trace = tracer.begin("m")
        assert trace is not None
        trace.note_subject("m", 1, "")
        trace.leave()
    assert writer.dropped == 2
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        tracer.close()
        await writer.close()
    assert (writer.taken, writer.waiting, writer.failed) == (3, 0, 0)
    assert [elements(tmp_path / f"t.{index}")[0]["id"] for index in range(3)] == [1, 2, 3]


async def test_what_cannot_be_written_for_whatever_reason_is_lost_and_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And the next is written."""
    errors = [RuntimeError("can't start new thread"), RuntimeError("can't start new thread"), ValueError("odd")]

    def write(what: TraceWrite) -> None:
        if errors:
            raise errors.pop(0)
        write_traces(what)

    monkeypatch.setattr("trireme.actors.tracing.write_traces", write)
    writer = TraceWriter(str(tmp_path / "t"))
    tracer = Tracer(TraceConfig(level=TraceLevel.TIMESTAMPS, rate=1, file="t", log_frequency=1), SystemClock(), writer)
    for _ in range(4):
        trace = tracer.begin("m")
        assert trace is not None
        trace.leave()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        await writer.close()
    assert (writer.taken, writer.waiting, writer.failed) == (1, 0, 3)
    assert caplog.messages == [
        f"cannot write traces to {tmp_path}/t.0: can't start new thread",
        f"cannot write traces to {tmp_path}/t.2: odd",
    ]
