"""Which traces are written to which file, and when (docs/reference/traces.md#trace-files).

Rules, for the traces of one setting:
 1. With a log frequency of N, every N traces make a file of their own, `<path>.<index>`.
 2. Without one they wait until their setting is over, and are then added to the file `<path>`.
 3. Whatever the log frequency: when the count of the setting is used up and its last trace has come back, what waits
    makes a file of its own.
 4. A setting with a log frequency that is over, and has traces waiting, makes a last file of them.
 5. No more than `MAX_WAITING` traces, nor `MAX_WAITING_BYTES` of their tensors, wait: from there on they are written as
    if their time had come.

Indices count from 0, across all settings of the server.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from io import RawIOBase

from ..datatypes import BF16, BOOL, BYTES, FP16, FP32, FP64
from ..tensor import Tensor, iter_bytes
from .record import BatchNote, Element, GenerationNote, RefusalNote, Subject, TensorData, Timestamp, Trace
from .settings import TraceSetting

MAX_WAITING = 8192
MAX_WAITING_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class TraceWrite:
    """Write these traces; `extend`: add them to those in the file, instead of replacing what is there."""

    path: str
    traces: tuple[Trace, ...]
    extend: bool


@dataclass(slots=True)
class _Waiting:
    """Traces of one setting that are to be written; `nbytes` of tensors are in them."""

    traces: list[Trace] = field(default_factory=list)
    nbytes: int = 0


class TraceFiles:
    """Collects traces, and says what is to be written.

    Args:
        path: of the file; others have it as the beginning of their names.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._next_index = 0
        self._has_main = False
        self._waiting: dict[TraceSetting, _Waiting] = {}

    def collect(self, trace: Trace) -> TraceWrite | None:
        """A trace is complete; what is to be written, if anything is."""
        setting = trace.setting
        waiting = self._waiting.setdefault(setting, _Waiting())
        waiting.traces.append(trace)
        waiting.nbytes += trace.nbytes
        limit = min(setting.log_frequency or MAX_WAITING, MAX_WAITING)
        if setting.is_complete or len(waiting.traces) >= limit or waiting.nbytes >= MAX_WAITING_BYTES:
            return self._write(setting)
        return None

    def retire(self, setting: TraceSetting) -> TraceWrite | None:
        """A setting takes no new traces; what is to be written, if anything is."""
        return self._write(setting) if setting.is_complete and setting in self._waiting else None

    def close(self) -> list[TraceWrite]:
        """Traces that are under way are not waited for; what is to be written."""
        return [self._write(setting) for setting in list(self._waiting)]

    def _write(self, setting: TraceSetting) -> TraceWrite:
        traces = tuple(self._waiting.pop(setting).traces)
        if setting.log_frequency or (setting.count == 0 and setting.is_complete):
            path = f"{self._path}.{self._next_index}"
            self._next_index += 1
            return TraceWrite(path, traces, extend=False)
        extend = self._has_main
        self._has_main = True
        return TraceWrite(self._path, traces, extend)

    def __repr__(self) -> str:
        waiting = sum(len(waiting.traces) for waiting in self._waiting.values())
        return f"<TraceFiles {self._path}: {waiting} traces wait, next index {self._next_index}>"


# -- Traces as text: the elements of a trace file (docs/reference/traces.md#trace-files)


def format_traces(traces: Iterable[Trace]) -> str:
    """The elements of all `traces`, parted by commas; empty if there are none.

    Those of a trace stand together, and the traces under one before it, the last one first, as Triton writes them.
    """
    return ",".join(
        _format_element(each, element)
        for trace in traces
        for each in (*reversed(trace.descendants), trace)
        for element in each.elements
    )


def _format_element(trace: Trace, element: Element) -> str:
    match element:
        case Timestamp(name, ns):
            return f'{{"id":{trace.id},"timestamps":[{{"name":{_string(name)},"ns":{ns}}}]}}'
        case Subject(name, version, request_id):
            text = f'{{"id":{trace.id},"model_name":{_string(name)},"model_version":{version}'
            if request_id:
                text += f',"request_id":{_string(request_id)}'
            if trace.parent_id:
                text += f',"parent_id":{trace.parent_id}'
            return text + "}"
        case BatchNote(reason, rows, requests, instance):
            return (
                f'{{"id":{trace.id},"batch":{{"reason":"{reason}","rows":{rows},"requests":{requests},'
                f'"instance":{_string(instance)}}}}}'
            )
        case GenerationNote():
            told = ",".join(f'"{name}":{value}' for name, value in element._asdict().items())
            return f'{{"id":{trace.id},"generation":{{{told}}}}}'
        case RefusalNote(reason):
            return f'{{"id":{trace.id},"refused":"{reason}"}}'
        case TensorData():
            shape = ",".join(map(str, element.shape))
            return (
                f'{{"id":{trace.id},"activity":{_string(element.activity)},"tensor":{{"name":{_string(element.name)},'
                f'"data":{_string(format_data(element))},"shape":"{shape}","dtype":"{element.datatype.name}"}}}}'
            )


def format_data(tensor: TensorData) -> str:
    """The elements of a tensor, parted by commas. Floating-point numbers have six digits; those of 16 bits, none."""
    datatype = tensor.datatype
    if datatype is FP16 or datatype is BF16:
        return ""
    if datatype is BYTES:
        texts = (element.decode(errors="backslashreplace") for element in iter_bytes(tensor.data))
        return ",".join(f'"{text}"' for text in texts)
    flat = Tensor(tensor.name, datatype, (-1,), tensor.data).array.tolist()
    if datatype is FP32 or datatype is FP64:
        return ",".join(f"{value:g}" for value in flat)
    return ",".join(str(int(value)) if datatype is BOOL else str(value) for value in flat)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def write_traces(write: TraceWrite) -> None:
    """Write a trace file: one JSON array on one line. Whatever happens, no half of one is left.

    Raises:
        OSError: it cannot be written.
    """
    text = format_traces(write.traces).encode(errors="backslashreplace")
    if write.extend:
        with contextlib.suppress(FileNotFoundError), open(write.path, "r+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            if file.read() == b"]":
                _put(file, size - 1, (b"," if text and size > 2 else b"") + text + b"]", b"]")
                return
    with open(write.path, "wb", buffering=0) as file:
        _put(file, 0, b"[" + text + b"]", b"")


def _put(file: RawIOBase, position: int, data: bytes, instead: bytes) -> None:
    """Put `data` at `position`, or, if it does not fit on the disk, what was there."""
    try:
        file.seek(position)
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(position)
            file.seek(position)
            file.write(instead)
        raise
