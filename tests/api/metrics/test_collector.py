"""What a running server tells about its latencies: parsable at any moment, and at one with its statistics."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_stub import MESSAGES, OpenStream, infer_request, stub_for
from prometheus_client.parser import text_string_to_metric_families
from scripted_models import Script, write_scripted_models
from scripted_server import ScriptedServer, scripted_server

from trireme.actors import InferenceServer
from trireme.api.metrics.collector import ServerCollector
from trireme.engine.metrics.custom import MetricKind
from trireme.engine.metrics.families import CpuReading, HostReadings
from trireme.engine.metrics.family import MetricFamily
from trireme.engine.metrics.page import Section, write_text
from trireme.engine.metrics.statistics import MemoryUsage
from trireme.engine.options import ServerOptions

FIRST = "nv_inference_first_response_histogram_ms"


ENSEMBLE = """
platform: "ensemble"
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
ensemble_scheduling { step {
  model_name: "%s" model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } } }
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ScriptedServer]:
    for member in ("many", "plain"):
        folder = tmp_path / "models" / f"ensemble_of_{member}"
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(ENSEMBLE % member)
    with scripted_server(tmp_path / "models", summary_latencies=True, histogram_latencies=True) as running:
        yield running


@pytest.fixture
def stub(server: ScriptedServer) -> Iterator[Any]:
    with stub_for(server.url) as made:
        yield made


def scrape(server: ScriptedServer) -> dict[tuple[str, str], float]:
    """Values by name and model; a quantile or bucket's bound is part of the name."""
    return server.call(scrape_in_loop, server)


def scrape_in_loop(server: ScriptedServer) -> dict[tuple[str, str], float]:
    text = write_text(ServerCollector(server.server, HostReadings, quantiles=(0.5, 1.0)).collect())
    values: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name + "".join(
                f" {key}={sample.labels[key]}" for key in ("quantile", "le") if key in sample.labels
            )
            values.setdefault((name, sample.labels.get("model", "")), sample.value)
    return values


def test_under_load_and_after_it(server: ScriptedServer, stub: Any) -> None:
    """A scrape parses whatever goes on; in the end, counters, summaries and the statistics RPC agree."""
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(stub.ModelInfer, infer_request("queued")) for _ in range(200)]
        while not all(call.done() for call in calls):
            values = scrape(server)
            count = values["nv_inference_request_summary_us_count", "queued"]
            assert count == values["nv_inference_request_success_total", "queued"]
    with pytest.raises(grpc.RpcError):
        stub.ModelInfer(infer_request("queued", "fail:no"))
    values = scrape(server)
    (model,) = stub.ModelStatistics(MESSAGES.ModelStatisticsRequest(name="queued")).model_stats
    told = model.inference_stats
    for part, duration in (
        ("request", told.success),
        ("queue", told.queue),
        ("compute_input", told.compute_input),
        ("compute_infer", told.compute_infer),
        ("compute_output", told.compute_output),
    ):
        name = f"nv_inference_{part}_summary_us"
        assert values[f"{name}_count", "queued"] == duration.count == 200
        total_us = values[f"{name}_sum", "queued"]
        assert total_us == values[f"nv_inference_{part}_duration_us_total", "queued"]
        assert 0 <= duration.ns / 1000 - total_us <= 200, "each request's time is cut to whole microseconds"
        median, largest = (values[f"{name} quantile={quantile}", "queued"] for quantile in ("0.5", "1"))
        assert 0 <= median <= largest <= total_us * 257 / 256


def test_first_responses_of_decoupled_models_are_sorted(server: ScriptedServer, stub: Any) -> None:
    """One entry a request, however many responses it has, an error too; none for one without any response."""
    before = scrape(server)
    assert (f"{FIRST}_count", "plain") not in before
    assert before[f"{FIRST}_count", "many"] == 0
    for script in ("say say say!", "say end", "end", "fail:x"):
        stream = OpenStream(stub)
        stream.say("many", script)
        stream.rest()
    stub.ModelInfer(infer_request("plain"))
    after = scrape(server)
    assert after[f"{FIRST}_count", "many"] == after[f"{FIRST}_bucket le=+Inf", "many"] == 3
    assert after[f"{FIRST}_bucket le=5000", "many"] == 3
    assert (f"{FIRST}_count", "plain") not in after


def test_an_ensemble_of_decoupled_members_has_first_responses_of_its_own(server: ScriptedServer, stub: Any) -> None:
    for name in ("many", "plain"):
        stream = OpenStream(stub)
        stream.say(f"ensemble_of_{name}")
        stream.rest()
    values = scrape(server)
    assert values[f"{FIRST}_count", "ensemble_of_many"] == values[f"{FIRST}_count", "many"] == 1
    assert (f"{FIRST}_count", "ensemble_of_plain") not in values


def test_where_they_are_not_asked_for_none_are_kept(tmp_path: Path) -> None:
    with scripted_server(tmp_path / "models") as running:
        assert not any("summary" in name or "histogram" in name for name, _ in scrape(running))


def test_buckets_of_a_family_that_has_none_are_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whether histograms are wanted or not."""
    folder = tmp_path / "models" / "odd"
    (folder / "1").mkdir(parents=True)
    control = 'metric_control { metric_identifier { family: "mine" } histogram_options { buckets: [ 1, 2 ] } }'
    tensors = 'input { name: "IN" data_type: TYPE_FP32 dims: 1 } output { name: "OUT" data_type: TYPE_FP32 dims: 1 }'
    (folder / "config.pbtxt").write_text(f'backend: "scripted" {tensors} model_metrics {{ {control} }}')
    with scripted_server(tmp_path / "models"):
        text = "Metric family 'mine' in 'metric_identifier' is not a customizable metric in Triton core."
        assert [record.getMessage() for record in caplog.records].count(text) == 1


def test_added_families_stand_in_their_sections(server: ScriptedServer) -> None:
    """Models, pinned memory, what is added, summaries, what is added there, GPUs, the CPU, all other additions."""
    for section in Section:
        name = f"added_{section.name}"
        server.server.metrics.add(section, lambda _scrape, name=name: [MetricFamily(name, "help", "gauge", 1)])
    host = HostReadings(cpu=CpuReading())
    families = server.call(lambda: list(ServerCollector(server.server, lambda: host).collect()))
    names = [family.name for family in families if not family.name.startswith("nv_cache_")]
    assert names[9:16] == [
        "nv_inference_pending_request_count",
        "nv_model_load_duration_secs",
        "nv_pinned_memory_pool_total_bytes",
        "nv_pinned_memory_pool_used_bytes",
        "added_MODEL_COUNTERS",
        FIRST,
        "nv_inference_request_summary_us",
    ]
    assert names[20:32] == [
        "added_SUMMARIES",
        "nv_gpu_utilization",
        "nv_gpu_memory_total_bytes",
        "nv_gpu_memory_used_bytes",
        "nv_gpu_power_usage",
        "nv_gpu_power_limit",
        "nv_energy_consumption",
        "nv_cpu_utilization",
        "nv_cpu_memory_total_bytes",
        "nv_cpu_memory_used_bytes",
        "added_LAST",
        "trireme_batch_sealed_count",
    ]


def test_custom_metrics_are_on_the_page_as_long_as_they_live(server: ScriptedServer) -> None:
    custom = server.server.custom_metrics
    family = custom.create_family("my_total", "help", MetricKind.COUNTER)
    custom.increment(custom.create_metric(family, {"model": "many"}), 3)
    assert scrape(server)["my_total", "many"] == 3
    custom.delete_family(family)
    assert ("my_total", "many") not in scrape(server)


@pytest.mark.parametrize("asked", ["many", "ensemble_of_many"])
def test_a_final_answer_before_the_end_of_the_execution_is_charged_up_to_then(
    server: ScriptedServer, stub: Any, asked: str
) -> None:
    """A decoupled model may go on after its last answer; no duration is ever negative, nor that of an ensemble."""
    stream = OpenStream(stub)
    stream.say(asked, "say! wait:gate")
    stream.rest()
    values = scrape(server)
    assert values["nv_inference_exec_count_total", "many"] == 0, "it goes on"
    for model in {asked, "many"}:
        assert values["nv_inference_request_success_total", model] == 1
        request_us = values["nv_inference_request_duration_us_total", model]
        for part in ("queue", "compute_input", "compute_infer", "compute_output"):
            assert 0 <= values[f"nv_inference_{part}_duration_us_total", model] <= request_us
        (told,) = stub.ModelStatistics(MESSAGES.ModelStatisticsRequest(name=model)).model_stats
        assert told.inference_stats.compute_input.ns > 0, "it took no further mark"
    server.script.open("gate")
    server.until(lambda: scrape_in_loop(server)["nv_inference_exec_count_total", "many"] == 1)


def test_reported_responses_are_in_the_statistics_with_the_answer_that_follows(
    server: ScriptedServer, stub: Any
) -> None:
    for script in ("report:success say report:fail fail:x", "report:success say report:empty_response end"):
        stream = OpenStream(stub)
        stream.say("many", script)
        stream.rest()
    server.script.loaded["many"].memory_usage = (MemoryUsage("CPU", 0, 64),)
    (model,) = stub.ModelStatistics(MESSAGES.ModelStatisticsRequest(name="many")).model_stats
    first, second = model.response_stats["0"], model.response_stats["1"]
    assert (first.success.count, first.success.ns, first.compute_infer.ns, first.compute_output.ns) == (2, 200, 60, 140)
    assert (second.success.count, second.fail.count, second.empty_response.count) == (0, 1, 1)
    assert [(usage.type, usage.id, usage.byte_size) for usage in model.memory_usage] == [("CPU", 0, 64)]


async def test_models_of_equal_names_are_told_apart(tmp_path: Path) -> None:
    """No series is there twice: every one of a model says which namespace it is in."""
    repositories = (tmp_path / "a", tmp_path / "b")
    for repository in repositories:
        write_scripted_models(repository)
    script = Script()
    options = ServerOptions(model_repository=repositories, model_namespacing=True, exit_timeout_s=5)
    async with InferenceServer(options, backends=script.backends()) as server:
        text = write_text(ServerCollector(server, HostReadings).collect())
    series = [
        (sample.name, frozenset(sample.labels.items()))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    assert len(series) == len(set(series))
    namespaces = {dict(labels).get("namespace") for _, labels in series if "model" in dict(labels)}
    assert namespaces == {str(repository) for repository in repositories}
