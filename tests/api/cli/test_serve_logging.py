"""What clients set about the log of `trireme serve` shows in its next lines (docs/reference/logs.md)."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

_EXPECTED_LINES = 75
"""What Triton's own test of its log asks for at least."""

DEFAULT = r"I\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ \w+\.py:\d+\] "
ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ I \d+ \w+\.py:\d+\] "


def test_both_protocols_change_the_one_log(start_serve: Callable, repository: Path) -> None:
    serve = start_serve(f"--model-repository={repository}", "--log-verbose=0")
    grpc_port = serve.read_until(r"Started GRPCInferenceService at 127\.0\.0\.1:(\d+)")[1]
    http_port, _ = serve.ports()
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{grpc_port}") as client:
        client.update_log_settings({"log_format": "ISO8601", "log_warning": False})
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{http_port}") as client:
        assert client.get_log_settings() == {
            "log_file": "",
            "log_info": True,
            "log_warning": False,
            "log_error": True,
            "log_verbose_level": 0,
            "log_format": "ISO8601",
        }
    serve.signal(signal.SIGTERM)
    assert serve.wait() == 0
    assert re.search(rf'^{DEFAULT}"Started HTTPService', serve.stdout, re.MULTILINE)
    assert re.search(rf"""^{ISO}"successfully unloaded 'simple' version 1"$""", serve.stdout, re.MULTILINE)


def test_a_log_that_is_switched_off_is_silent(start_serve: Callable, repository: Path) -> None:
    serve = start_serve(f"--model-repository={repository}")
    http_port, _ = serve.ports()
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{http_port}") as client:
        client.update_log_settings({"log_info": False})
    before = len(serve.lines)
    serve.signal(signal.SIGTERM)
    assert serve.wait() == 0
    assert serve.lines[before:] == ["Signal (15) received."]


def _infer(protocol: ModuleType, client: Any) -> None:
    tensors = []
    for name in ("INPUT0", "INPUT1"):
        tensor = protocol.InferInput(name, [1, 16], "INT32")
        tensor.set_data_from_numpy(np.ones((1, 16), np.int32))
        tensors.append(tensor)
    client.infer("simple", tensors, outputs=[protocol.InferRequestedOutput(name) for name in ("OUTPUT0", "OUTPUT1")])
    client.get_inference_statistics("simple")


def _session(start_serve: Callable, repository: Path, level: int) -> list[str]:
    """The session of Triton's own test of verbose logs: a change that is refused, a look at the settings, and over
    either protocol an inference and the statistics. What the log has of it, down to the signal that ends it."""
    serve = start_serve(f"--model-repository={repository}", f"--log-verbose={level}")
    grpc_port = serve.read_until(r"Started GRPCInferenceService at 127\.0\.0\.1:(\d+)")[1]
    http_port, _ = serve.ports()
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{http_port}") as client:
        assert client.is_server_ready()
        with pytest.raises(InferenceServerException, match="can not be updated"):
            client.update_log_settings({"log_file": "other.log"})
        client.get_log_settings()
        _infer(tritonclient.http, client)
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{grpc_port}") as client:
        _infer(tritonclient.grpc, client)
    serve.signal(signal.SIGTERM)
    assert serve.wait() == 0
    end = serve.lines.index("Signal (15) received.")
    return [line for line in serve.lines[:end] if re.match(r"[IWEV]\d{4}", line)]


def test_a_session_is_told_in_as_many_lines_as_tritons_own_test_counts(start_serve: Callable, repository: Path) -> None:
    lines = _session(start_serve, repository, 1)
    text = "\n".join(lines)
    assert len(lines) >= _EXPECTED_LINES, text
    for told in (
        '"ModelConfig 64-bit fields:"',
        r'"\tModelConfig::dynamic_batching::priority_queue_policy::value::default_timeout_microseconds"',
        r'"model configuration:\n{\n    \"name\": \"simple\",',
        "instance initialization successful simple_0 (device 0)",
        "Ready for RPC 'Trace', 0",
    ):
        assert text.count(told) == 1, told
    assert text.count(" released 1 requests") == 2
    assert text.count("/v2/logging") == 2


def test_a_log_that_is_not_verbose_has_none_of_them(start_serve: Callable, repository: Path) -> None:
    text = "\n".join(_session(start_serve, repository, 0))
    assert not re.search("64-bit|model configuration:|KeepAlive|initialization|Ready for|released|HTTP request", text)
