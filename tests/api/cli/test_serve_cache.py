"""`trireme serve` with a response cache: flags, table, statistics, metrics."""

from __future__ import annotations

import http.client
import json
import re
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest


def get(port: int, path: str, body: str | None = None) -> str:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET" if body is None else "POST", path, body)
        response = connection.getresponse()
        text = response.read().decode()
        assert response.status == 200, text
        return text


@pytest.mark.parametrize("flag", ["--cache-config=local,size=100000", "--response-cache-byte-size=100000"])
def test_hits_and_misses_are_told(start_serve: Callable, repository: Path, flag: str) -> None:
    """The statistics and the metrics agree; the server says that it has a cache."""
    config = repository / "simple" / "config.pbtxt"
    config.write_text(config.read_text() + "\nresponse_cache { enable: true }\n")
    serve = start_serve(f"--model-repository={repository}", flag)
    port, metrics_port = serve.ports()
    inputs = [
        {"name": name, "shape": [1, 16], "datatype": "INT32", "data": list(range(16))} for name in ("INPUT0", "INPUT1")
    ]
    body = json.dumps({"inputs": inputs})
    answers = [json.loads(get(port, "/v2/models/simple/infer", body)) for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    (model,) = json.loads(get(port, "/v2/models/simple/stats"))["model_stats"]
    told = {name: duration["count"] for name, duration in model["inference_stats"].items()}
    assert told == {
        "success": 3,
        "fail": 0,
        "queue": 3,
        "compute_input": 1,
        "compute_infer": 1,
        "compute_output": 1,
        "cache_hit": 2,
        "cache_miss": 1,
    }
    metrics = get(metrics_port, "/metrics").splitlines()
    labels = '{model="simple",version="1"}'
    assert f"nv_cache_num_hits_per_model{labels} 2" in metrics
    assert f"nv_cache_num_misses_per_model{labels} 1" in metrics
    assert f"nv_inference_request_success{labels} 3" in metrics
    assert f"nv_inference_count{labels} 1" in metrics
    for line in ("nv_cache_num_entries 1", "nv_cache_num_hits 2", "nv_cache_num_misses 1", "nv_cache_num_lookups 3"):
        assert line in metrics
    serve.signal(signal.SIGTERM)
    assert serve.wait() == 0
    assert "| cache_enabled                    | 1 " in serve.stdout


def test_a_cache_in_which_nothing_fits_is_served_without(start_serve: Callable, repository: Path) -> None:
    """As in Triton: every request is a miss, and the log says why nothing is kept."""
    config = repository / "simple" / "config.pbtxt"
    config.write_text(config.read_text() + "\nresponse_cache { enable: true }\n")
    serve = start_serve(f"--model-repository={repository}", "--cache-config=local,size=200")
    port, metrics_port = serve.ports()
    inputs = [{"name": name, "shape": [1, 16], "datatype": "INT32", "data": [1] * 16} for name in ("INPUT0", "INPUT1")]
    for _ in range(2):
        get(port, "/v2/models/simple/infer", json.dumps({"inputs": inputs}))
    assert 'nv_cache_num_misses_per_model{model="simple",version="1"} 2' in get(metrics_port, "/metrics")
    serve.signal(signal.SIGTERM)
    assert serve.wait() == 0
    assert len(re.findall(r"Failed to insert key \[\w+\] into response cache: ", serve.stderr)) == 2


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--cache-config=local,size=10"], "Failed to initialize LocalCache: 'size' is at least 128 bytes, got 10"),
        (
            ["--cache-config=local,size=10000", "--cache-config=redis,host=h"],
            "found multiple cache configurations, but only a single cache is currently supported",
        ),
        (["--cache-config=no,a=b"], "unable to find 'libtritoncache_no.so' for cache. Searched: trireme.caches"),
    ],
)
def test_a_cache_that_cannot_be_had_ends_the_start(
    start_serve: Callable, repository: Path, flags: list[str], text: str
) -> None:
    serve = start_serve(f"--model-repository={repository}", *flags)
    assert serve.wait() == 1
    assert f"error: creating server: Invalid argument - {text}" in serve.stderr
