"""Does perf_analyzer, unmodified, count what the server counts?

Trireme serves the shipped models; perf_analyzer sends a known number of requests to each model, over HTTP, over gRPC
and on gRPC streams. What it reports (its own count, and the server's counts that it reads before and after) must agree
with what the statistics endpoint and the metrics port say has happened meanwhile. Exits with 1 if anything disagrees.

    python benchmarks/perf_analyzer_counts.py --perf-analyzer "perf_analyzer" [--requests 1000] \\
        [--models digits simple] [--protocols http grpc grpc_stream]
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from pathlib import Path

from load import ATTEMPTS, HungError, Protocol, Report, run_perf_analyzer
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table
from servers import Server, trireme

REPOSITORY = Path(__file__).parents[1] / "model_repository"

MISSED_SHARE = 0.1
"""Of all requests: what may be answered before perf_analyzer reads the server's counts for the first time."""

NAMES = ("requests", "failures", "inferences", "executions")
ASKED, CLIENT, SEEN = "asked for", "perf_analyzer, client", "perf_analyzer, server"
STATISTICS, METRICS = "statistics", "metrics"

Counts = dict[str, int]


def from_statistics(server: Server, model: str) -> Counts:
    record = server.statistics(model)
    return {
        "requests": record["inference_stats"]["success"]["count"],
        "failures": record["inference_stats"]["fail"]["count"],
        "inferences": record["inference_count"],
        "executions": record["execution_count"],
    }


def from_metrics(server: Server, model: str) -> Counts:
    families = {
        "nv_inference_request_success": "requests",
        "nv_inference_request_failure": "failures",
        "nv_inference_count": "inferences",
        "nv_inference_exec_count": "executions",
    }
    counts = dict.fromkeys(families.values(), 0)
    for family in text_string_to_metric_families(server.get("/metrics", metrics=True).decode()):
        for sample in family.samples:
            count = families.get(sample.name.removesuffix("_total"))  # the parser's addition
            if count is not None and sample.labels["model"] == model:
                counts[count] += int(sample.value)
    return counts


def from_report(report: Report) -> tuple[Counts, Counts]:
    """What perf_analyzer counted itself, and what it says that the server did."""
    client = report.counts
    seen = {
        "requests": client["successful request count"],
        "inferences": client["inference count"],
        "executions": client["execution count"],
    }
    return {"requests": client["request count"], "inferences": client["request count"]}, seen


def difference(after: Counts, before: Counts) -> Counts:
    return {name: count - before[name] for name, count in after.items()}


def count(
    options: argparse.Namespace, server: Server, model: str, concurrency: int, protocol: Protocol
) -> dict[str, Counts]:
    """Run perf_analyzer, several times if it hangs; the counts of all.

    Raises:
        SystemExit: it hangs every time.
    """
    for _ in range(ATTEMPTS):
        statistics, metrics = from_statistics(server, model), from_metrics(server, model)
        flags = ["--request-count", str(options.requests)]
        try:
            report = run_perf_analyzer(
                options.perf_analyzer,
                server,
                model,
                concurrency,
                *flags,
                protocol=protocol,
                timeout_s=options.timeout,
            )
        except HungError:
            continue
        client, seen = from_report(report)
        return {
            ASKED: {"requests": options.requests, "failures": 0, "inferences": options.requests},
            CLIENT: client,
            SEEN: seen,
            STATISTICS: difference(from_statistics(server, model), statistics),
            METRICS: difference(from_metrics(server, model), metrics),
        }
    raise SystemExit(f"perf_analyzer did not end within {options.timeout:g} s, {ATTEMPTS} times")


def agree(rows: dict[str, Counts]) -> bool:
    """Whether all counted the same, but for requests answered before perf_analyzer began to ask the server."""
    exact = (ASKED, CLIENT, STATISTICS, METRICS)
    if any(len({rows[row][name] for row in exact if name in rows[row]}) != 1 for name in NAMES):
        return False
    counted = rows[STATISTICS]
    return all(0 <= counted[name] - seen <= MISSED_SHARE * counted[name] for name, seen in rows[SEEN].items())


def show(console: Console, title: str, rows: dict[str, Counts]) -> None:
    table = Table(title=title)
    table.add_column("counted by")
    for name in NAMES:
        table.add_column(name, justify="right")
    for who, counts in rows.items():
        table.add_row(who, *(str(counts.get(name, "")) for name in NAMES))
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--perf-analyzer", default=os.environ.get("PERF_ANALYZER", "perf_analyzer"))
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--models", nargs="+", default=["digits", "simple"])
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16])
    names = [protocol.name.lower() for protocol in Protocol]
    parser.add_argument("--protocols", nargs="+", default=names, choices=names)
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds for perf_analyzer to end")
    options = parser.parse_args()
    console = Console()
    disagreements = 0
    with trireme(REPOSITORY, grpc=True) as server:
        for name, model, concurrency in itertools.product(options.protocols, options.models, options.concurrency):
            protocol = Protocol[name.upper()]
            rows = count(options, server, model, concurrency, protocol)
            show(console, f"{model} over {protocol.value}, concurrency {concurrency}", rows)
            if not agree(rows):
                disagreements += 1
                console.print("[red]they disagree")
    return 1 if disagreements else 0


if __name__ == "__main__":
    sys.exit(main())
