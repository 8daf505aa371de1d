"""What the dashboard shows, and when somebody is to be told: names of metrics are checked by `make_files.py`."""

from __future__ import annotations

from typing import NamedTuple


class Panel(NamedTuple):
    """A graph: its title, the unit of its values as Grafana calls it, and a (legend, expression) for each line."""

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]


class Alert(NamedTuple):
    """What is told if an expression has a value for so long."""

    name: str
    expression: str
    lasting: str
    severity: str
    summary: str


OF = '{job=~"$job",model=~"$model"}'
"""The series that a dashboard is about: its variables are `job` and `model`."""

SERVER = '{job=~"$job"}'
_RATE = "[$__rate_interval]"
_BY = "sum by (model, version)"


def _rate(counter: str, by: str = _BY) -> str:
    return f"{by} (rate({counter}{OF}{_RATE}))"


def _mean(duration: str) -> str:
    """Seconds that a successful request took in one of its stages."""
    return f"{_rate(duration)} / {_rate('nv_inference_request_success')} / 1e6"


_HITS, _MISSES = (_rate(f"nv_cache_num_{each}_per_model", "sum by (model)") for each in ("hits", "misses"))

ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Requests",
        (
            Panel(
                "Answered",
                "reqps",
                (("{{model}} {{version}}", _rate("nv_inference_request_success")),),
            ),
            Panel(
                "Failed",
                "reqps",
                (
                    (
                        "{{model}} {{reason}}",
                        _rate("nv_inference_request_failure", "sum by (model, reason)"),
                    ),
                ),
            ),
            Panel(
                "Refused",
                "reqps",
                (
                    (
                        "{{model}} {{reason}}",
                        f"sum by (model, reason) (rate(trireme_refused_total{SERVER}{_RATE})) > 0",
                    ),
                ),
            ),
            Panel("In flight", "short", (("{{instance}}", f"trireme_inflight_requests{SERVER}"),)),
        ),
    ),
    (
        "Time",
        (
            Panel("A request, mean", "s", (("{{model}} {{version}}", _mean("nv_inference_request_duration_us")),)),
            Panel("In the queue, mean", "s", (("{{model}} {{version}}", _mean("nv_inference_queue_duration_us")),)),
            Panel(
                "Computing, mean",
                "s",
                (
                    ("{{model}} input", _mean("nv_inference_compute_input_duration_us")),
                    ("{{model}} infer", _mean("nv_inference_compute_infer_duration_us")),
                    ("{{model}} output", _mean("nv_inference_compute_output_duration_us")),
                ),
            ),
            Panel(
                "99th percentile (with summary_latencies)",
                "s",
                (
                    (
                        "{{model}} {{version}}",
                        'nv_inference_request_summary_us{job=~"$job",model=~"$model",quantile="0.99"} / 1e6',
                    ),
                ),
            ),
        ),
    ),
    (
        "Batches and instances",
        (
            Panel(
                "Rows in a batch, mean",
                "short",
                (
                    (
                        "{{model}} {{version}}",
                        f"{_rate('nv_inference_count')} / {_rate('nv_inference_exec_count')}",
                    ),
                ),
            ),
            Panel(
                "Why batches were closed",
                "ops",
                (("{{model}} {{reason}}", _rate("trireme_batch_sealed_count", "sum by (model, reason)")),),
            ),
            Panel("Queued", "short", (("{{model}} {{version}}", f"{_BY} (nv_inference_pending_request_count{OF})"),)),
            Panel(
                "Instances, and their restarts in an hour",
                "short",
                (
                    ("{{model}} alive", f"sum by (model) (trireme_instance_count{OF})"),
                    ("{{model}} restarts", f"sum by (model) (increase(trireme_instance_restart_count{OF}[1h]))"),
                ),
            ),
        ),
    ),
    (
        "Machine",
        (
            Panel(
                "CPU and GPU",
                "percentunit",
                (
                    ("CPU {{instance}}", f"nv_cpu_utilization{SERVER}"),
                    ("GPU {{gpu_uuid}}", f"nv_gpu_utilization{SERVER}"),
                ),
            ),
            Panel(
                "Memory",
                "bytes",
                (
                    ("CPU {{instance}}", f"nv_cpu_memory_used_bytes{SERVER}"),
                    ("GPU {{gpu_uuid}}", f"nv_gpu_memory_used_bytes{SERVER}"),
                    ("requests {{instance}}", f"trireme_inflight_bytes{SERVER}"),
                ),
            ),
            Panel(
                "Response cache: share of hits",
                "percentunit",
                (("{{model}}", f"{_HITS} / ({_HITS} + {_MISSES})"),),
            ),
            Panel(
                "Event loop held up for a second or longer",
                "short",
                (("{{instance}}", f"increase(trireme_loop_stall_count{SERVER}{_RATE})"),),
            ),
        ),
    ),
)

QUEUE_SECONDS = "trireme_queue_seconds"
"""What a server is scaled by: the mean time of requests in its queues, over a minute, by pod."""

_QUEUED, _SUCCESSFUL = (
    f"sum by (namespace, pod) (rate(nv_inference_{each}[1m]))" for each in ("queue_duration_us", "request_success")
)

RECORDED = ((QUEUE_SECONDS, f"{_QUEUED} / ({_SUCCESSFUL} > 0) / 1e6"),)
"""(name, expression) of recorded series."""

_FAILED = 'sum by (job, model) (rate(nv_inference_request_failure{reason!="CANCELED"}[5m]))'

ALERTS = (
    Alert(
        "TriremeFailing",
        f"{_FAILED} / (sum by (job, model) (rate(nv_inference_request_success[5m])) + {_FAILED}) > 0.01",
        "5m",
        "critical",
        "More than 1 % of the requests to {{ $labels.model }} fail",
    ),
    Alert(
        "TriremeRefusing",
        'sum by (job, reason) (rate(trireme_refused_total{reason=~"queue_full|queue_timeout|model_share|budget|'
        'client_bytes|connection_limit|objective"}[5m])) > 0',
        "10m",
        "warning",
        "Requests are refused for want of room or time: {{ $labels.reason }}",
    ),
    Alert(
        "TriremeQueueing",
        "sum by (job, model) (rate(nv_inference_queue_duration_us[5m])) / "
        "(sum by (job, model) (rate(nv_inference_request_success[5m])) > 0) > "
        "2 * sum by (job, model) (rate(nv_inference_compute_infer_duration_us[5m])) / "
        "(sum by (job, model) (rate(nv_inference_request_success[5m])) > 0)",
        "10m",
        "warning",
        "Requests to {{ $labels.model }} wait for more than twice as long as they are computed",
    ),
    Alert(
        "TriremeInstanceRestarting",
        "sum by (job, model) (increase(trireme_instance_restart_count[15m])) > 3",
        "0m",
        "warning",
        "Instances of {{ $labels.model }} die again and again",
    ),
    Alert(
        "TriremeNoInstance",
        "sum by (job, model) (trireme_instance_count) == 0 and sum by (job, model) "
        "(nv_inference_pending_request_count) > 0",
        "1m",
        "critical",
        "No instance of {{ $labels.model }} is alive, and requests wait for one",
    ),
    Alert(
        "TriremeEventLoopHeldUp",
        "increase(trireme_loop_stall_count[10m]) > 0",
        "0m",
        "warning",
        "The event loop of {{ $labels.instance }} was held up for a second or longer",
    ),
)
