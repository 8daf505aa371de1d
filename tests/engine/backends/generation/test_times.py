"""When the tokens of requests came, and what was counted of them; and requests whose time is over."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import trio
from counting_network import CONTEXT, CountingNetwork, Gate, asks, open_letters, said, whole, write_model
from python_models import until

from trireme.engine.backends.generation.instance import GenerationInstance
from trireme.engine.backends.generation.tokenizer import Tokenizer
from trireme.engine.clock import SystemClock
from trireme.engine.errors import FailureReason, InternalError, UnavailableError
from trireme.engine.generation.blocks import BlockMemory
from trireme.engine.generation.iterations import IterationLimits, Step
from trireme.engine.job import ExecutionBatch, Job
from trireme.engine.metrics.generation import LOAD_FAMILY, generation_families
from trireme.engine.metrics.page import write_text
from trireme.engine.request import InferenceResponse
from trireme.engine.tracing import Trace, TraceConfig, TraceLevel
from trireme.engine.tracing.record import GenerationNote, Timestamp
from trireme.engine.tracing.settings import TraceSetting


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    yield
    CountingNetwork.before = staticmethod(lambda _step: None)


async def test_what_was_generated_is_counted(tmp_path: Path) -> None:
    write_model(tmp_path, block_tokens=4)
    async with open_letters(tmp_path) as server:
        (entry,) = server.statistics()
        generated = entry.statistics.generated
        assert generated is not None
        await whole(server, asks("abcdefgh", max_tokens=4, n=2))
        await whole(server, asks("abcdefgh", max_tokens=1))
        counts = generated.counts
        assert (counts.prompts, counts.found, counts.drawn) == (16, 4, 9)
        assert generated.first_token.buckets()[-1][1] == 2
        assert generated.between_tokens.buckets()[-1][1] == 6, "of each choice, but for its first"
        gate = Gate()
        CountingNetwork.before = staticmethod(gate)
        reply = await server.admit(asks("abc", max_tokens=9))
        assert await trio.to_thread.run_sync(gate.entered.wait, 60)
        page = write_text(generation_families(server.statistics()))
        load = await server.management.custom_metric(LOAD_FAMILY)
        gate.opened.set()
        assert [response async for response in reply.responses()]
        assert 'trireme_generation_kv_blocks_used{model="letters",version="1"} 1\n' in page
        assert 'trireme_generation_running{model="letters",version="1"} 1\n' in page
        assert 'trireme_generation_kv_blocks{model="letters",version="1"} 1024\n' in page
        assert [(*labels.values(), value) for labels, value in load] == [("tokens_per", 4), ("used", 1), ("max", 1024)]
        ((core,),) = [list(generated.instances.values())]
        assert core.memory.free == core.memory.count


async def test_its_counts_outlive_an_instance(tmp_path: Path) -> None:
    write_model(tmp_path)

    def leave(_step: Step) -> None:
        raise SystemExit(3)

    async with open_letters(tmp_path) as server:
        generated = server.statistics()[0].statistics.generated
        assert generated is not None
        await whole(server, asks("abc", max_tokens=2))
        CountingNetwork.before = staticmethod(leave)
        with pytest.raises(InternalError, match="exit status 3"):
            await whole(server, asks("abc"))
        CountingNetwork.before = staticmethod(lambda _step: None)
        await until(lambda: server.model_ready("letters"))
        await whole(server, asks("abc", max_tokens=2))
        assert generated.counts.drawn == 4
        assert [core.running for core in generated.instances.values()] == [0]


async def test_who_makes_room_is_counted(tmp_path: Path) -> None:
    write_model(tmp_path, kv_tokens=32, block_tokens=4)
    async with open_letters(tmp_path) as server:
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(whole, server, asks("abcd", max_tokens=20, ignore_eos=True))
        generated = server.statistics()[0].statistics.generated
        assert generated is not None
        assert generated.counts.recomputations > 0


async def test_a_trace_tells_when_its_tokens_came(tmp_path: Path) -> None:
    write_model(tmp_path, block_tokens=4)
    async with open_letters(tmp_path) as server:
        await whole(server, asks("abcdefgh", max_tokens=1))
        setting = TraceSetting(TraceConfig(file="unused"), TraceLevel.TIMESTAMPS, 1, -1, 0, frozenset())
        traces: list[Trace] = []
        request = asks("abcdefgh", max_tokens=4, n=2)
        request.trace = Trace(setting, lambda: 1, traces.append)
        request.trace.enter()
        await whole(server, request)
        elements = request.trace.elements
        stamps = {each.name: each.ns for each in elements if isinstance(each, Timestamp)}
        order = ("COMPUTE_START", "PREFILL_START", "PREFILL_END", "DECODE_START", "DECODE_END", "REQUEST_END")
        assert [stamps[name] for name in order] == sorted(stamps[name] for name in order)
        assert stamps["PREFILL_END"] == stamps["DECODE_START"]
        assert [each for each in elements if isinstance(each, GenerationNote)] == [GenerationNote(8, 4, 8, 0)]


@pytest.mark.parametrize("begun", [False, True])
def test_a_request_is_too_late_whether_or_not_its_text_has_begun(tmp_path: Path, begun: bool) -> None:
    directory = write_model(tmp_path)
    limits, memory = IterationLimits(context=CONTEXT, most_tokens=8, most_running=1 + begun), BlockMemory(16, 4)
    network, clock = CountingNetwork(directory, 16, 4), SystemClock()
    instance = GenerationInstance("letters_0", network, Tokenizer(directory), limits, memory, frozenset())
    batches: list[ExecutionBatch] = []
    over: list[ExecutionBatch] = []
    for hours in (0, 1):
        request = asks("a", max_tokens=3, stream=True)
        request.timeout_us = hours * 3_600_000_000
        inputs = {tensor.name: tensor for tensor in request.inputs}
        job = Job(request, inputs, 1, "letters", 1, MagicMock(), received_ns=clock.now_ns())
        batches.append(ExecutionBatch([job], "letters_0", clock))
        instance.admit(batches[-1], partial(over.append, batches[-1]))
    for now_s in (0.0, 0.0, 3_000.0, 3_700.0, 3_700.0, 3_700.0):
        step = instance.begin_step(now_s)
        if step is not None:
            instance.end_step(step, instance.compute(step))
            instance.answer()
    first, second = [[outcome for _, outcome, _ in batch.answers] for batch in batches]
    assert [said(each)[0] for each in first if isinstance(each, InferenceResponse)] == ["b", "c", "d"]
    *early, late = second
    assert len(early) == (2 if begun else 0)
    assert isinstance(late, UnavailableError)
    assert (late.message, late.reason) == ("Request timeout expired", FailureReason.REJECTED)
    assert sorted(over, key=batches.index) == batches
    assert memory.free == 16
