"""The same toy service in Trireme, LitServe and BentoML: lines, start, throughput and latency (docs/comparison.md).

    PYTHONPATH=tests/support python benchmarks/comparison.py [--seconds 5] [--alternations 3]

Takes the programs from docs/comparison.md, installs LitServe and BentoML into environments of their own, and puts
closed loops of 1 and 16 clients on one server after the other, so that all see the same machine. Prints a table of
medians.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.loop import Load, put_load
from bench.peers.base import Call, is_answered, json_call
from bench.peers.environment import install
from documents import steps
from servers import Server, free_port, serving

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "comparison.md"
CACHE = Path.home() / ".cache" / "trireme-comparison"
ROW = [5.1, 3.5, 1.4, 0.2]
CLIENTS = (1, 16)


@dataclass(frozen=True)
class Contestant:
    """A server of the toy service.

    Attributes:
        program: its name on the page.
        packages: what pip installs for it; none for what is in this environment.
        command: starts it, from the folder with its program's executables and a port.
        health: a path that is answered with 200 when it serves.
        call: a request for one row.
    """

    title: str
    program: str
    packages: Sequence[str]
    command: Callable[[Path, int], list[str]]
    health: str
    call: Call


def _trireme(binaries: Path, port: int) -> list[str]:
    ports = ["--http-port", str(port), "--allow-grpc", "false", "--allow-metrics", "false"]
    return [str(binaries / "trireme"), "serve", "trireme_app.py", "--http-address", "127.0.0.1", *ports]


CONTESTANTS = (
    Contestant(
        "Trireme",
        "trireme_app",
        (),
        _trireme,
        "/v2/health/ready",
        json_call("/v2/models/iris/generate", {"measurements": ROW}),
    ),
    Contestant(
        "LitServe",
        "litserve_app",
        ("litserve==0.2.19", "scikit-learn", "joblib"),
        lambda binaries, port: [str(binaries / "python"), "litserve_app.py", str(port)],
        "/health",
        json_call("/predict", {"measurements": ROW}),
    ),
    Contestant(
        "BentoML",
        "bentoml_app",
        ("bentoml==1.4.40", "scikit-learn", "joblib"),
        lambda binaries, port: [str(binaries / "bentoml"), "serve", "bentoml_app:Iris", "--port", str(port)],
        "/readyz",
        json_call("/classify", {"measurements": [ROW]}),
    ),
)


def programs() -> dict[str, str]:
    """The page's files, by their names."""
    return {step.name: step.text for step in steps(PAGE.read_text(encoding="utf-8")) if step.kind == "file"}


def code_lines(text: str) -> int:
    """Lines that are not empty."""
    return sum(bool(line.strip()) for line in text.splitlines())


@contextmanager
def serve(contestant: Contestant, binaries: Path, folder: Path) -> Iterator[Server]:
    port = free_port()
    with serving(
        contestant.title,
        contestant.command(binaries, port),
        port,
        is_ready=lambda server: is_answered(server, contestant.health),
        environment={"BENTOML_DO_NOT_TRACK": "True", "PATH": f"{binaries}:/usr/bin:/bin"},
        folder=folder,
    ) as server:
        yield server


def measure(contestant: Contestant, binaries: Path, folder: Path, seconds: float) -> dict[str, float]:
    """Seconds until it serves; throughput and latencies in microseconds, by clients."""
    found: dict[str, float] = {}
    with serve(contestant, binaries, folder) as server:
        found["start_s"] = server.ready_s
        for clients in CLIENTS:
            load = Load(server.http_port, "http", [contestant.call.encode()], clients, clients, clients, 1.0, seconds)
            figures = put_load(load, server.cpu_s, timeout_s=seconds + 60.0)
            found.update({f"{name}_{clients}": value for name, value in figures.items()})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement; default %(default)s")
    parser.add_argument("--alternations", type=int, default=3, help="rounds over all servers; default %(default)s")
    given = parser.parse_args()
    own = Path(sys.executable).parent
    binaries = {
        each.title: install(CACHE / each.program, each.packages) if each.packages else own for each in CONTESTANTS
    }
    written = programs()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, text in written.items():
            (folder / name).write_text(text, encoding="utf-8")
        subprocess.run([sys.executable, "train.py"], cwd=folder, check=True)
        rounds: dict[str, list[dict[str, float]]] = {each.title: [] for each in CONTESTANTS}
        for _ in range(given.alternations):
            for each in CONTESTANTS:
                rounds[each.title].append(measure(each, binaries[each.title], folder, given.seconds))
    print(
        "| | Lines | Ready after | 1 client: p50 | 16 clients: requests/s | p50 | p99 |\n|---|---|---|---|---|---|---|"
    )
    for each in CONTESTANTS:
        measured = rounds[each.title]
        middle = {name: statistics.median(one[name] for one in measured) for name in measured[0]}
        print(
            f"| {each.title} | {code_lines(written[f'{each.program}.py'])} | {middle['start_s']:.1f} s "
            f"| {middle['p50_us_1'] / 1000:.2f} ms | {middle['throughput_16']:,.0f} "
            f"| {middle['p50_us_16'] / 1000:.1f} ms | {middle['p99_us_16'] / 1000:.1f} ms |"
        )


if __name__ == "__main__":
    main()
