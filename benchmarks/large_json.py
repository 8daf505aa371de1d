"""What other clients notice of large JSON documents, and how long those hold up the event loop.

A server in this process gets documents (of 64 MiB by default), reads them, and answers with as many values: numbers,
numbers in nested arrays, strings, and numbers with a NaN among them, which only the strict reader reads. A second
client, a process of its own, asks for small things every 4 ms: what it waits for is what others notice. For each task
that the event loop runs meanwhile, its steps are measured: the CPU time of the loop's thread from one suspension to the
next, and the same by the clock, in which waiting for the interpreter's lock counts as well.

There are two controls. "nothing": there are no documents. "elsewhere": the documents go to a second server in a process
of its own, so the processors are as busy, but the first server has nothing to do with them. The delay that documents
cause is the difference to the second. Besides, it is said how much of each wait the system has let the second client
and the event loop's thread wait for a processor (schedstat; on Linux).

A process that has nothing to do with any server notices when the machine itself is slow (`stalls.py`). Waits and steps
of the event loop at such a moment are left out, but for the longest wait. It is told how much of the processors other
programs have had: if that is more than a tenth of one, the longest waits are theirs.

    python benchmarks/large_json.py [--only numbers nested strings strict] [--mib 64] [--count 3] [--at-once 1]
                                    [--output large_json.json]
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import orjson
import psutil
import trio
from attack_clients import BETWEEN_S, Asker, read_answer
from attack_payloads import infer_request, small_infer
from loop_steps import Collections, Step, Steps
from rich.console import Console
from rich.table import Table
from servers import machine
from stalls import Stall

from trireme.actors import InferenceServer
from trireme.api.cli.interpreter import settle_memory, switch_often
from trireme.api.http.app import HttpApplication, HttpService
from trireme.api.http.exchange import HttpOptions
from trireme.api.sockets.service import ServiceOptions
from trireme.engine.backends.interface import Backend, InstanceSpec, LoadedModel, ModelFiles, ModelInstance
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.config.model import ModelConfig
from trireme.engine.job import ExecutionBatch
from trireme.engine.options import ServerOptions

_NUMBER_BYTES = 11
_ROW = 100
_STRING_BYTES = 200
_QUIET_S = 3.0
_LONGEST = 5
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


_Spent = TypeVar("_Spent", Step, "Wait")


def outside(stalls: Iterable[Stall], all_: Iterable[_Spent], ended_s: Callable[[_Spent], float]) -> list[_Spent]:
    """Those that no stall may have made longer."""
    return [each for each in all_ if not any(stall.meets(each.began_s, ended_s(each)) for stall in stalls)]


class Wait(NamedTuple):
    """A wait of the second client, in ms.

    Attributes:
        all_ms: from asking to the whole answer.
        began_s: by `time.perf_counter`.
        queued_ms: of these, those in which the system let the client or the event loop's thread, both ready to run,
            wait for a processor. Those of the thread that holds the interpreter's lock are not in it.
        others_ms: in which other threads of the server waited for a processor, all together.
    """

    all_ms: float
    began_s: float
    queued_ms: float
    others_ms: float


@dataclass
class Waits:
    """What the second client has waited for while the machine was not slow; milliseconds.

    Attributes:
        longest: each with how much of it the system's queues were (`Wait`).
        unqueued_ms: the longest wait without the time in these queues.
        stalled_ms: the longest wait while it was slow.
    """

    asked: int
    failures: int
    p50_ms: float
    p99_ms: float
    longest: list[Wait]
    unqueued_ms: float
    stalled_ms: float

    @classmethod
    def of(cls, all_waits: list[Wait], failures: int, stalls: Sequence[Stall]) -> Waits:
        waits = outside(stalls, all_waits, lambda wait: wait.began_s + wait.all_ms / 1e3)
        stalled_ms = max((each.all_ms for each in set(all_waits).difference(waits)), default=0.0)
        times = sorted(each.all_ms for each in waits)
        p50, p99 = (times[int(len(times) * share)] for share in (0.5, 0.99))
        unqueued = max(each.all_ms - each.queued_ms for each in waits)
        longest = sorted(waits, reverse=True)[:_LONGEST]
        return cls(len(all_waits), failures, p50, p99, longest, unqueued, stalled_ms)


@dataclass
class Row:
    """What documents have done; milliseconds, the longest of each, while the machine was not slow.

    Attributes:
        where: "here", or "elsewhere", which is a second server.
        took_s: from sending the first to the whole answer to the last.
        answers: how many of which status line.
        step: that took most CPU time.
        stalls: when the machine was slow.
        others_cores: so many processors other programs have kept busy.
    """

    what: str
    where: str
    took_s: float
    answers: dict[str, int]
    step: Step
    step_clock_ms: float
    pass_clock_ms: float
    collection_ms: float
    stalls: list[Stall]
    others_cores: float
    waits: Waits


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


def queued_ms(tasks: Iterable[Path]) -> float:
    """How long threads have waited for a processor since they began; 0 where the system does not tell."""
    total_ns = 0
    for task in tasks:
        with suppress(OSError, IndexError, ValueError):  # a thread that has ended meanwhile
            total_ns += int((task / "schedstat").read_bytes().split()[1])
    return total_ns / 1e6


def watch(port: int, pid: int) -> None:
    """The second client, a process of its own: says when it has begun, asks a server until it is told to stop, and
    prints what it has waited for. The first thread of a server is its event loop's."""
    infer = Asker(port, infer_request("small", *small_infer()), stays=True)
    waits: list[Wait] = []
    failures = 0
    infer.ask()
    tasks = Path(f"/proc/{pid}/task")
    loop = [Path("/proc/self/task") / str(os.getpid()), tasks / str(pid)]
    gc.freeze()
    gc.disable()
    print("asking", flush=True)
    while not select.select([sys.stdin], [], [], BETWEEN_S)[0]:
        others = [task for task in tasks.glob("*") if task.name != str(pid)]
        queued, of_others = queued_ms(loop), queued_ms(others)
        began_s = time.perf_counter()
        failures += not infer.ask()
        all_ms = (time.perf_counter() - began_s) * 1e3
        waits.append(Wait(all_ms, began_s, min(all_ms, queued_ms(loop) - queued), queued_ms(others) - of_others))
    print(json.dumps([failures, waits]), flush=True)


@dataclass
class Load:
    """Documents, or none if there is no file: `count` one after the other, `at_once` of such clients.

    Attributes:
        port: of the server that they are sent to.
    """

    what: str
    where: str = ""
    port: int = 0
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


def used_by_others_s() -> float:
    """Time of the processors that was not for this process and those it has started."""
    times, own = psutil.cpu_times(), os.times()
    mine_s = sum(own[:4])
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            mine_s += sum(child.cpu_times()[:2])
    return sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0) - mine_s


async def measure(port: int, steps: Steps, collections: Collections, load: Load) -> Row:
    """A load, and a second client, which asks the server at `port`, in this process."""
    here = Path(__file__)
    answers: Counter[str] = Counter()

    async def answered(sender: trio.Process) -> None:
        answers.update(filter(None, (await _said(sender)).decode().split("\n")))

    async with trio.open_nursery() as nursery:
        sending = [here, "--send", load.port, load.file, load.count]
        senders = [await _started(nursery, *sending) for _ in range(load.at_once if load.file else 0)]
        searcher = await _started(nursery, here.with_name("stalls.py"))
        asker = await _started(nursery, here, "--watch", port, os.getpid())
        others_s = used_by_others_s()
        await trio.lowlevel.checkpoint()  # that was a long step
        steps.reset()
        collections.longest_ms = 0.0
        began_s = trio.current_time()
        if load.file is None:
            await trio.sleep(_QUIET_S)
        async with trio.open_nursery() as sending_nursery:
            for sender in senders:
                sending_nursery.start_soon(answered, sender)
        took_s, collection_ms = trio.current_time() - began_s, collections.longest_ms
        seen, passes = list(steps.steps), list(steps.passes)
        others_s = used_by_others_s() - others_s
        failures, waits = json.loads(await _said(asker))
        stalls = [Stall(*each) for each in json.loads(await _said(searcher))]
    seen, passes = (outside(stalls, each, lambda step: step.ended_s) or [Step(0.0, 0.0)] for each in (seen, passes))
    return Row(
        load.what,
        load.where,
        took_s,
        dict(answers),
        max(seen, key=lambda step: step.cpu_ms),
        max(step.clock_ms for step in seen),
        max(step.clock_ms for step in passes),
        collection_ms,
        stalls,
        max(0.0, others_s / took_s),
        Waits.of([Wait(*each) for each in waits], failures, stalls),
    )


@asynccontextmanager
async def serving() -> AsyncIterator[int]:
    """A server, set as `trireme serve` sets it; its port."""
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder)
        for name, config in (("small", _CONFIG), ("text", _CONFIG.replace("TYPE_FP32", "TYPE_STRING"))):
            (repository / name / "1").mkdir(parents=True)
            (repository / name / "config.pbtxt").write_text(config)
        backends = BackendRegistry(lambda _name: {}, {"identity": Identity})
        options = ServerOptions(model_repository=(repository,))
        async with InferenceServer(options, backends=backends) as server, trio.open_nursery() as nursery:
            limits = HttpOptions(max_input_bytes=1 << 30)
            service = HttpService(HttpApplication(server, limits), ServiceOptions(("127.0.0.1:0",)))
            (port,) = await nursery.start(service.serve)
            settle_memory()
            yield port
            service.close()


async def serve_elsewhere() -> None:
    """The second server: says its port, and ends when it is told to."""
    async with serving() as port:
        print(port, flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)


async def run(kinds: list[str], mib: int, count: int, at_once: int) -> list[Row]:
    steps, collections = Steps(), Collections()
    with tempfile.TemporaryDirectory() as folder:
        async with serving() as port, trio.open_nursery() as nursery:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            start = partial(trio.run_process, [sys.executable, Path(__file__), "--serve"], **pipes)  # type: ignore[arg-type]
            other: trio.Process = await nursery.start(start)
            assert other.stdout is not None
            other_port = int(await other.stdout.receive_some())
            loads = [Load("nothing")]
            for kind in kinds:
                file = Path(folder) / kind
                file.write_bytes(document(kind, mib << 20))
                what = f"{kind}, {mib} MiB" + (f", {at_once} at once" if at_once > 1 else "")
                loads += [
                    Load(what, "elsewhere", other_port, file, count, at_once),
                    Load(what, "here", port, file, count, at_once),
                ]
            loads.append(Load("nothing"))
            trio.lowlevel.add_instrument(steps)
            gc.callbacks.append(collections)
            rows = [await measure(port, steps, collections, load) for load in loads]
            await _said(other)
    return rows


def show(rows: list[Row]) -> Table:
    names = ("documents", "where", "took s", "answers", "others wait: p50 ms", "p99", "longest", "of it queued")
    table = Table(*names, "longest not queued", "delay: p99", "longest", "step: CPU ms", "clock", "pass", "collection")
    for name in ("stalls", "longest in them", "other programs"):
        table.add_column(name)
    control: Waits | None = None
    for row in rows:
        waits = row.waits
        longest = waits.longest[0]
        answers = ", ".join(f"{count} {status.partition(' ')[2]}" for status, count in row.answers.items())
        values = [waits.p50_ms, waits.p99_ms, longest.all_ms, longest.queued_ms, waits.unqueued_ms]
        delays = ["", ""]
        if row.where == "here" and control is not None:
            delays = [f"{waits.p99_ms - control.p99_ms:+.1f}", f"{longest.all_ms - control.longest[0].all_ms:+.1f}"]
        control = waits if row.where == "elsewhere" else None
        times = (row.step.cpu_ms, row.step_clock_ms, row.pass_clock_ms, row.collection_ms)
        texts = [*(f"{value:.1f}" for value in values), *delays, *(f"{value:.1f}" for value in times)]
        texts += [str(len(row.stalls)), f"{waits.stalled_ms:.1f}" if row.stalls else "", f"{row.others_cores:.2f}"]
        table.add_row(row.what, row.where, f"{row.took_s:.1f}", answers, *texts)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--only", nargs="+", choices=DOCUMENTS, default=list(DOCUMENTS))
    parser.add_argument("--count", type=int, default=3, help="documents, one after the other")
    parser.add_argument("--at-once", type=int, default=1, help="clients with so many documents each")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--send", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--watch", nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.send is not None:
        send(int(given.send[0]), given.send[1], int(given.send[2]))
        return
    if given.watch is not None:
        watch(*given.watch)
        return
    logging.disable(logging.WARNING)
    switch_often()
    if given.serve:
        trio.run(serve_elsewhere)
        return
    rows = trio.run(run, given.only, given.mib, given.count, given.at_once)
    Console(width=220).print(show(rows))
    if given.output is not None:
        document_: dict[str, Any] = {"machine": machine(), "rows": [asdict(row) for row in rows]}
        given.output.write_text(json.dumps(document_, indent=1) + "\n")


if __name__ == "__main__":
    main()
