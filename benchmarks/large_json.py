"""What other clients notice of large JSON documents, and how long those hold up the event loop.

A server in this process gets documents (of 64 MiB by default), reads them, and answers with as many values: numbers,
numbers in nested arrays, strings, and numbers with a NaN among them, which only the strict reader reads. A second
client, a process of its own, asks for small things every 4 ms: what it waits for is what others notice. For each task
that the event loop runs meanwhile, its steps are measured: the CPU time of the loop's thread from one suspension to the
next, and the same by the clock, in which waiting for the interpreter's lock counts as well.

    python benchmarks/large_json.py [--only numbers nested strings strict] [--mib 64] [--count 3] [--at-once 1]
                                    [--output large_json.json]

The rows "nothing" have no document: they say how much of the times is the machine.
"""

from __future__ import annotations

import argparse
import json
import logging
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
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
from trireme.engine.job import ExecutionBatch
from trireme.engine.options import ServerOptions

SWITCH_INTERVAL_S = 0.0005
"""As `trireme serve` has it."""

_NUMBER_BYTES = 11
_ROW = 100
_STRING_BYTES = 200
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
            job.respond(job.response([tensor.renamed("OUTPUT0", tensor.shape)]))


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
    """What documents have done; milliseconds, the longest of each.

    Attributes:
        took_s: from sending the first to the whole answer to the last.
        answers: how many of which status line.
    """

    what: str
    took_s: float
    answers: dict[str, int]
    step_cpu_ms: float
    step_task: str
    step_clock_ms: float
    pass_clock_ms: float
    seen: Seen


def numbers(nbytes: int) -> tuple[str, int, bytes]:
    count = nbytes // _NUMBER_BYTES
    values = np.random.default_rng(0).random(count).round(_NUMBER_BYTES - 3)
    return "FP32", count, orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)


def nested(nbytes: int) -> tuple[str, int, bytes]:
    rows = nbytes // (_NUMBER_BYTES * _ROW)
    values = np.random.default_rng(0).random((rows, _ROW)).round(_NUMBER_BYTES - 3)
    return "FP32", rows * _ROW, orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)


def strings(nbytes: int) -> tuple[str, int, bytes]:
    count = nbytes // (_STRING_BYTES + 3)
    return "BYTES", count, orjson.dumps([f"{number:0{_STRING_BYTES}}" for number in range(count)])


def strict(nbytes: int) -> tuple[str, int, bytes]:
    datatype, count, data = numbers(nbytes)
    return datatype, count + 1, data[:-1] + b",NaN]"


DOCUMENTS = {each.__name__: each for each in (numbers, nested, strings, strict)}


def document(kind: str, nbytes: int) -> bytes:
    """An infer request with about so many bytes of data."""
    datatype, count, data = DOCUMENTS[kind](nbytes)
    model = "text" if datatype == "BYTES" else "small"
    text = b'{"inputs":[{"name":"INPUT0","shape":[1,%d],"datatype":"%b","data":%b}]}' % (count, datatype.encode(), data)
    head = b"POST /v2/models/%b/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    return head % (model.encode(), len(text)) + text


def send(port: int, path: str, count: int) -> None:
    """A client, a process of its own: says when it is ready, and when it is told to, sends what the file holds, so many
    times, and prints the answers' status lines."""
    data = Path(path).read_bytes()
    with socket.create_connection(("127.0.0.1", port)) as client:
        print("ready", flush=True)
        sys.stdin.readline()
        for _ in range(count):
            client.sendall(data)
            print(read_answer(client).split(b"\r\n", 1)[0].decode())


@dataclass
class Load:
    """Documents, or none if there is no file: `count` one after the other, `at_once` of such clients."""

    what: str
    file: Path | None = None
    count: int = 0
    at_once: int = 1


async def _started(nursery: trio.Nursery, *command: object) -> trio.Process:
    """A client that has said that it is ready."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    words = [sys.executable, *map(str, command)]
    client: trio.Process = await nursery.start(partial(trio.run_process, words, **pipes))  # type: ignore[arg-type]
    assert client.stdout is not None
    await client.stdout.receive_some()
    return client


async def _said(client: trio.Process) -> bytes:
    """What a client says when it is told to go on, until its end."""
    assert client.stdin is not None
    assert client.stdout is not None
    await client.stdin.send_all(b"\n")
    return b"".join([piece async for piece in client.stdout])


async def measure(port: int, steps: Steps, load: Load) -> Row:
    """A load, and a second client."""
    here = Path(__file__)
    answers: Counter[str] = Counter()

    async def answered(sender: trio.Process) -> None:
        answers.update(filter(None, (await _said(sender)).decode().split("\n")))

    async with trio.open_nursery() as nursery:
        sending = [here, "--send", port, load.file, load.count]
        senders = [await _started(nursery, *sending) for _ in range(load.at_once if load.file else 0)]
        asker = await _started(nursery, here.with_name("attack_clients.py"), port)
        steps.reset()
        began_s = trio.current_time()
        if load.file is None:
            await trio.sleep(_QUIET_S)
        async with trio.open_nursery() as sending_nursery:
            for sender in senders:
                sending_nursery.start_soon(answered, sender)
        took_s = trio.current_time() - began_s
        found = steps.cpu_ms, steps.task, steps.clock_ms, steps.passes_ms
        seen = Seen(**json.loads(await _said(asker)))
    return Row(load.what, took_s, dict(answers), *found, seen)


async def run(kinds: list[str], mib: int, count: int, at_once: int) -> list[Row]:
    steps = Steps()
    with tempfile.TemporaryDirectory() as folder:
        loads = [Load("nothing")]
        for kind in kinds:
            file = Path(folder) / kind
            file.write_bytes(document(kind, mib << 20))
            loads += [
                Load(f"{kind}, {mib} MiB" + (f", {at_once} at once" if at_once > 1 else ""), file, count, at_once)
            ]
        loads.append(Load("nothing"))
        repository = Path(folder) / "repository"
        for name, config in (("small", _CONFIG), ("text", _CONFIG.replace("TYPE_FP32", "TYPE_STRING"))):
            (repository / name / "1").mkdir(parents=True)
            (repository / name / "config.pbtxt").write_text(config)
        backends = BackendRegistry(lambda _name: {}, {"identity": Identity})
        options = ServerOptions(model_repository=(repository,))
        async with InferenceServer(options, backends=backends) as server, trio.open_nursery() as nursery:
            limits = HttpOptions(max_input_bytes=1 << 30)
            service = HttpService(HttpApplication(server, limits), ServiceOptions(("127.0.0.1:0",)))
            (port,) = await nursery.start(service.serve)
            trio.lowlevel.add_instrument(steps)
            rows = [await measure(port, steps, load) for load in loads]
            service.close()
    return rows


def show(rows: list[Row]) -> Table:
    names = ("documents", "took s", "answers", "others wait: p50 ms", "p99", "p99.9", "longest")
    table = Table(*names, "longest step: CPU ms", "by the clock", "longest pass")
    for row in rows:
        seen = row.seen
        answers = ", ".join(f"{count} {status.partition(' ')[2]}" for status, count in row.answers.items())
        waits = [f"{value:.1f}" for value in (seen.usual_ms, seen.p99_ms, seen.p999_ms, seen.longest_ms)]
        times = [f"{value:.1f}" for value in (row.step_cpu_ms, row.step_clock_ms, row.pass_clock_ms)]
        table.add_row(row.what, f"{row.took_s:.1f}", answers, *waits, *times)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--only", nargs="+", choices=DOCUMENTS, default=list(DOCUMENTS))
    parser.add_argument("--count", type=int, default=3, help="documents, one after the other")
    parser.add_argument("--at-once", type=int, default=1, help="clients with so many documents each")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--send", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.send is not None:
        send(int(given.send[0]), given.send[1], int(given.send[2]))
        return
    logging.disable(logging.WARNING)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    rows = trio.run(run, given.only, given.mib, given.count, given.at_once)
    Console(width=160).print(show(rows))
    if given.output is not None:
        document_: dict[str, Any] = {"machine": machine(), "rows": [asdict(row) for row in rows]}
        given.output.write_text(json.dumps(document_, indent=1) + "\n")


if __name__ == "__main__":
    main()
