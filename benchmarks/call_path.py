"""The way of one warm small request through the server: how many Python calls it takes, and through how many files.

    python benchmarks/call_path.py [--requests 40] [--list http]

The server is `trireme serve` in a process of its own, with the shipped `identity_fp32` (FP32[16], executed in place).
The client is tritonclient in this process. It sends one request at a time and waits between them, so that what the
server does between two long waits is what it does for one request. Meanwhile `sys.setprofile` watches the server's
event loop and a trio instrument the turns of its tasks. Of all requests the most frequent count is shown: now and then
something else (a sweep, a PING) is done in between.

Columns: calls of Trireme's Python functions, a coroutine that goes on included; the files that they are in; how many of
them are under way at most, in one task; task switches, which are turns after the first one.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import trio
from rich.console import Console
from rich.table import Table
from servers import Server, trireme
from tritonclient import grpc, http

from trireme.api.cli.main import main as serve
from trireme.engine.instances import executing as placement

MODEL = "identity_fp32"
ROOT = Path(__file__).parents[1]
WARM_UP = 200
PAUSE_S = 0.03
"""Between two requests. The server takes a wait of a third of it for the end of a request."""

PATIENCE_NS = 1_000_000_000
"""What the server takes for a short batch: one that is watched, on a busy machine, is not to lose its place."""

_OUTPUT = "CALL_PATH_OUTPUT"
_TRIO = str(Path(trio.__file__).parent)
_OURS = tuple(f"{ROOT / folder}{os.sep}" for folder in ("actors", "api", "engine", "proto", "python_backend"))


@dataclass
class Way:
    """What was done between two long waits.

    Attributes:
        lines: the functions called, in order, as ``file:function``.
        turns: how often a task was given its turn.
    """

    deepest: int = 0
    turns: int = 0
    lines: list[str] = field(default_factory=list)

    @property
    def figures(self) -> tuple[int, int, int, int]:
        return (
            len(self.lines),
            len({line.partition(":")[0] for line in self.lines}),
            self.deepest,
            max(0, self.turns - 1),
        )


class Recorder(trio.abc.Instrument):
    """Inside the server: notes what its event loop does, as soon as SIGUSR1 comes, and writes it down at SIGUSR2."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._ways: list[Way] = []
        self._way = Way()
        self._waits_since_s = 0.0
        self._depths: dict[FrameType, int] = {}

    def start(self, _signal: int, _frame: FrameType | None) -> None:
        self._ways = []
        self._way = Way()
        trio.lowlevel.add_instrument(self)
        sys.setprofile(self._profile)

    def write(self, _signal: int, _frame: FrameType | None) -> None:
        sys.setprofile(None)
        trio.lowlevel.remove_instrument(self)
        part = self._output.with_suffix(".part")
        part.write_text(json.dumps([asdict(way) for way in self._ways]))
        part.rename(self._output)

    def before_io_wait(self, timeout: float) -> None:
        self._waits_since_s = time.monotonic()

    def after_io_wait(self, timeout: float) -> None:
        if time.monotonic() - self._waits_since_s > PAUSE_S / 3:
            if self._way.lines:
                self._ways.append(self._way)
            self._way = Way()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._way.turns += 1

    def _profile(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(_OURS):
            way = self._way
            way.lines.append(f"{code.co_filename[len(str(ROOT)) + 1 :]}:{code.co_qualname}")
            way.deepest = max(way.deepest, _depth(frame))


def _depth(frame: FrameType | None) -> int:
    """How many of Trireme's functions are under way, down to the event loop."""
    depth = 0
    while frame is not None and not frame.f_code.co_filename.startswith(_TRIO):
        depth += frame.f_code.co_filename.startswith(_OURS)
        frame = frame.f_back
    return depth


def serve_recorded() -> int:
    """`trireme serve`, with a recorder in it."""
    placement.SHORT_NS = PATIENCE_NS
    recorder = Recorder(Path(os.environ[_OUTPUT]))
    signal.signal(signal.SIGUSR1, recorder.start)
    signal.signal(signal.SIGUSR2, recorder.write)
    return serve(["serve", *sys.argv[2:]])


def record(server: Server, output: Path, ask: Callable[[], object], requests: int) -> list[Way]:
    """What the server does for each of so many requests."""
    for _ in range(WARM_UP):
        ask()
    server.process.send_signal(signal.SIGUSR1)
    for _ in range(requests):
        time.sleep(PAUSE_S)
        ask()
    time.sleep(PAUSE_S)
    server.process.send_signal(signal.SIGUSR2)
    while not output.exists():
        time.sleep(PAUSE_S)
    ways = [Way(**each) for each in json.loads(output.read_text())]
    output.unlink()
    return ways


def http_client(server: Server, stack: ExitStack) -> Callable[[], object]:
    client = http.InferenceServerClient(server.url)
    stack.callback(client.close)
    given = http.InferInput("INPUT0", [1, 16], "FP32")
    given.set_data_from_numpy(np.ones((1, 16), np.float32))
    return partial(client.infer, MODEL, [given])


def grpc_input() -> grpc.InferInput:
    given = grpc.InferInput("INPUT0", [1, 16], "FP32")
    given.set_data_from_numpy(np.ones((1, 16), np.float32))
    return given


def grpc_client(server: Server, stack: ExitStack) -> Callable[[], object]:
    client = grpc.InferenceServerClient(server.grpc_url)
    stack.callback(client.close)
    return partial(client.infer, MODEL, [grpc_input()])


def stream_client(server: Server, stack: ExitStack) -> Callable[[], object]:
    client = grpc.InferenceServerClient(server.grpc_url)
    stack.callback(client.close)
    answers: collections.deque[Any] = collections.deque(maxlen=1)
    client.start_stream(lambda result, error: answers.append((result, error)))
    stack.callback(client.stop_stream)
    given = grpc_input()

    def ask() -> None:
        client.async_stream_infer(MODEL, [given])
        while not answers:
            time.sleep(0.0005)
        _, error = answers.pop()
        if error is not None:
            raise SystemExit(f"the stream was answered with {error}")

    return ask


CLIENTS = {"http": http_client, "grpc": grpc_client, "stream": stream_client}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--requests", type=int, default=40, help="to be counted, by each protocol")
    options.add_argument("--list", choices=CLIENTS, help="print the calls of one request by this protocol")
    asked = options.parse_args()
    console = Console()
    table = Table(title="one warm small request")
    for heading in ("protocol", "Python calls", "files", "deepest stack", "task switches"):
        table.add_column(heading, justify="left" if heading == "protocol" else "right")
    with ExitStack() as stack:
        output = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "ways.json"
        os.environ[_OUTPUT] = str(output)
        program = (sys.executable, __file__, "--serve")
        flags = ("--model-control-mode", "explicit", "--load-model", MODEL)
        server = stack.enter_context(trireme(ROOT / "model_repository", *flags, grpc=True, program=program))
        for protocol, connect in CLIENTS.items():
            with ExitStack() as clients:
                ways = record(server, output, connect(server, clients), asked.requests)
            figures = collections.Counter(way.figures for way in ways)
            ((usual, count),) = figures.most_common(1)
            table.add_row(protocol, *map(str, usual))
            if count < len(ways) / 2:
                console.print(f"{protocol}: only {count} of {len(ways)} are alike: {figures.most_common(4)}")
            if protocol == asked.list:
                way = next(way for way in ways if way.figures == usual)
                console.print("\n".join(way.lines), highlight=False)
    console.print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        sys.exit(serve_recorded())
    main()
