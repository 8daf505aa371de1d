"""What clients set about the log of `trireme serve` shows in its next lines (observability.md §4)."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import tritonclient.grpc
import tritonclient.http

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
