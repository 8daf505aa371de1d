"""What a large document takes of others at once, counted in bytes, calls and objects: while it arrives, is read and is
answered, each step on the event loop and each piece on a thread is small, however large the document is."""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest
import trio
from http_fakes import FakeServer
from http_sockets import PATIENCE_S

from trireme.actors import piecework
from trireme.actors.socket_readiness import Readiness
from trireme.api.http.app import HttpApplication, HttpService
from trireme.api.http.exchange import HttpOptions
from trireme.api.sockets.service import ServiceOptions
from trireme.api.sockets.transport import PlainTransport

MIB = 1 << 20
COUNT = 60_000
DOCUMENTS = {
    "numbers": ("FP32", [0.123456789] * (4 * COUNT)),
    "nested": ("FP32", [[0.123456789]] * (4 * COUNT)),
    "strings": ("BYTES", ["s" * 50] * COUNT),
    "strict": ("BYTES", ["s" * 50] * COUNT),
}
MOST_BYTES = MIB + 65_536
MOST_CALLS = 2_000
"""Of functions, in one step: some 0.5 ms."""
MOST_FREED = 5_000
"""Blocks of memory, for small objects, that are fewer after one step than before it: some 0.1 ms."""
MOST_OBJECTS = 25_000
"""That the garbage collector looks at, alive at a time."""


class LoopSteps(trio.abc.Instrument):
    """Attributes:
    most_bytes, most_calls, most_freed: received or sent, functions called, and blocks freed, in one step of a task.
    total_bytes: in all steps.
    pieces: that threads have begun and ended. Blocks are of the whole process: a step beside a piece, which frees some
        as well, is not counted.
    freeing: steps that are counted for that.
    """

    def __init__(self) -> None:
        self.most_bytes = self.most_calls = self.most_freed = self.total_bytes = self.pieces = self.freeing = 0
        self._bytes = self._calls = self._blocks = self._pieces = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._bytes = self._calls = 0
        self._pieces = self.pieces
        self._blocks = sys.getallocatedblocks()
        sys.setprofile(self._called)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        sys.setprofile(None)
        self.most_bytes = max(self.most_bytes, self._bytes)
        self.most_calls = max(self.most_calls, self._calls)
        freed = self._blocks - sys.getallocatedblocks()
        if self._pieces == self.pieces and not self.pieces % 2:
            self.freeing += 1
            self.most_freed = max(self.most_freed, freed)

    def stop(self) -> None:
        """In a step, after which it is not asked any more."""
        trio.lowlevel.remove_instrument(self)
        sys.setprofile(None)

    def _called(self, _frame: object, event: str, _what: object) -> None:
        self._calls += event == "call" or event == "c_call"

    def moved(self, count: int) -> None:
        self._bytes += count
        self.total_bytes += count


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[[], LoopSteps]:
    """Gives the instrument, which is not watching yet: one that is a fixture's value would see all of the test."""
    seen = LoopSteps()
    receive, send = PlainTransport.receive_now, PlainTransport.send_now

    def received(transport: PlainTransport, view: memoryview) -> int:
        count = receive(transport, view)
        seen.moved(max(0, count))
        return count

    def sent(transport: PlainTransport, buffers: list[Any]) -> list[Any]:
        size = sum(map(len, buffers))
        rest = send(transport, buffers)
        seen.moved(size - sum(map(len, rest)))
        return rest

    monkeypatch.setattr(PlainTransport, "receive_now", received)
    monkeypatch.setattr(PlainTransport, "send_now", sent)
    return lambda: seen


@contextmanager
def counted_objects(monkeypatch: pytest.MonkeyPatch, steps: LoopSteps) -> Iterator[list[int]]:
    """How many more objects than at first the collector knows, each time that a thread asks for its turn."""
    seen: list[int] = []
    ask, end = piecework._Work.next_piece, piecework._Work.end

    def next_piece(work: Any, sleep: Any) -> None:
        seen.append(gc.get_count()[0])
        steps.pieces += work._has_turn
        ask(work, sleep)
        steps.pieces += 1

    def over(work: Any) -> None:
        steps.pieces += work._has_turn
        end(work)

    monkeypatch.setattr(piecework._Work, "next_piece", next_piece)
    monkeypatch.setattr(piecework._Work, "end", over)
    gc.collect()
    gc.disable()  # from now on the count of the youngest is that of all that are alive
    try:
        yield seen
    finally:
        gc.enable()


def ask(port: int, request: bytes) -> bytes:
    """A client on a thread of its own."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(MIB), b""))


@pytest.mark.parametrize("kind", DOCUMENTS)
async def test_a_large_document_takes_little_at_once(
    kind: str, watch: Callable[[], LoopSteps], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = watch()
    datatype, data = DOCUMENTS[kind]
    model = b"strings" if datatype == "BYTES" else b"identity"
    values = orjson.dumps(data)
    if kind == "strict":  # bytes that are no UTF-8
        values = values.replace(b"s" * 50, b"\xff" * 50)
    text = b'{"inputs":[{"name":"IN","shape":[%d],"datatype":"%b","data":%b}]}' % (
        len(data),
        datatype.encode(),
        values,
    )
    head = b"POST /v2/models/%b/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    server: Any = FakeServer()
    server.readiness = readiness = Readiness()
    options = HttpOptions(max_input_bytes=1 << 30)
    service = HttpService(HttpApplication(server, options), ServiceOptions(("127.0.0.1:0",)))
    with trio.fail_after(PATIENCE_S), counted_objects(monkeypatch, steps) as objects:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(readiness.keep_waking)
            nursery.start_soon(readiness.turn.keep_running)
            (port,) = await nursery.start(service.serve)
            trio.lowlevel.add_instrument(steps)
            answer = await trio.to_thread.run_sync(ask, port, head % (model, len(text)) + text)
            steps.stop()
            service.close()
            nursery.cancel_scope.cancel()
    assert answer.startswith(b"HTTP/1.1 200")
    assert steps.total_bytes >= len(text) + len(answer)
    assert 0 < steps.most_bytes <= MOST_BYTES
    assert 0 < steps.most_calls <= MOST_CALLS
    assert steps.freeing > 5
    assert steps.most_freed <= MOST_FREED
    assert len(objects) > len(text) // 65_536
    assert max(objects) - objects[0] <= MOST_OBJECTS
