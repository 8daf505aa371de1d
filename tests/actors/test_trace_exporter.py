"""The trace exporter against a real receiver: well, down, slow, and answering 503."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest
import trio
from otlp_receiver import Receiver, receiving

from trireme.actors.tracing import TraceExporter
from trireme.engine.clock import SystemClock
from trireme.engine.errors import UnavailableError
from trireme.engine.tracing import Activity, TraceConfig, TraceLevel, TraceMode, Tracer
from trireme.engine.tracing.settings import ExportOptions
from trireme.engine.tracing.spans import SpanExport

T = TypeVar("T")

SOON_MS = 20
NEVER_MS = 3_600_000


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


@asynccontextmanager
async def exporting(url: str, delay_ms: int = SOON_MS, size: int = 2048, batch: int = 512) -> AsyncIterator[Exporting]:
    options = ExportOptions(url, (("service.name", "s"), ("a", "b")), size, delay_ms, batch)
    exporter = TraceExporter(options, SystemClock())
    tracer = Tracer(TraceConfig(TraceMode.OPENTELEMETRY, TraceLevel.TIMESTAMPS, 1), SystemClock(), exporter)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exporter.run)
        yield Exporting(exporter, tracer)
        nursery.cancel_scope.cancel()


class Exporting:
    """An exporter at work, and what makes spans for it."""

    def __init__(self, exporter: TraceExporter, tracer: Tracer) -> None:
        self.exporter = exporter
        self.tracer = tracer

    def trace(self, count: int = 1) -> None:
        """Each of one span."""
        for _ in range(count):
            trace = self.tracer.begin("m")
            assert trace is not None
            trace.note(Activity.HTTP_RECV_START, SystemClock.now_ns())
            trace.leave()


async def in_thread(function, *arguments):
    return await trio.to_thread.run_sync(function, *arguments)


async def test_spans_arrive_when_the_schedule_says(receiver: Receiver) -> None:
    async with exporting(receiver.url) as it:
        it.trace(2)
        spans = await in_thread(receiver.spans)
        assert [span.name for span in spans] == ["InferRequest"] * 2
        assert spans[0].trace_id != spans[1].trace_id
        assert {(span.kind, span.scope, span.parent_id) for span in spans} == {(2, "triton-server", "")}
        assert spans[0].resource["service.name"] == "s"
        assert spans[0].resource["a"] == "b"
        assert abs(spans[0].start_ns - SystemClock.wall_ms() * 1_000_000) < 60e9


async def test_a_full_batch_does_not_wait_for_the_schedule(receiver: Receiver) -> None:
    async with exporting(receiver.url, NEVER_MS, batch=3) as it:
        it.trace(2)
        await trio.testing.wait_all_tasks_blocked()
        assert receiver.attempts == 0
        it.trace(2)
        assert len(await in_thread(receiver.spans)) == 3
        assert len(await in_thread(receiver.spans)) == 1


async def test_a_url_without_a_scheme_is_http(receiver: Receiver) -> None:
    """``localhost:4318/v1/traces``, as Triton's documentation writes it."""
    async with exporting(receiver.url.removeprefix("http://"), NEVER_MS, batch=1) as it:
        it.trace()
        assert len(await in_thread(receiver.spans)) == 1


async def test_closing_exports_what_waits(receiver: Receiver) -> None:
    async with exporting(receiver.url, NEVER_MS, batch=2) as it:
        it.trace(1)
        await it.exporter.close()
        assert len(await in_thread(receiver.spans)) == 1
        assert it.exporter.taken == 1


async def test_while_a_collector_is_slow_spans_are_dropped_at_the_bound_and_counted(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.gate.clear()
    async with exporting(receiver.url, NEVER_MS, size=4, batch=2) as it:
        it.trace(2)
        await in_thread(receiver.asked.acquire)
        it.trace(7)
        assert it.exporter.dropped == 3
        assert it.exporter.waiting == 4
        receiver.gate.set()
        await it.exporter.close()
        assert (it.exporter.taken, it.exporter.failed, it.exporter.dropped) == (6, 0, 3)
    ours = [record.getMessage() for record in caplog.records if record.name == "trireme.tracing"]
    assert ours == [f"spans are dropped: they come faster than {receiver.url} takes them", "3 spans were dropped"]


async def test_what_is_refused_for_good_is_lost_and_the_next_arrives(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answers = [400]
    async with exporting(receiver.url, NEVER_MS, batch=2) as it:
        it.trace(2)
        await in_thread(receiver.asked.acquire)
        it.trace(2)
        assert len(await in_thread(receiver.spans)) == 2
        await it.exporter.close()
        assert (it.exporter.taken, it.exporter.failed) == (2, 2)
    assert f"2 spans could not be exported to {receiver.url}" in caplog.messages


async def test_a_collector_that_is_overloaded_is_asked_again(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """503 is answered by the library's patience, not by a loss."""
    caplog.set_level(logging.CRITICAL, "opentelemetry")
    receiver.answers = [503]
    async with exporting(receiver.url) as it:
        it.trace(1)
        assert len(await in_thread(receiver.spans)) == 1
    assert receiver.attempts == 2


async def test_a_machine_without_threads_costs_the_spans_only(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(exporter: SpanExport, batch: object) -> bool:
        raise RuntimeError("can't start new thread")

    async with exporting(receiver.url) as it:
        with monkeypatch.context() as patch:
            patch.setattr(SpanExport, "send", fail)
            it.trace(1)
            with trio.fail_after(20):
                while not it.exporter.failed:  # noqa: ASYNC110 - it happens on another thread
                    await trio.sleep(0.002)
        it.trace(1)
        assert len(await in_thread(receiver.spans)) == 1
    assert "cannot export spans: can't start new thread" in caplog.text


async def test_a_collector_that_is_down_costs_nobody_anything(caplog: pytest.LogCaptureFixture) -> None:
    """Not even the end of the server: what is under way is given up when the time is over."""
    caplog.set_level(logging.CRITICAL, "opentelemetry")
    with receiving() as receiver:
        url = receiver.url
    async with exporting(url, NEVER_MS, size=5, batch=2) as it:
        it.trace(20)
        with trio.move_on_after(0.2) as limit:
            await it.exporter.close()
        assert limit.cancelled_caught
        assert it.exporter.taken == 0


@pytest.mark.parametrize("package", ["opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"])
def test_without_the_library_the_error_names_the_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnavailableError) as refused:
        TraceExporter(ExportOptions(), SystemClock())
    assert refused.value.message.startswith(
        f"the trace mode 'opentelemetry' needs the package {package}: pip install trireme-server[tracing] ("
    )
