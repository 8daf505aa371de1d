"""Small requests: Trireme and the real Triton side by side, on the same machine, in one run.

What `identity_http.py` and `identity_grpc.py` have in common. Both servers serve an identity model of FP32[16] (batches
of up to 64, dynamic batching, one instance): Trireme the shipped `identity_fp32` on ONNX Runtime with one thread, the
real Triton an equal one on its python backend. perf_analyzer puts load on one, then on the other, and so on in turn;
while one is measured the others must be idle, which is checked by their CPU time. The medians are compared. A third
server may be Trireme at another commit (`--earlier`), started from an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from load import ATTEMPTS, HungError, Protocol, run_perf_analyzer
from rich.console import Console
from rich.table import Table
from servers import Server, machine, trireme, triton, write_identity

MODEL = "identity_fp32"
REPOSITORY = Path(__file__).parents[1] / "model_repository"
IDLE_SHARE = 0.03
"""Of one core: what a server that is not being measured may use (it gathers metrics)."""


@dataclass(frozen=True)
class Run:
    """One server, measured once.

    Attributes:
        cpu_us: the server's CPU time for each request, warm-up included in both.
        others_cpu_share: of one core, used meanwhile by the other server.
    """

    server: str
    concurrency: int
    throughput: float
    p50_us: float
    p99_us: float
    cpu_us: float
    others_cpu_share: float


def measure(
    server: Server,
    others: Iterable[Server],
    concurrency: int,
    protocol: Protocol,
    options: argparse.Namespace,
    model: str = MODEL,
) -> Run:
    """One run; another one if perf_analyzer hangs, which it does now and then, with either server.

    Raises:
        SystemExit: it hangs every time.
    """
    others = list(others)
    for _ in range(ATTEMPTS):
        try:
            return _measure(server, others, concurrency, protocol, options, model)
        except HungError:
            continue
    raise SystemExit(f"perf_analyzer did not end, {ATTEMPTS} times")


def _measure(
    server: Server,
    others: list[Server],
    concurrency: int,
    protocol: Protocol,
    options: argparse.Namespace,
    model: str,
) -> Run:
    requests_before = server.statistics(model)["inference_stats"]["success"]["count"]
    cpu_before_s = server.cpu_s()
    others_before_s = sum(other.cpu_s() for other in others)
    began_s = time.monotonic()
    flags = ["--measurement-interval", str(round(options.seconds * 1000)), "--percentile", "50"]
    flags += ["--stability-percentage", "999", "--max-trials", "3"]
    report = run_perf_analyzer(
        options.perf_analyzer,
        server,
        model,
        concurrency,
        *flags,
        protocol=protocol,
        timeout_s=30 + 10 * options.seconds,
    )
    wall_s = time.monotonic() - began_s
    requests = server.statistics(model)["inference_stats"]["success"]["count"] - requests_before
    return Run(
        server.name,
        concurrency,
        report.throughput,
        report.p50_us,
        report.p99_us,
        (server.cpu_s() - cpu_before_s) / requests * 1e6,
        (sum(other.cpu_s() for other in others) - others_before_s) / wall_s,
    )


def median(runs: list[Run], server: str, concurrency: int, field: str) -> float:
    return statistics.median(
        getattr(run, field) for run in runs if (run.server, run.concurrency) == (server, concurrency)
    )


def show(
    console: Console, runs: list[Run], servers: list[str], concurrencies: list[int], protocol: Protocol
) -> dict[str, Any]:
    """Print the medians; the same as plain values."""
    table = Table(title=f"{MODEL} over {protocol.value}, medians")
    for heading in ("concurrency", "server", "infer/s", "ratio", "p50 µs", "p99 µs", "server CPU µs/request"):
        table.add_column(heading, justify="left" if heading == "server" else "right")
    medians: dict[str, Any] = {}
    for concurrency in concurrencies:
        base = median(runs, servers[-1], concurrency, "throughput")
        for server in servers:
            fields = ("throughput", "p50_us", "p99_us", "cpu_us")
            values = {field: median(runs, server, concurrency, field) for field in fields}
            values["ratio"] = values["throughput"] / base
            medians[f"{server}, concurrency {concurrency}"] = values
            table.add_row(
                str(concurrency),
                server,
                f"{values['throughput']:,.0f}",
                f"{values['ratio']:.2f}",
                *(f"{values[field]:,.0f}" for field in fields[1:]),
            )
    console.print(table)
    return medians


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that `compare` needs."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--triton-command", default=os.environ.get("TRITON_COMMAND"), help="or $TRITON_COMMAND")
    result.add_argument("--perf-analyzer", default=os.environ.get("PERF_ANALYZER", "perf_analyzer"))
    result.add_argument("--earlier", help="starts Trireme at another commit, as 'DIR/.venv/bin/trireme serve'")
    result.add_argument("--alternations", type=int, default=5)
    result.add_argument("--seconds", type=float, default=2.0, help="a measurement window; there are three in a run")
    result.add_argument("--concurrency", type=int, nargs="+", default=[16, 1])
    result.add_argument("--output", type=Path, help="write every run and the medians there, as JSON")
    return result


def compare(options: argparse.Namespace, protocol: Protocol) -> None:
    """Measure the servers in turn; print and write what came out."""
    console = Console()
    before = machine()
    runs: list[Run] = []
    grpc = protocol is not Protocol.HTTP
    with ExitStack() as stack:
        servers = [stack.enter_context(trireme(REPOSITORY, grpc=grpc))]
        if options.earlier:
            program = shlex.split(options.earlier)
            servers.append(stack.enter_context(trireme(REPOSITORY, grpc=grpc, program=program, name="earlier")))
        if options.triton_command:
            repository = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            write_identity(repository, MODEL, 16, max_batch_size=64)
            servers.append(stack.enter_context(triton(options.triton_command, repository, grpc=grpc)))
        for concurrency in options.concurrency:
            for _ in range(options.alternations):
                for server in servers:
                    others = (each for each in servers if each is not server)
                    run = measure(server, others, concurrency, protocol, options)
                    runs.append(run)
                    console.print(f"{run.server}, concurrency {concurrency}: {run.throughput:,.0f} infer/s")
                    if run.others_cpu_share > IDLE_SHARE:
                        console.print(f"  [red]the other servers used {run.others_cpu_share:.0%} of a core meanwhile")
        medians = show(console, runs, [server.name for server in servers], options.concurrency, protocol)
    machines = {"before": before, "after": machine()}
    console.print(f"{before['cores']} cores; load average {before['load_average'][0]} before")
    if options.output:
        result = {"machine": machines, "medians": medians, "runs": [asdict(run) for run in runs]}
        options.output.write_text(json.dumps(result, indent=1) + "\n")
