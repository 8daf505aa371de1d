"""What the worst that clients can send does to the server, and to another client.

Each attack strikes a fresh server with a budget of 256 MiB for requests in flight. Meanwhile a second client asks for
small things every 4 ms, on a connection that stays and on new ones. The table shows for each attack: what its client
was answered, the CPU seconds that it cost the server and its models' processes, their peak memory above what they had
before, and the longest time that the second client waited.

    python benchmarks/attack.py [--only WORDS] [--output attack.json] [--program "/elsewhere/trireme serve"]

Exits with 1 if the second client waited for longer than 50 ms or a request of it failed, if the server took more memory
than twice its budget, or if it has died. On a busy machine the second client waits longer: the row "no attack" says how
long.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from attack_cases import MIB, Attack, attacks, write_models
from attack_clients import Seen
from rich.console import Console
from rich.table import Table
from servers import Server, machine, trireme

BUDGET_BYTES = 256 * MIB
LONGEST_MS = 50.0
_SAMPLE_S = 0.02
_AFTERWARDS_S = 0.5


@dataclass
class Result:
    """What an attack has done.

    Attributes:
        outcome: what its client got.
        cpu_s: of the server and its children.
        memory_mib: highest, above what it was before.
        seen: by the second client.
        alive: the server is still there.
    """

    name: str
    outcome: str
    cpu_s: float
    memory_mib: float
    seen: Seen
    alive: bool

    @property
    def complaints(self) -> list[str]:
        """What should not have happened."""
        found = []
        if self.seen.longest_ms > LONGEST_MS:
            found.append(f"waited {self.seen.longest_ms:.0f} ms")
        if self.memory_mib > 2 * BUDGET_BYTES / MIB:
            found.append(f"{self.memory_mib:.0f} MiB")
        if self.seen.failures:
            found.append(f"{self.seen.failures} requests of another client failed")
        if not self.alive:
            found.append("the server has died")
        return found


class Memory:
    """The memory of a server and its children while a block runs.

    Attributes:
        peak_bytes: the highest sum.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self.peak_bytes = self.before_bytes = self._now()

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _now(self) -> int:
        server = self._server.process
        total = 0
        with contextlib.suppress(psutil.NoSuchProcess):
            total = server.memory_info().rss
            for process in server.children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    memory = process.memory_info()
                    total += memory.rss - memory.shared  # what a model shares with the server is the server's as well
        return total

    def _sample(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            self.peak_bytes = max(self.peak_bytes, self._now())


@contextlib.contextmanager
def second_client(port: int) -> Iterator[Seen]:
    """Asks while the block runs; what it has seen is there afterwards."""
    arguments = [sys.executable, str(Path(__file__).with_name("attack_clients.py")), str(port)]
    seen = Seen()
    client = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    client.stdout.readline()
    try:
        yield seen
    finally:
        time.sleep(_AFTERWARDS_S)
        said, _ = client.communicate("done\n", timeout=60)
        for name, value in json.loads(said).items():
            setattr(seen, name, value)


def strike(attack: Attack, repository: Path, program: list[str] | None) -> Result:
    """Starts a server, attacks it, and looks."""
    write_models(repository, attack.models)
    flags = ("--max-inflight-bytes", str(BUDGET_BYTES), *attack.flags)
    with trireme(repository, *flags, grpc=True, program=program) as server:
        server.get("/v2/health/ready")
        ends = attack.name.startswith("stop")
        before_s = server.cpu_s()
        with (
            Memory(server) as memory,
            contextlib.nullcontext(Seen()) if ends else second_client(server.http_port) as seen,
        ):
            outcome = attack.run(server)
        alive = ends or server.process.is_running()
        cpu_s = 0.0 if ends or not alive else server.cpu_s() - before_s
    return Result(attack.name, outcome, cpu_s, (memory.peak_bytes - memory.before_bytes) / MIB, seen, alive)


def show(results: list[Result]) -> Table:
    """A row for each attack."""
    table = Table("attack", "outcome", "CPU s", "memory MiB", "second client waited ms", "of", "failed")
    for result in results:
        row = [result.name, result.outcome, f"{result.cpu_s:.2f}", f"{result.memory_mib:.0f}"]
        row += [f"{result.seen.longest_ms:.1f}", f"{result.seen.requests:,}", str(result.seen.failures)]
        table.add_row(*row, style="red" if result.complaints else None)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="attacks whose name holds this")
    parser.add_argument("--output", type=Path, help="where to write the results, as JSON")
    parser.add_argument("--program", type=shlex.split, help="starts the server, if that is another one")
    options = parser.parse_args()
    models = Path(__file__).parents[1] / "model_repository"
    results = []
    console = Console(stderr=True)
    for attack in attacks():
        if options.only.lower() not in attack.name.lower():
            continue
        with tempfile.TemporaryDirectory() as folder:
            repository = Path(folder)
            shutil.copytree(models / "identity_fp32", repository / "small")
            config = repository / "small" / "config.pbtxt"
            config.write_text(config.read_text().replace('name: "identity_fp32"\n', ""))
            results.append(strike(attack, repository, options.program))
        console.print(f"{attack.name}: {results[-1].outcome}  {', '.join(results[-1].complaints)}")
    Console(width=160).print(show(results))
    if options.output is not None:
        told = [{**asdict(result), "complaints": result.complaints} for result in results]
        options.output.write_text(json.dumps({"machine": machine(), "attacks": told}, indent=1) + "\n")
    if any(result.complaints for result in results):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
