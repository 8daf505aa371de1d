"""How long one client's large JSON document holds up the event loop, and another client.

A server in this process gets a document of numbers (64 MiB by default), reads it, and answers with as many numbers. For
each task that the event loop runs meanwhile, its steps are measured: the CPU time of the loop's thread from one
suspension to the next, and the same by the clock, in which waiting for the interpreter's lock counts as well, and
whatever else the machine does. A second client, a process of its own, asks for small things every 4 ms.

    python benchmarks/large_json.py [--mib 64] [--repeat 3] [--output large_json.json]

The row "nothing" has no document: it says how much of the clock's times is the machine.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import trio
from attack_clients import Seen, read_answer
from rich.console import Console
from rich.table import Table
from servers import machine

from trireme.actors import InferenceServer
from trireme.api.http.app import HttpApplication, HttpService
from trireme.api.http.exchange import HttpOptions
from trireme.api.sockets.service import ServiceOptions
from trireme.engine.backends.interface import Backend, InstanceSpec, LoadedModel, ModelFiles, ModelInstance
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.config.model import ModelConfig
from trireme.engine.datatypes import FP32
from trireme.engine.job import ExecutionBatch
from trireme.engine.options import ServerOptions
from trireme.engine.tensor import Tensor

SWITCH_INTERVAL_S = 0.0005
"""As `trireme serve` has it."""

_NUMBER_BYTES = 11
_QUIET_S = 2.0
_CONFIG = """
backend: "identity"
max_batch_size: 0
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1, -1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1, -1 ] }
instance_group { kind: KIND_CPU count: 2 }
"""


class Identity(Backend, LoadedModel, ModelInstance):
    """OUTPUT0 is INPUT0."""

    name = "identity"

    def __init__(self, options: Mapping[str, str]) -> None:
        Backend.__init__(self, options)

    def load(self, config: ModelConfig, files: ModelFiles) -> LoadedModel:
        return self

    def create_instance(self, spec: InstanceSpec) -> ModelInstance:
        return self

    def execute(self, batch: ExecutionBatch) -> None:
        for job in batch.jobs:
            tensor = job.inputs["INPUT0"]
            job.respond(job.response([Tensor("OUTPUT0", FP32, tensor.shape, array=tensor.array)]))


class Steps(trio.abc.Instrument):
    """The steps of all tasks of the event loop, and what the loop does between two of them.

    Attributes:
        cpu_ms, clock_ms: the longest step, and whose.
        passes_ms: the longest pass of the loop, by the clock, without the time that it waits for something to do.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.cpu_ms = self.clock_ms = self.passes_ms = 0.0
        self.task = ""
        self._cpu_s = time.thread_time()
        self._clock_s = self._woke_s = time.perf_counter()

    def before_io_wait(self, timeout: float) -> None:
        self.passes_ms = max(self.passes_ms, (time.perf_counter() - self._woke_s) * 1e3)

    def after_io_wait(self, timeout: float) -> None:
        self._woke_s = time.perf_counter()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._cpu_s, self._clock_s = time.thread_time(), time.perf_counter()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        cpu_ms = (time.thread_time() - self._cpu_s) * 1e3
        self.clock_ms = max(self.clock_ms, (time.perf_counter() - self._clock_s) * 1e3)
        if cpu_ms > self.cpu_ms:
            self.cpu_ms, self.task = cpu_ms, task.name


@dataclass
class Row:
    """What a document has done; milliseconds, the longest of each.

    Attributes:
        took_s: from sending it to the whole answer.
        status: of the answer.
    """

    what: str
    took_s: float
    status: str
    step_cpu_ms: float
    step_task: str
    step_clock_ms: float
    pass_clock_ms: float
    seen: Seen


def document(nbytes: int) -> bytes:
    """An infer request with about so many bytes of numbers."""
    count = nbytes // _NUMBER_BYTES
    numbers = np.random.default_rng(0).random(count).round(_NUMBER_BYTES - 3)
    data = orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY)
    text = b'{"inputs":[{"name":"INPUT0","shape":[1,%d],"datatype":"FP32","data":%b}]}' % (count, data)
    head = b"POST /v2/models/small/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(text)
    return head + text


def send(port: int, path: str) -> None:
    """The client, a process of its own: sends what the file holds, and prints the answer's status line."""
    import socket  # only here

    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(Path(path).read_bytes())
        print(read_answer(client).split(b"\r\n", 1)[0].decode())


async def measure(port: int, steps: Steps, file: Path | None, what: str) -> Row:
    """One document, or none, and a second client."""
    here = Path(__file__)
    asker = [sys.executable, str(here.with_name("attack_clients.py")), str(port)]
    async with trio.open_nursery() as nursery:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        client: trio.Process = await nursery.start(partial(trio.run_process, asker, **pipes))  # type: ignore[arg-type]
        assert client.stdin is not None
        assert client.stdout is not None
        await client.stdout.receive_some()
        steps.reset()
        began_s = trio.current_time()
        status = ""
        if file is None:
            await trio.sleep(_QUIET_S)
        else:
            sender = [sys.executable, str(here), "--send", str(port), str(file)]
            status = (await trio.run_process(sender, capture_stdout=True)).stdout.decode().strip()
        took_s = trio.current_time() - began_s
        found = steps.cpu_ms, steps.task, steps.clock_ms, steps.passes_ms
        await client.stdin.send_all(b"done\n")
        said = b"".join([piece async for piece in client.stdout])
    return Row(what, took_s, status, *found, Seen(**json.loads(said)))


async def run(mib: int, repeat: int) -> list[Row]:
    steps = Steps()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "document"
        file.write_bytes(document(mib << 20))
        repository = Path(folder) / "repository"
        (repository / "small" / "1").mkdir(parents=True)
        (repository / "small" / "config.pbtxt").write_text(_CONFIG)
        backends = BackendRegistry(lambda _name: {}, {"identity": Identity})
        options = ServerOptions(model_repository=(repository,))
        async with InferenceServer(options, backends=backends) as server, trio.open_nursery() as nursery:
            limits = HttpOptions(max_input_bytes=1 << 30)
            service = HttpService(HttpApplication(server, limits), ServiceOptions(("127.0.0.1:0",)))
            (port,) = await nursery.start(service.serve)
            trio.lowlevel.add_instrument(steps)
            for _ in range(repeat):
                rows.append(await measure(port, steps, None, "nothing"))
                rows.append(await measure(port, steps, file, f"JSON, {mib} MiB"))
            service.close()
    return rows


def show(rows: list[Row]) -> Table:
    names = ("document", "took s", "longest step, CPU ms", "of", "by the clock", "longest pass", "client waited ms")
    table = Table(*names)
    for row in rows:
        times = [f"{value:.1f}" for value in (row.step_cpu_ms, row.step_clock_ms, row.pass_clock_ms)]
        task = row.step_task.rpartition(".")[2]
        table.add_row(row.what, f"{row.took_s:.1f}", times[0], task, *times[1:], f"{row.seen.longest_ms:.1f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--send", nargs=2, metavar=("PORT", "FILE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.send is not None:
        send(int(given.send[0]), given.send[1])
        return
    logging.disable(logging.WARNING)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    rows = trio.run(run, given.mib, given.repeat)
    Console().print(show(rows))
    if given.output is not None:
        document_: dict[str, Any] = {"machine": machine(), "rows": [asdict(row) for row in rows]}
        given.output.write_text(json.dumps(document_, indent=1) + "\n")


if __name__ == "__main__":
    main()
