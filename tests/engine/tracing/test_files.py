"""Which traces go to which file, and what the files look like (docs/reference/traces.md#trace-files)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from trireme.engine.clock import SystemClock
from trireme.engine.datatypes import BF16, BOOL, BYTES, FP16, FP32, FP64, INT64, UINT8, DataType
from trireme.engine.tensor import Tensor
from trireme.engine.tracing import Activity, Trace, TraceConfig, TraceLevel, Tracer, files
from trireme.engine.tracing.files import TraceFiles, TraceWrite, format_traces
from trireme.engine.tracing.record import BatchNote, GenerationNote
from trireme.engine.tracing.settings import TraceSetting


class Filing:
    """A sink that notes what is to be written: file, ids, and whether they are added."""

    def __init__(self) -> None:
        self.files = TraceFiles("t")
        self.writes: list[tuple[str, list[int], bool]] = []

    def collect(self, trace: Trace) -> None:
        self.note(self.files.collect(trace))

    def retire(self, setting: TraceSetting) -> None:
        self.note(self.files.retire(setting))

    def note(self, write: TraceWrite | None) -> None:
        if write is not None:
            self.writes.append((write.path, [trace.id for trace in write.traces], write.extend))


def filing(**fields: Any) -> tuple[Filing, Tracer]:
    sink = Filing()
    return sink, Tracer(TraceConfig(level=TraceLevel.TIMESTAMPS, rate=1, file="t", **fields), SystemClock(), sink)


def take(tracer: Tracer, requests: int = 1) -> None:
    for _ in range(requests):
        trace = tracer.begin("m")
        if trace is not None:
            trace.leave()


def test_without_a_log_frequency_traces_wait_until_the_setting_is_replaced_and_share_one_file() -> None:
    sink, tracer = filing()
    take(tracer, 2)
    assert sink.writes == []
    tracer.change(rate=1)
    take(tracer)
    tracer.change(rate=1)
    tracer.change(rate=1)
    assert sink.writes == [("t", [1, 2], False), ("t", [3], True)]


def test_with_a_log_frequency_each_so_many_make_a_file_and_the_rest_the_last_one() -> None:
    sink, tracer = filing(log_frequency=2)
    take(tracer, 5)
    assert sink.writes == [("t.0", [1, 2], False), ("t.1", [3, 4], False)]
    tracer.close()
    assert sink.writes[2:] == [("t.2", [5], False)]


@pytest.mark.parametrize("log_frequency", [0, 5])
def test_when_the_count_is_used_up_what_waits_makes_a_file(log_frequency: int) -> None:
    sink, tracer = filing(log_frequency=log_frequency)
    take(tracer)
    tracer.change(count=2)
    take(tracer, 4)
    first = "t" if log_frequency == 0 else "t.0"
    assert sink.writes == [(first, [1], False), (f"t.{int(log_frequency > 0)}", [2, 3], False)]


def test_indices_go_on_across_settings() -> None:
    sink, tracer = filing(log_frequency=1)
    take(tracer)
    tracer.change("m", rate=1)
    take(tracer)
    assert [path for path, _, _ in sink.writes] == ["t.0", "t.1"]


def test_a_retired_setting_waits_for_the_traces_under_way() -> None:
    sink, tracer = filing()
    trace = tracer.begin("m")
    assert trace is not None
    take(tracer)
    tracer.change(rate=1)
    assert sink.writes == []
    trace.leave()
    assert sink.writes == [("t", [2, 1], False)]


def test_at_the_end_traces_under_way_are_not_waited_for() -> None:
    sink, tracer = filing()
    lost = tracer.begin("m")
    assert lost is not None
    take(tracer)
    tracer.close()
    for write in sink.files.close():
        sink.note(write)
    assert sink.writes == [("t", [2], False)]
    assert sink.files.close() == []


def test_a_limited_number_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_WAITING", 3)
    sink, tracer = filing()
    take(tracer, 7)
    assert sink.writes == [("t", [1, 2, 3], False), ("t", [4, 5, 6], True)]
    many, tracer = filing(log_frequency=1000)
    take(tracer, 3)
    assert many.writes == [("t.0", [1, 2, 3], False)]


def trace_of(level: TraceLevel = TraceLevel.TIMESTAMPS | TraceLevel.TENSORS) -> Trace:
    tracer = Tracer(TraceConfig(level=level, rate=1, file="t"), SystemClock(), Filing())
    trace = tracer.begin("m")
    assert trace is not None
    return trace


def test_the_elements_of_a_file_letter_by_letter() -> None:
    """As the real server writes them: children before what they hang under, the last one first."""
    trace = trace_of()
    trace.note(Activity.HTTP_RECV_START, 5)
    trace.note_subject("chain", 1, "r")
    for version in (2, 3):
        trace.step().note_subject("plain", version, "r")
    trace.note_tensor(Activity.TENSOR_QUEUE_INPUT, Tensor("I", FP32, (1, 2), array=np.ones((1, 2), np.float32)))
    assert format_traces([trace]) == (
        '{"id":3,"model_name":"plain","model_version":3,"request_id":"r","parent_id":1},'
        '{"id":2,"model_name":"plain","model_version":2,"request_id":"r","parent_id":1},'
        '{"id":1,"timestamps":[{"name":"HTTP_RECV_START","ns":5}]},'
        '{"id":1,"model_name":"chain","model_version":1,"request_id":"r"},'
        '{"id":1,"activity":"TENSOR_QUEUE_INPUT","tensor":{"name":"I","data":"1,1","shape":"1,2","dtype":"FP32"}}'
    )
    assert format_traces([]) == ""


def test_the_batch_what_was_generated_and_the_first_refusal() -> None:
    _, tracer = filing()
    trace = tracer.begin("m")
    assert trace is not None
    trace.note_batch(BatchNote("idle", 3, 2, 'm "0"'))
    trace.note_generation(GenerationNote(8, 4, 3, 1))
    trace.note_refusal("queue_full")
    trace.note_refusal("invalid")
    assert format_traces([trace]) == (
        '{"id":1,"batch":{"reason":"idle","rows":3,"requests":2,"instance":"m \\"0\\""}},'
        '{"id":1,"generation":{"prompt_tokens":8,"prefix_hit_tokens":4,"tokens":3,"preemptions":1}},'
        '{"id":1,"refused":"queue_full"}'
    )


@pytest.mark.parametrize(
    ("datatype", "values", "text"),
    [
        (FP32, [0.1, 1e10, 1e-7, 123456789, float("inf")], "0.1,1e+10,1e-07,1.23457e+08,inf"),
        (FP64, [0.1, 1e300], "0.1,1e+300"),
        (INT64, [-1, 1 << 40], "-1,1099511627776"),
        (UINT8, [1, 255], "1,255"),
        (BOOL, [True, False], "1,0"),
        (FP16, [1.5], ""),
        (BF16, [1], ""),
        (BYTES, [b"a", b'b"q', b"c,d", b"\xff"], '"a","b"q","c,d","\\xff"'),
        (FP32, [], ""),
    ],
)
def test_the_data_of_tensors(datatype: DataType, values: list, text: str) -> None:
    """As the real server writes them, where that is JSON at all."""
    array = np.array(values, dtype=datatype.storage)
    trace = trace_of()
    trace.note_tensor(Activity.TENSOR_BACKEND_OUTPUT, Tensor("O", datatype, array.shape, array=array))
    tensor = json.loads(format_traces([trace]))["tensor"]
    assert tensor == {"name": "O", "data": text, "shape": str(len(values)), "dtype": datatype.name}


def test_names_of_any_kind_stay_json() -> None:
    trace = trace_of()
    trace.note_subject('m"\n', 1, "\udcff é")
    text = format_traces([trace]).encode(errors="backslashreplace")
    assert json.loads(text)["request_id"] == "\udcff é"


@pytest.mark.parametrize("level", [TraceLevel.TIMESTAMPS, TraceLevel.TENSORS])
def test_each_level_notes_its_own(level: TraceLevel) -> None:
    trace = trace_of(level)
    trace.note(Activity.QUEUE_START, 1)
    trace.note_tensor(Activity.TENSOR_QUEUE_INPUT, Tensor("I", FP32, (1,), b"\0\0\0\0"))
    noted = "timestamps" if level is TraceLevel.TIMESTAMPS else "tensor"
    assert noted in json.loads(format_traces([trace]))


def test_a_trace_has_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trireme.engine.tracing.record.MAX_ELEMENTS", 2)
    monkeypatch.setattr("trireme.engine.tracing.record.MAX_TENSOR_BYTES", 4)
    trace = trace_of()
    for child in (trace, trace.child(), trace.child()):
        child.note_tensor(Activity.TENSOR_QUEUE_INPUT, Tensor("I", FP32, (1,), b"\0\0\0\0"))
    for ns in range(5):
        trace.note(Activity.QUEUE_START, ns)
    assert [len(each.elements) for each in (trace, *trace.descendants)] == [2, 0, 0]
