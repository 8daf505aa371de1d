"""Metrics of a server at work: readable at any moment, never falling, and at one with the statistics in the end."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from prometheus_client.parser import text_string_to_metric_families
from serve_process import ServeProcess, serve_process
from tritonclient.utils import InferenceServerException

MODELS = ("simple", "simple_string")
REQUESTS = 60
CLIENTS = 6

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(server: ServeProcess) -> tuple[Values, Values]:
    """Everything by name and labels, and of that what may never fall: counters, counts, sums and buckets."""
    everything: Values = {}
    rising: Values = {}
    for family in text_string_to_metric_families(server.metrics()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in everything, "a series is there once"
            everything[key] = sample.value
            if family.type != "gauge" and "quantile" not in sample.labels:
                rising[key] = sample.value
    return everything, rising


def strings(values: list[int]) -> np.ndarray[Any, Any]:
    return np.array([[str(value).encode() for value in values]], dtype=np.object_)


def infer(client: Any, library: Any, model: str) -> None:
    """One request, which may be answered with an error."""
    array = strings(list(range(16))) if model == "simple_string" else np.arange(16, dtype=np.int32).reshape(1, 16)
    inputs = []
    for name in ("INPUT0", "INPUT1"):
        tensor = library.InferInput(name, array.shape, "BYTES" if model == "simple_string" else "INT32")
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    client.infer(model, inputs)
    with pytest.raises(InferenceServerException):
        client.infer(model, inputs[:1])  # refused, and counted nowhere


def http_load(server: ServeProcess, model: str) -> None:
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{server.http_port}") as client:
        for _ in range(REQUESTS):
            infer(client, tritonclient.http, model)


def grpc_load(server: ServeProcess, model: str) -> None:
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        for _ in range(REQUESTS):
            infer(client, tritonclient.grpc, model)


def watch(server: ServeProcess, over: threading.Event) -> None:
    """Scrape until it is over, and several times."""
    scrapes, last = 0, scrape(server)[1]
    while scrapes < 4 or not over.is_set():
        rising = scrape(server)[1]
        assert rising.keys() >= last.keys()
        fallen = {key: (value, rising[key]) for key, value in last.items() if rising[key] < value}
        assert not fallen
        scrapes, last = scrapes + 1, rising


def load(server: ServeProcess) -> None:
    """All clients at once, with one that reads the metrics meanwhile."""
    over = threading.Event()
    kinds: tuple[Callable[[ServeProcess, str], None], ...] = (http_load, grpc_load)
    with ThreadPoolExecutor(CLIENTS + 1) as pool:
        watching = pool.submit(watch, server, over)
        try:
            clients = [pool.submit(kinds[index % 2], server, MODELS[index // 2 % 2]) for index in range(CLIENTS)]
            for client in clients:
                client.result()
        finally:
            over.set()
        watching.result()


def test_a_server_at_work(repository_root: Path, tmp_path: Path) -> None:
    for model in MODELS:
        shutil.copytree(repository_root / "model_repository" / model, tmp_path / model)
    with serve_process(tmp_path, "--metrics-config=summary_latencies=true") as server:
        load(server)
        values, _ = scrape(server)
        _, told = server.ask("GET", "/v2/models/stats")
        assert [record["name"] for record in told["model_stats"]] == list(MODELS)
        total = 0
        for record in told["model_stats"]:
            labels = {"model": record["name"], "version": record["version"]}

            def metric(name: str, labels: dict[str, str] = labels, **more: str) -> float:
                return values[name, frozenset({**labels, **more}.items())]

            durations = record["inference_stats"]
            assert metric("nv_inference_request_success_total") == durations["success"]["count"]
            assert metric("nv_inference_count_total") == record["inference_count"] == durations["success"]["count"]
            assert metric("nv_inference_exec_count_total") == record["execution_count"]
            assert sum(batch["compute_infer"]["count"] for batch in record["batch_stats"]) == record["execution_count"]
            for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER"):
                assert metric("nv_inference_request_failure_total", reason=reason) == 0 == durations["fail"]["count"]
            assert metric("nv_inference_pending_request_count") == 0
            parts = {"success": "request"} | {name: name for name in durations if name[:5] in ("queue", "compu")}
            for field, part in parts.items():
                count, total_us = durations[field]["count"], metric(f"nv_inference_{part}_duration_us_total")
                assert 0 <= durations[field]["ns"] / 1000 - total_us <= count, "cut to whole us, request by request"
                assert metric(f"nv_inference_{part}_summary_us_count") == count
                assert metric(f"nv_inference_{part}_summary_us_sum") == total_us
            total += record["inference_count"]
        assert total == CLIENTS * REQUESTS
