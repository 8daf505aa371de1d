"""An hour's life of a server in ten minutes: does anything grow?

Trireme serves copies of the shipped models while clients of every kind come and go (`soak_clients.py`): inferences over
HTTP and gRPC, sequences, cancellations, bytes that are no request, clients that dribble or stop reading, shared memory,
models that are loaded again and again, scrapes. Memory, trio tasks, descriptors and threads are sampled; each is flat
if its median in the last quarter of the time is not above that in the second. Exits with 1 if one is not, if a client
was not given what it should have been given, or if something is left when all clients have gone.

    python benchmarks/soak.py [--minutes 10] [--output soak]

writes ``soak.svg`` and ``soak.json``. Give it a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil
from servers import Server, trireme
from soak_clients import PATIENCE_S, Action, Clients
from soak_report import as_json, draw, growths, left_behind
from soak_server import DIGITS

ROOT = Path(__file__).parents[1]
MODELS = (
    *("simple", "simple_identity", "digits", "digits_decode", "digits_label", "digits_pipeline", "running_sum"),
    "identity_fp32",
)
FLAGS = (
    *("--model-control-mode", "explicit", "--load-model", "*", "--allow-client-shm", "true"),
    *("--cache-config", "local,size=1000000", "--metrics-config", "summary_latencies=true"),
)
MOST_COMPLAINTS = 50


class Soak:
    """One run.

    Attributes:
        samples: see `soak_report.Sample`.
        counts: how often each action was done.
        complaints: what went wrong, and how often.
    """

    def __init__(self, server: Server, count_file: Path) -> None:
        self._server = server
        self._count_file = count_file
        self._began_s = 0.0
        self.samples: list[dict[str, float]] = []
        self.counts: Counter[str] = Counter()
        self.complaints: Counter[str] = Counter()

    def sample(self) -> dict[str, float]:
        """What the server has now, with the processes of its Python models."""
        process = self._server.process
        found = {"at_s": time.monotonic() - self._began_s, "rss_bytes": 0.0, "descriptors": 0.0, "threads": 0.0}
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess), each.oneshot():
                found["rss_bytes"] += each.memory_info().rss
                found["descriptors"] += each.num_fds()
                found["threads"] += each.num_threads()
        found["tasks"] = int(self._count_file.read_bytes()[:DIGITS])
        return found

    async def run(self, repository: Path, duration_s: float, only: Sequence[str], seed: int) -> None:
        """Let the clients do what they do for so long, and each thing once; only these things, if any are named."""
        self._began_s = time.monotonic()
        async with Clients(self._server, repository, seed) as clients:
            chance = random.Random(seed)
            tasks = [
                asyncio.create_task(self._keep_doing(name, action, rest_s, chance))
                for name, (action, rest_s) in clients.actions().items()
                if not only or name in only
            ]
            self.counts.update({name: 0 for name in clients.actions() if not only or name in only})
            interval_s = min(1.0, duration_s / 40)
            latest_s = duration_s + PATIENCE_S
            while (at_s := time.monotonic() - self._began_s) < duration_s or (
                at_s < latest_s and not all(self.counts.values())
            ):
                self.samples.append(self.sample())
                await asyncio.sleep(interval_s)
            left = set(tasks)
            while left:  # a client library may take a cancellation for an error of its own, and the task goes on
                for task in left:
                    task.cancel()
                _, left = await asyncio.wait(left, timeout=1.0)

    async def _keep_doing(self, name: str, action: Action, rest_s: float, chance: random.Random) -> None:
        while True:
            try:
                await action()
                self.counts[name] += 1
            except Exception as error:  # noqa: BLE001 - whatever goes wrong is what this looks for
                if len(self.complaints) < MOST_COMPLAINTS:
                    self.complaints[f"{name}: {type(error).__name__}: {error}"[:300]] += 1
            await asyncio.sleep(rest_s * 2 * chance.random())


def write_repository(target: Path) -> None:
    """The shipped models, one that uses the response cache and warms up, and one to be unloaded."""
    for name in MODELS:
        shutil.copytree(ROOT / "model_repository" / name, target / name)
    for copy, name in (("cached", "identity_fp32"), ("spare", "simple")):
        shutil.copytree(target / name, target / copy)
        config = target / copy / "config.pbtxt"
        config.write_text(config.read_text().replace(f'name: "{name}"', f'name: "{copy}"'))
    with (target / "cached" / "config.pbtxt").open("a") as file:
        file.write("response_cache { enable: true }\n")
        file.write('model_warmup { name: "w" batch_size: 4 inputs { key: "INPUT0" value {\n')
        file.write("  data_type: TYPE_FP32 dims: [ 16 ] random_data: true } } }\n")


def soak(minutes: float, rest_s: float, only: Sequence[str], seed: int) -> tuple[Soak, list[str]]:
    """Run it.

    Args:
        rest_s: how long there is no load, before it and after it.

    Returns:
        The run, and what was found when all clients had gone.
    """
    with tempfile.TemporaryDirectory() as directory:
        repository, count_file = Path(directory) / "models", Path(directory) / "tasks"
        write_repository(repository)
        program = (sys.executable, str(Path(__file__).with_name("soak_server.py")), str(count_file))
        with trireme(repository, *FLAGS, grpc=True, program=program) as server:
            run = Soak(server, count_file)
            time.sleep(rest_s)
            before = run.sample()
            with contextlib.suppress(KeyboardInterrupt):
                asyncio.run(run.run(repository, minutes * 60, only, seed))
            time.sleep(rest_s)
            found = left_behind(before, run.sample())
            metrics = server.get("/metrics", metrics=True).decode().splitlines()
            found += [f"never done: {name}" for name, count in run.counts.items() if not count]
            found += [line for line in metrics if line.startswith("trireme_inflight_") and not line.endswith(" 0")]
    return run, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--output", default="soak", help="names of the files, without their endings")
    parser.add_argument("--rest", type=float, default=3.0, help="seconds without clients before and after the load")
    parser.add_argument("--only", nargs="*", default=(), help="actions to do, by name; all if none is given")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    run, found = soak(options.minutes, options.rest, options.only, options.seed)
    report = as_json(run.samples, run.counts, run.complaints)
    Path(f"{options.output}.json").write_text(json.dumps({**report, "left_behind": found}, indent=1))
    Path(f"{options.output}.svg").write_text(draw(run.samples))
    for name, count in sorted(run.counts.items()):
        print(f"{count:9,} {name}")
    for complaint, count in run.complaints.most_common():
        print(f"{count:9,} times {complaint}")
    for line in (*growths(run.samples), *found):
        print(line)
    good = all(growth.flat for growth in growths(run.samples)) and not found and not run.complaints
    print("flat" if good else "NOT FLAT, or not as it should be: see above")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
