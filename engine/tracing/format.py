"""Traces as text: the elements of a trace file (docs/reference/traces.md#trace-files)."""

from __future__ import annotations

import json
from collections.abc import Iterable

from ..datatypes import BF16, BOOL, BYTES, FP16, FP32, FP64
from ..tensor import Tensor, iter_bytes
from .record import Element, Subject, TensorData, Timestamp, Trace


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
