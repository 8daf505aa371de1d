"""Trace setting calls and the answers that Triton 2.51 gave to them, started with ``level=TIMESTAMPS``, ``rate=11``,
``count=50``, ``triton,file=out/t.json`` and ``triton,log-frequency=12``.

Each is what was asked over HTTP, one after the other, and what changed in the answer, or the status and the error.
"""

from __future__ import annotations

from typing import Any

from trireme.engine.tracing import TraceConfig, TraceLevel

CONFIG = TraceConfig(level=TraceLevel.TIMESTAMPS, rate=11, count=50, file="out/t.json", log_frequency=12)

SHOWN: dict[str, Any] = {
    "trace_level": ["TIMESTAMPS"],
    "trace_rate": "11",
    "trace_count": "50",
    "log_frequency": "12",
    "trace_file": "out/t.json",
    "trace_mode": "triton",
}

_RATE = "[ 0, 4294967295 ]"
_ONLY_OFF = "Expect only one trace level 'OFF' is specified"
_NO_FILE = "trace file location can not be updated through network protocol"
_NO_STRING = "attempt to access JSON non-string as string"


def _out_of_range(name: str, text: str, bounds: str = _RATE) -> str:
    return f"Unable to parse '{name}', value is out of range {bounds}, got: {text}"


def _level(*names: str) -> dict[str, Any]:
    return {"trace_level": list(names)}


OVER_HTTP: list[tuple[dict[str, Any], dict[str, Any] | tuple[int, str]]] = [
    (_level("OFF", "TIMESTAMPS"), (400, _ONLY_OFF)),
    (_level("FOO"), {}),
    (_level("OFF"), _level("OFF")),
    (_level(), {}),
    (_level("MIN"), {}),
    (_level("timestamps"), {}),
    ({"trace_level": "TIMESTAMPS"}, (500, "attempt to access JSON non-array as array")),
    ({"trace_level": None}, _level("TIMESTAMPS")),
    ({"trace_level": [1]}, (500, _NO_STRING)),
    (_level("OFF", "OFF"), (400, _ONLY_OFF)),
    (_level("FOO", "OFF"), (400, _ONLY_OFF)),
    (_level("TIMESTAMPS", "TIMESTAMPS"), {}),
    (_level("TENSORS", "TIMESTAMPS"), _level("TIMESTAMPS", "TENSORS")),
    (_level("OFF"), _level("OFF")),
    ({"trace_rate": "5"}, {"trace_rate": "5"}),
    ({"trace_rate": 5}, (500, _NO_STRING)),
    ({"trace_rate": "x"}, (400, "Unable to parse 'trace_rate', got: x")),
    ({"trace_rate": ""}, (400, "Unable to parse 'trace_rate', got: ")),
    ({"trace_rate": "-5"}, {"trace_rate": "4294967291"}),
    ({"trace_rate": "99999999999"}, (400, _out_of_range("trace_rate", "99999999999"))),
    ({"trace_rate": "5x"}, {"trace_rate": "5"}),
    ({"trace_rate": " 7"}, {"trace_rate": "7"}),
    ({"trace_rate": "+8"}, {"trace_rate": "8"}),
    ({"trace_rate": "0"}, {"trace_rate": "0"}),
    ({"trace_rate": "4294967295"}, (400, _out_of_range("trace_rate", "4294967295"))),
    ({"trace_rate": "-1"}, {"trace_rate": "4294967295"}),
    ({"trace_rate": "0x10"}, {"trace_rate": "0"}),
    ({"trace_rate": "-99999999999999999999999"}, (400, _out_of_range("trace_rate", "-99999999999999999999999"))),
    ({"trace_rate": "1.5"}, {"trace_rate": "1"}),
    ({"trace_rate": None}, {"trace_rate": "11"}),
    ({"trace_rate": ["5"]}, (500, _NO_STRING)),
    ({"trace_rate": True}, (500, _NO_STRING)),
    ({"trace_count": "5"}, {"trace_count": "5"}),
    ({"trace_count": "-1"}, {"trace_count": "-1"}),
    ({"trace_count": "-2"}, (400, "Unable to parse 'trace_count'. Expecting value >= -1, got:-2")),
    ({"trace_count": "x"}, (400, "Unable to parse 'trace_count', got: x")),
    (
        {"trace_count": "99999999999"},
        (400, _out_of_range("trace_count", "99999999999", "[ -1, 2147483647 ]")),
    ),
    ({"trace_count": "0"}, {"trace_count": "0"}),
    ({"trace_count": "2147483647"}, {"trace_count": "2147483647"}),
    ({"trace_count": None}, {"trace_count": "50"}),
    ({"log_frequency": "5"}, {"log_frequency": "5"}),
    ({"log_frequency": "-5"}, {"log_frequency": "4294967291"}),
    ({"log_frequency": "x"}, (400, "Unable to parse 'log_frequency', got: x")),
    ({"log_frequency": "99999999999"}, (400, _out_of_range("log_frequency", "99999999999"))),
    ({"log_frequency": None}, {"log_frequency": "12"}),
    ({"trace_file": "x"}, (501, _NO_FILE)),
    ({"trace_file": None}, (501, _NO_FILE)),
    ({"foo": "1", "trace_mode": "opentelemetry"}, {}),
    (
        {"trace_rate": "0", **_level("TIMESTAMPS")},
        (400, "Attempting to set invalid trace setting :sample rate must be non-zero"),
    ),
    ({"trace_rate": "9", "trace_count": "x"}, (400, "Unable to parse 'trace_count', got: x")),
    ({"trace_rate": "x", "trace_file": "x"}, (501, _NO_FILE)),
    ({"trace_rate": "x", **_level("OFF", "TENSORS")}, (400, _ONLY_OFF)),
    ({"trace_count": "x", "trace_rate": "x"}, (400, "Unable to parse 'trace_rate', got: x")),
    ({"log_frequency": "y", "trace_count": "x"}, (400, "Unable to parse 'trace_count', got: x")),
    ({}, {}),
]

Values = dict[str, list[str]]

OVER_GRPC: list[tuple[Values, dict[str, Any] | tuple[str, str]]] = [
    ({}, {}),
    ({"trace_rate": ["1", "2"]}, ("INVALID_ARGUMENT", "expect only 1 value for 'trace_rate'")),
    ({"trace_rate": ["5"]}, {"trace_rate": "5"}),
    ({"trace_rate": []}, {"trace_rate": "11"}),
    ({"trace_rate": ["x"]}, ("INVALID_ARGUMENT", "Unable to parse 'trace_rate', got: x")),
    ({"trace_rate": [""]}, ("INVALID_ARGUMENT", "Unable to parse 'trace_rate', got: ")),
    ({"trace_rate": ["-5"]}, {"trace_rate": "4294967291"}),
    ({"trace_rate": ["2147483648"]}, ("INVALID_ARGUMENT", _out_of_range("trace_rate", "2147483648"))),
    ({"trace_rate": ["2147483647"]}, {"trace_rate": "2147483647"}),
    ({"trace_count": ["-2"]}, ("INVALID_ARGUMENT", "Unable to parse 'trace_count'. Expecting value >= -1, got: -2")),
    ({"trace_count": ["1", "2"]}, ("INVALID_ARGUMENT", "expect only 1 value for 'trace_count'")),
    ({"log_frequency": ["x"]}, ("INVALID_ARGUMENT", "Unable to parse 'log_frequency', got: x")),
    ({"log_frequency": ["1", "2"]}, ("INVALID_ARGUMENT", "expect only 1 value for 'log_frequency'")),
    ({"log_frequency": ["3"]}, {"log_frequency": "3"}),
    ({"log_frequency": []}, {"log_frequency": "12"}),
    ({"trace_file": ["x"]}, ("UNIMPLEMENTED", _NO_FILE)),
    ({"trace_file": []}, ("UNIMPLEMENTED", _NO_FILE)),
    ({"trace_mode": ["opentelemetry"], "foo": ["x"]}, {}),
    ({"trace_level": ["OFF", "TENSORS"]}, ("INVALID_ARGUMENT", _ONLY_OFF)),
    ({"trace_level": ["FOO"]}, {}),
    ({"trace_level": ["TENSORS", "TIMESTAMPS"]}, _level("TIMESTAMPS", "TENSORS")),
    ({"trace_level": ["OFF"]}, _level("OFF")),
    ({"trace_level": []}, _level("TIMESTAMPS")),
    (
        {"trace_rate": ["x"], "trace_level": ["OFF", "TENSORS"], "trace_count": ["x"], "trace_file": ["x"]},
        ("UNIMPLEMENTED", _NO_FILE),
    ),
    ({"trace_rate": ["x"], "trace_level": ["OFF", "TENSORS"]}, ("INVALID_ARGUMENT", _ONLY_OFF)),
    ({"trace_count": ["x"], "log_frequency": ["x"]}, ("INVALID_ARGUMENT", "Unable to parse 'trace_count', got: x")),
    (
        {"trace_rate": ["0"], "trace_level": ["TIMESTAMPS"]},
        ("INVALID_ARGUMENT", "Attempting to set invalid trace setting :sample rate must be non-zero"),
    ),
    ({"trace_rate": ["0"], "trace_level": ["OFF"]}, {"trace_rate": "0", **_level("OFF")}),
]
