"""Python models: Trireme and the real Triton side by side, serving the same `model.py` files, in one run.

    python benchmarks/python_backend.py --triton-command "tritonserver" --perf-analyzer "perf_analyzer"
        [--models identity identity_large add_sub chain] [--protocols HTTP gRPC]

perf_analyzer puts load on one server, then on the other, and so on in turn (`identity.py` says how). The table at the
end has a ratio, Trireme's number by Triton's, in each row. Run it on a machine that has nothing else to do. Without
--triton-command, Trireme is measured alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from identity import IDLE_SHARE, Run, measure
from load import Protocol
from python_cases import CASES, Case, write_models
from rich.console import Console
from rich.table import Table
from servers import Server, machine, trireme, triton

PROTOCOLS = (Protocol.HTTP, Protocol.GRPC)
FIELDS = ("throughput", "p50_us", "p99_us", "cpu_us")
MORE_IS_BETTER = ("throughput",)
TABLE_COLUMNS = 160


@dataclass(frozen=True)
class Row:
    """What is measured on both servers."""

    case: Case
    protocol: Protocol
    concurrency: int

    def __str__(self) -> str:
        return f"{self.case.what}, {self.protocol.value}, concurrency {self.concurrency}"


def main() -> None:
    options = read_options()
    console = Console()
    before = machine()
    with ExitStack() as stack:
        repository = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_models(repository)
        servers = [stack.enter_context(trireme(repository, grpc=True))]
        if options.triton_command:
            servers.append(stack.enter_context(triton(options.triton_command, repository, grpc=True)))
        rows = [
            Row(case, protocol, concurrency)
            for case in CASES
            for protocol in PROTOCOLS
            for concurrency in case.concurrencies
            if case.model in options.models and protocol.value in options.protocols
        ]
        runs = {row: measure_row(console, row, servers, options) for row in rows}
    medians = {row: medians_of(of_row) for row, of_row in runs.items()}
    show(console, medians)
    console.print(f"{before['cores']} cores; load average {before['load_average'][0]} before")
    if options.output:
        result = {
            "machine": {"before": before, "after": machine()},
            "medians": {str(row): values for row, values in medians.items()},
            "runs": {str(row): [asdict(run) for run in of_row] for row, of_row in runs.items()},
        }
        options.output.write_text(json.dumps(result, indent=1) + "\n")


def measure_row(console: Console, row: Row, servers: list[Server], options: argparse.Namespace) -> list[Run]:
    """The servers in turn, so that both see the machine as it is."""
    runs: list[Run] = []
    for _ in range(options.alternations):
        for server in servers:
            others = [each for each in servers if each is not server]
            run = measure(server, others, row.concurrency, row.protocol, options, row.case.model)
            runs.append(run)
            numbers = f"{run.throughput:,.0f} infer/s, CPU {run.cpu_us:,.0f} µs/request"
            console.print(f"{row}: {run.server} {numbers}", soft_wrap=True)
            if run.others_cpu_share > IDLE_SHARE:
                console.print(f"  [red]the other server used {run.others_cpu_share:.0%} of a core meanwhile")
    return runs


def medians_of(runs: list[Run]) -> dict[str, dict[str, float]]:
    """By server, then by field."""
    medians: dict[str, dict[str, float]] = {}
    for server in dict.fromkeys(run.server for run in runs):
        own = [run for run in runs if run.server == server]
        medians[server] = {field: statistics.median(getattr(run, field) for run in own) for field in FIELDS}
    return medians


def show(console: Console, medians: dict[Row, dict[str, dict[str, float]]]) -> None:
    """Print the medians, and the first server's as shares of the second one's."""
    servers = next(iter(medians.values()))
    table = Table(title=f"Python models: {' / '.join(servers)}, medians", width=TABLE_COLUMNS)
    for heading in ("model", "protocol", "in flight"):
        table.add_column(heading)
    for heading in ("infer/s", "p50 µs", "p99 µs", "server CPU µs/request"):
        table.add_column(heading, justify="right")
    for row, by_server in medians.items():
        cells = [cell(field, [values[field] for values in by_server.values()]) for field in FIELDS]
        table.add_row(row.case.what, row.protocol.value, str(row.concurrency), *cells)
    console.print(table, crop=False, soft_wrap=True)


def cell(field: str, values: list[float]) -> str:
    """What each server has, and the ratio: green if the first is ahead, red if not."""
    text = " / ".join(f"{value:,.0f}" for value in values)
    if len(values) == 1:
        return text
    ratio = values[0] / values[1]
    ahead = ratio > 1 if field in MORE_IS_BETTER else ratio < 1
    return f"{text}  [{'green' if ahead else 'red'}]{ratio:.2f}"


def read_options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triton-command", default=os.environ.get("TRITON_COMMAND"), help="or $TRITON_COMMAND")
    parser.add_argument("--perf-analyzer", default=os.environ.get("PERF_ANALYZER", "perf_analyzer"))
    names = [case.model for case in CASES]
    parser.add_argument("--models", nargs="+", choices=names, default=names)
    protocols = [protocol.value for protocol in PROTOCOLS]
    parser.add_argument("--protocols", nargs="+", choices=protocols, default=protocols)
    parser.add_argument("--alternations", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="a measurement window; there are three in a run")
    parser.add_argument("--output", type=Path, help="write every run and the medians there, as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
