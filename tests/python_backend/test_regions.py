"""Large tensors of Python models in clients' shared memory: copied once each way, and not on the event loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from python_models import CONFIG, open_repository, write_model
from scripted_process import scripted
from segments import Segment, open_segments

from trireme.actors import InferenceServer
from trireme.api.http.infer.response import takes_long
from trireme.engine.clock import SystemClock
from trireme.engine.datatypes import FP32
from trireme.engine.errors import InvalidArgumentError, TriremeError
from trireme.engine.job import ExecutionBatch, Job
from trireme.engine.memory.regions import Region, RegionKind, Regions, RegionSlice
from trireme.engine.memory.tensors import RegionTensor, put_in_place
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor
from trireme.python_backend.child.channel import Channel
from trireme.python_backend.child.codec import cut
from trireme.python_backend.instance import PythonInstance

WIDTH = 1 << 17
ROW = 4 * WIDTH
"""Bytes, more than are copied on the event loop."""


@pytest.fixture
def segment() -> Iterator[Segment]:
    """Three rows, of which the last is for outputs."""
    with open_segments() as make:
        yield make(np.arange(3 * WIDTH, dtype=np.float32).tobytes())


class Copies:
    """What is copied of regions and to them: the arrays, each with the thread; and `others` that should not be."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.into: list[tuple[np.ndarray, int]] = []
        self.others: list[str] = []
        genuine, write = Region.read_into, Region.write
        self.written: list[tuple[np.ndarray, int]] = []

        def read_into(region: Region, start: int, target: np.ndarray) -> None:
            self.into.append((target, threading.get_ident()))
            genuine(region, start, target)

        def write_there(region: Region, start: int, data: memoryview) -> None:
            self.written.append((np.frombuffer(data, np.uint8), threading.get_ident()))
            write(region, start, data)

        def read(_region: Region, start: int, end: int) -> memoryview:
            self.others.append(f"{start} to {end}")
            raise AssertionError("copied once more")

        monkeypatch.setattr(Region, "read_into", read_into)
        monkeypatch.setattr(Region, "read", read)
        monkeypatch.setattr(Region, "write", write_there)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    return Copies(monkeypatch)


def tensor(regions: Regions, row: int) -> RegionTensor:
    return RegionTensor("INPUT0", FP32, (1, WIDTH), regions.slice("r", row * ROW, ROW))


def job(regions: Regions, row: int) -> Job:
    read = tensor(regions, row)
    return Job(InferenceRequest("m", inputs=[read], in_regions=True), {"INPUT0": read}, 1, "m", 1, None)  # type: ignore[arg-type]


def ask(server: InferenceServer, row: int) -> InferenceRequest:
    return InferenceRequest("m", inputs=[tensor(server.shared_memory, row)], in_regions=True)


@pytest.fixture
def regions(segment: Segment) -> Regions:
    made = Regions()
    made.register_system("r", segment.key, 0, 3 * ROW)
    return made


def sent(channel: Channel) -> tuple[list[int], list[np.ndarray]]:
    """What the process of a scripted instance is given to execute after its first request: keys, and inputs."""
    for _ in range(2):  # settings, and that request
        channel.receive()
    message = channel.receive()
    assert message is not None
    requests = message.head[1]
    inputs = [np.frombuffer(cut(message.payload, request[-1][0]), np.float32) for request in requests]
    return [request[0] for request in requests], inputs


def test_an_input_is_copied_from_its_region_into_the_segment_that_the_process_reads(
    regions: Regions, copies: Copies
) -> None:
    with scripted() as (process, instance):
        batch = ExecutionBatch([job(regions, 0), job(regions, 1)], "m_0", SystemClock())
        prepared = instance.prepare(batch)
        segment = prepared[2].segment
        assert segment is not None
        memory = np.frombuffer(segment.memory, np.uint8)
        assert [np.shares_memory(target, memory) for target, _ in copies.into] == [True, True]
        assert [len(target) for target, _ in copies.into] == [ROW, ROW]
        instance.begin(batch, prepared)
        _, inputs = sent(process.model)
        assert [each[0] for each in inputs] == [0, WIDTH]
        assert copies.others == []


@pytest.mark.parametrize("lost", [0, 1])
def test_a_job_whose_input_is_lost_meanwhile_fails_alone(regions: Regions, segment: Segment, lost: int) -> None:
    """Nothing of it is sent, and no segment stays lent."""
    with scripted() as (process, instance):
        jobs = [job(regions, 0), job(regions, 1)]
        if lost == 0:
            jobs.reverse()
        batch = ExecutionBatch(jobs, "m_0", SystemClock())
        segment.cut(ROW)
        prepared = instance.prepare(batch)
        assert [id(each) for each in prepared[0]] == [id(jobs[1 - lost])]
        ((failed, error, final),) = batch.answers
        assert (failed is jobs[lost], final) == (True, True)
        assert isinstance(error, InvalidArgumentError)
        assert error.message.startswith("shared memory region 'r' has lost its memory")
        instance.begin(batch, prepared)
        keys, inputs = sent(process.model)
        assert keys == prepared[1]
        assert [each[0] for each in inputs] == [0]
        assert len(process.channel.lender._lent) == 1


def test_a_batch_that_has_lost_all_is_refused_and_lends_nothing(regions: Regions, segment: Segment) -> None:
    with scripted() as (process, instance):
        batch = ExecutionBatch([job(regions, 0), job(regions, 1)], "m_0", SystemClock())
        segment.cut(100)
        with pytest.raises(InvalidArgumentError, match="has lost its memory"):
            instance.prepare(batch)
        assert process.channel.lender._lent == {}
        segment.cut(3 * ROW)
        again = ExecutionBatch([job(regions, 0)], "m_0", SystemClock())
        instance.begin(again, instance.prepare(again))  # the segment that was made is introduced now
        _, inputs = sent(process.model)
        assert len(inputs[0]) == WIDTH


async def test_a_process_reads_and_answers_with_one_copy_each_on_threads(
    tmp_path: Path, segment: Segment, copies: Copies
) -> None:
    write_model(tmp_path, "m")
    async with open_repository(tmp_path) as server:
        server.shared_memory.register_system("r", segment.key, 0, 3 * ROW)
        reply = await server.admit(ask(server, 1))
        answer = await reply.response()
        (output,) = answer.outputs
        ((_, reader),) = copies.into
        assert reader != threading.get_ident()
        place = server.shared_memory.slice("r", 2 * ROW, ROW)
        assert takes_long(answer, placed(place))  # so it is done on a thread
        received = np.frombuffer(output.buffer, np.uint8)
        put_in_place(output, place)
        ((data, _),) = copies.written
        assert np.shares_memory(data, received)
        assert copies.others == []
        assert segment.data[2 * ROW :] == segment.data[ROW : 2 * ROW]
        server.shared_memory.unregister(RegionKind.SYSTEM)


def placed(place: RegionSlice) -> Any:
    """A request over HTTP that wants its outputs there."""
    return SimpleNamespace(forms={}, default_form=SimpleNamespace(place=place, binary=False, class_count=0))


@pytest.mark.parametrize("unregistered", [False, True])
async def test_memory_that_is_read_late(
    tmp_path: Path, segment: Segment, monkeypatch: pytest.MonkeyPatch, unregistered: bool
) -> None:
    """A region that is cut short after its request was admitted fails it; one that was unregistered does not."""
    write_model(tmp_path, "m")
    prepare = PythonInstance.prepare

    def spoil(instance: PythonInstance, batch: ExecutionBatch) -> object:
        if unregistered:
            server.shared_memory.unregister(RegionKind.SYSTEM)
        else:
            segment.cut(ROW)
        return prepare(instance, batch)

    async with open_repository(tmp_path) as server:
        server.shared_memory.register_system("r", segment.key, 0, 3 * ROW)
        monkeypatch.setattr(PythonInstance, "prepare", spoil)
        reply = await server.admit(ask(server, 1))
        if unregistered:
            assert (await reply.response()).outputs[0].array[0, 0] == WIDTH
        else:
            with pytest.raises(InvalidArgumentError, match="region 'r' has lost its memory"):
                await reply.response()
        monkeypatch.undo()
        small = InferenceRequest("m", inputs=[Tensor("INPUT0", FP32, (1, 1), bytes(4))])
        assert (await server.infer(small)).outputs[0].nbytes == 4
        assert server.budget_statistics().bytes == 0


async def test_a_cached_model_has_its_inputs_copied_when_they_are_admitted(tmp_path: Path, segment: Segment) -> None:
    """The key and the answer are of the same data."""
    write_model(tmp_path, "m", config=CONFIG + "response_cache { enable: true }")
    async with open_repository(tmp_path) as server:
        server.shared_memory.register_system("r", segment.key, 0, 3 * ROW)
        reply = await server.admit(ask(server, 1))
        segment.cut(0)
        assert (await reply.response()).outputs[0].array[0, 0] == WIDTH


async def test_a_cancelled_request_leaves_its_memory_and_the_model_usable(tmp_path: Path, segment: Segment) -> None:
    write_model(tmp_path, "m")
    async with open_repository(tmp_path) as server:
        server.shared_memory.register_system("r", segment.key, 0, 3 * ROW)
        reply = await server.admit(ask(server, 1))
        reply.cancel()
        with pytest.raises(TriremeError):
            await reply.response()
        assert (await server.infer(ask(server, 0))).outputs[0].array[0, 5] == 5
        assert server.budget_statistics().bytes == 0
