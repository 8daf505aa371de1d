"""Answers on their way out of a port: what takes long is a thread's, and what fails costs one request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from port_world import VALUES, World, opened, request
from segments import Segment, open_segments

from trireme.engine.datatypes import FP32
from trireme.engine.errors import ErrorKind
from trireme.engine.memory.regions import RegionSlice
from trireme.engine.memory.tensors import RegionTensor
from trireme.engine.request import InferenceResponse
from trireme.engine.tensor import Tensor
from trireme.front_ends import kinds, port_answers
from trireme.front_ends.requests import SentRequest
from trireme.front_ends.responses import ResponseWriter

LARGE = np.arange(1 << 18, dtype=np.float32)


@pytest.fixture
def segment() -> Iterator[Segment]:
    with open_segments() as make:
        yield make(bytes(4 * LARGE.nbytes))


def no_memory(*_given: object, **_named: object) -> Any:
    raise MemoryError


def defect(*_given: object, **_named: object) -> Any:
    raise KeyError("a defect")


async def goes_on(world: World) -> None:
    """The link is as good as before."""
    world.admit(99, request())
    head, payload = await world.next()
    assert head[:2] == [kinds.ANSWER, 99]
    assert np.array_equal(np.frombuffer(payload, np.float32), VALUES)
    assert world.error is None
    assert world.budget == (0, 0, 0)


@pytest.mark.parametrize(
    ("fails", "kind", "text"),
    [
        (no_memory, ErrorKind.UNAVAILABLE, "the answer cannot be passed on: there is no memory for it"),
        (defect, ErrorKind.INTERNAL, "the answer cannot be passed on: 'a defect'"),
    ],
)
@pytest.mark.parametrize("where", ["stage", "placed", "write", "write_usual"])
async def test_an_answer_that_cannot_be_passed_on_costs_one_request(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    segment: Segment,
    where: str,
    fails: Callable[..., Any],
    kind: ErrorKind,
    text: str,
) -> None:
    if where == "write_usual" and fails is defect:
        pytest.skip("an answer at once only asks for memory")
    async with opened(tmp_path) as world:
        given = request(values=LARGE if where == "stage" else VALUES)
        if where == "placed":
            world.server.shared_memory.register_system("r", segment.key, 0, len(segment.data))
            given.output_places = {"OUT": world.server.shared_memory.slice("r", 0, 64)}
        with monkeypatch.context() as patched:
            if where.startswith("write"):
                patched.setattr(ResponseWriter, where, once(getattr(ResponseWriter, where), fails))
            else:
                patched.setattr(port_answers, where, fails)
            world.admit(1, given)
            head, _ = await world.next()
        if where == "write_usual":  # the other way still goes
            assert head[:2] == [kinds.ANSWER, 1]
        else:
            assert head[:4] == [kinds.OUTCOME, 1, True, True]
            assert head[4][0] == kind.value
            assert head[4][2].startswith(text)
        await goes_on(world)


def once(original: Callable[..., Any], fails: Callable[..., Any]) -> Callable[..., Any]:
    """A method that fails once."""
    ways = iter([fails])

    def call(*given: Any, **named: Any) -> Any:
        return next(ways, original)(*given, **named)

    return call


@pytest.mark.parametrize(("fails", "kind"), [(no_memory, ErrorKind.UNAVAILABLE), (defect, ErrorKind.INTERNAL)])
async def test_a_request_that_cannot_be_copied_costs_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: Callable[..., Any], kind: ErrorKind
) -> None:
    """It asks for room in a task, with a lease that is given back."""
    async with opened(tmp_path) as world:
        world.send(kinds.GROW, 1, LARGE.nbytes, "", -1, "127.0.0.1")
        await world.next()
        with monkeypatch.context() as patched:
            patched.setattr(SentRequest, "copy_shared", fails)
            given = request(values=LARGE)
            given.raw_input = LARGE.tobytes()
            world.admit(1, given, lease=1)
            heads = [(await world.next())[0] for _ in range(3)]
        assert heads[:2] == [[kinds.HELD, 1], [kinds.HELD, 0]]
        assert heads[2][:4] == [kinds.OUTCOME, 1, True, False]
        assert heads[2][4][0] == kind.value
        await goes_on(world)


async def test_large_outputs_are_put_in_their_places_by_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, segment: Segment
) -> None:
    threads: list[tuple[int, int]] = []
    write = RegionSlice.write

    def written(place: RegionSlice, output: str, data: Any) -> None:
        threads.append((len(data), threading.get_ident()))
        write(place, output, data)

    monkeypatch.setattr(RegionSlice, "write", written)
    async with opened(tmp_path) as world:
        world.server.shared_memory.register_system("r", segment.key, 0, len(segment.data))
        for number, values in ((1, LARGE), (2, VALUES)):
            given = request(values=values)
            given.output_places = {"OUT": world.server.shared_memory.slice("r", 0, len(segment.data))}
            world.admit(number, given)
            head, payload = await world.next()
            assert head[:2] == [kinds.ANSWER, number]
            assert len(payload) == 0, "nothing is copied to the front end"
            assert np.array_equal(np.frombuffer(segment.data, np.float32, len(values)), values)
        assert world.port._link.lender.free_bytes == 0, "nor into a segment"
    (large_bytes, at_large), (small_bytes, at_small) = threads
    assert (large_bytes, small_bytes) == (LARGE.nbytes, VALUES.nbytes)
    assert at_large != threading.get_ident()
    assert at_small == threading.get_ident()


def answering(monkeypatch: pytest.MonkeyPatch, world: World, outputs: list[Tensor]) -> None:
    """Have models answer with these."""

    def say(job: Any, said: int, final: bool) -> int:
        job.respond(InferenceResponse("plain", 1, job.id, list(outputs)), final)
        return said + 1

    monkeypatch.setattr(type(world.script), "_say", staticmethod(say))


async def test_an_output_that_is_placed_and_one_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, segment: Segment
) -> None:
    stage = port_answers.stage

    def staged(lender: Any, response: InferenceResponse) -> InferenceResponse:
        found = stage(lender, response)
        plain = [tensor for tensor in found.outputs if tensor.__class__ is Tensor]
        assert lender.segment_of([tensor.buffer for tensor in plain]) is not None
        return found

    monkeypatch.setattr(port_answers, "stage", staged)
    async with opened(tmp_path) as world:
        answering(monkeypatch, world, [Tensor(name, FP32, LARGE.shape, array=LARGE) for name in ("OUT", "MORE")])
        world.server.shared_memory.register_system("r", segment.key, 0, len(segment.data))
        given = request()
        given.output_places = {"OUT": world.server.shared_memory.slice("r", 0, len(segment.data))}
        world.admit(1, given)
        head, payload = await world.next()
        assert head[:2] == [kinds.ANSWER, 1]
        assert np.array_equal(np.frombuffer(payload, np.float32, len(LARGE)), LARGE)
        assert np.array_equal(np.frombuffer(segment.data, np.float32, len(LARGE)), LARGE)


async def test_an_output_that_is_in_another_place_is_copied_by_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, segment: Segment
) -> None:
    """As a model gives that passes on its input, which is in shared memory, too."""
    threads: list[int] = []
    write = RegionSlice.write

    def written(place: RegionSlice, output: str, data: Any) -> None:
        threads.append(threading.get_ident())
        write(place, output, data)

    monkeypatch.setattr(RegionSlice, "write", written)
    segment.put(LARGE.tobytes(), LARGE.nbytes)
    async with opened(tmp_path) as world:
        regions = world.server.shared_memory
        regions.register_system("r", segment.key, 0, len(segment.data))
        source = regions.slice("r", LARGE.nbytes, LARGE.nbytes)
        answering(monkeypatch, world, [RegionTensor("OUT", FP32, LARGE.shape, source)])
        given = request()
        given.output_places = {"OUT": regions.slice("r", 0, LARGE.nbytes)}
        world.admit(1, given)
        head, payload = await world.next()
        assert (head[:2], len(payload)) == ([kinds.ANSWER, 1], 0)
        assert np.array_equal(np.frombuffer(segment.data, np.float32, len(LARGE)), LARGE)
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


async def test_a_front_end_that_ends_while_an_output_is_placed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, segment: Segment
) -> None:
    begun, gate = threading.Event(), threading.Event()
    write = RegionSlice.write

    def written(place: RegionSlice, output: str, data: Any) -> None:
        begun.set()
        assert gate.wait(60)
        write(place, output, data)

    monkeypatch.setattr(RegionSlice, "write", written)
    async with opened(tmp_path) as world:
        world.server.shared_memory.register_system("r", segment.key, 0, len(segment.data))
        given = request(values=LARGE)
        given.output_places = {"OUT": world.server.shared_memory.slice("r", 0, len(segment.data))}
        world.admit(1, given)
        await world.until(begun.is_set)
        world.link.close()
        gate.set()
        await world.ended.wait()
        assert world.error is not None
        await world.until(lambda: world.budget == (0, 0, 0))
