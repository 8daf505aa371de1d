"""An instance of a generating model, step by step, without a server."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from counting_network import CONTEXT, CountingNetwork, asks, said, write_model

from trireme.engine.backends.generation.instance import GenerationInstance
from trireme.engine.backends.generation.step_work import GenerationStep
from trireme.engine.backends.generation.tokenizer import Tokenizer
from trireme.engine.clock import SystemClock
from trireme.engine.errors import InternalError
from trireme.engine.generation.blocks import BlockMemory
from trireme.engine.generation.iterations import IterationLimits
from trireme.engine.job import ExecutionBatch, Job
from trireme.engine.request import InferenceRequest, InferenceResponse


def an_instance(tmp_path: Path, running: int) -> GenerationInstance:
    directory = write_model(tmp_path)
    limits, memory = IterationLimits(context=CONTEXT, most_tokens=8, most_running=running), BlockMemory(16, 4)
    network = CountingNetwork(directory, 16, 4)
    return GenerationInstance("letters_0", network, Tokenizer(directory), limits, memory, frozenset())


def taken_in(instance: GenerationInstance, request: InferenceRequest, over: list[ExecutionBatch]) -> ExecutionBatch:
    inputs = {tensor.name: tensor for tensor in request.inputs}
    batch = ExecutionBatch([Job(request, inputs, 1, "letters", 1, MagicMock())], "letters_0", SystemClock())
    instance.admit(batch, partial(over.append, batch))
    return batch


def answered(batch: ExecutionBatch) -> list[str]:
    return [said(answer)[0] for _, answer, _ in batch.answers if isinstance(answer, InferenceResponse)]


def test_requests_are_looked_at_before_the_next_step_but_not_twice_without_one(tmp_path: Path) -> None:
    instance, over = an_instance(tmp_path, 7), list[ExecutionBatch]()
    widths = []
    for _ in range(5):
        taken_in(instance, asks("a", max_tokens=9), over)
        step = instance.begin_step(0.0)
        assert step is not None
        widths.append((len(step.new), 0 if step.step is None else len(step.step.pieces)))
        instance.end_step(step, instance.compute(step))
    assert widths == [(1, 0), (1, 1), (1, 0), (1, 3), (1, 0)]


def test_text_goes_to_clients_when_its_step_is_over(tmp_path: Path) -> None:
    """Not before, though the client has room: the thread may be at it."""
    instance, over = an_instance(tmp_path, 1), list[ExecutionBatch]()
    batch = taken_in(instance, asks("a", stream=True, max_tokens=3), over)
    (job,) = batch.jobs
    job.window = window = MagicMock(crowded=False)
    told: list[list[str]] = []
    while (step := instance.begin_step(0.0)) is not None:
        instance.answer()  # what the step before has brought
        result = instance.compute(step)
        window.on_room()
        told.append(answered(batch))
        instance.end_step(step, result)
    instance.answer()
    assert told == [[], [], ["b"], ["b", "c"]]
    assert answered(batch) == ["b", "c", "d"]


def first_step(instance: GenerationInstance) -> GenerationStep:
    """The first one that computes something; what may follow it is left for the thread."""
    look = instance.begin_step(0.0)
    assert look is not None
    instance.end_step(look, instance.compute(look))
    step = instance.begin_step(0.0)
    assert step is not None
    instance.answer()
    return step


def test_the_thread_goes_on_by_itself_until_a_text_ends(tmp_path: Path) -> None:
    instance, over = an_instance(tmp_path, 2), list[ExecutionBatch]()
    batches = [taken_in(instance, asks(text, stream=True, max_tokens=4), over) for text in ("a", "k")]
    step, followed = first_step(instance), 0
    while True:
        result = instance.compute(step)
        following = instance.follow(step, result)
        instance.end_step(step, result)
        instance.answer()
        if following is None:
            break
        step, followed = following, followed + 1
    assert followed == 3
    assert [answered(batch) for batch in batches] == [["b", "c", "d", "e"], ["l", "m", "n", "o"]]
    assert over == batches
    assert instance.begin_step(0.0) is None


def test_the_thread_may_be_a_step_ahead_of_the_event_loop(tmp_path: Path) -> None:
    instance, over = an_instance(tmp_path, 1), list[ExecutionBatch]()
    batch = taken_in(instance, asks("a", max_tokens=9), over)
    step = first_step(instance)
    result = instance.compute(step)
    following = instance.follow(step, result)
    assert following is not None
    later = instance.compute(following)
    assert instance.follow(following, later) is None, "the event loop has not looked further"
    (job,) = batch.jobs
    assert job.on_cancel is not None
    job.on_cancel()
    instance.end_step(step, result)
    assert instance.core.running == 1, "the thread is at it"
    instance.end_step(following, later)
    assert (instance.core.running, instance.core.memory.free, over) == (0, 16, [batch])


@pytest.mark.parametrize("event", ["arrival", "leaving", "stop", "no number"])
def test_the_thread_does_not_go_on_if_something_has_happened(tmp_path: Path, event: str) -> None:
    instance, over = an_instance(tmp_path, 3), list[ExecutionBatch]()
    batch = taken_in(instance, asks("a", max_tokens=9, stop="b" if event == "stop" else []), over)
    taken_in(instance, asks("k", max_tokens=9), over)
    step = first_step(instance)
    if event == "arrival":
        taken_in(instance, asks("x", max_tokens=2), over)
    elif event == "leaving":
        (job,) = batch.jobs
        assert job.on_cancel is not None
        job.on_cancel()
    result = instance.compute(step)
    if event == "no number":
        result.failed[next(iter(result.drawn))] = InternalError("the model's logits are not numbers")
    assert instance.follow(step, result) is None


@pytest.mark.parametrize("late", [False, True])
def test_the_thread_does_not_go_on_with_a_text_that_is_too_late(tmp_path: Path, late: bool) -> None:
    instance, clock = an_instance(tmp_path, 1), MagicMock()
    clock.now_ns.return_value = 0
    request = asks("a", max_tokens=9)
    request.timeout_us = 50
    job = Job(request, {tensor.name: tensor for tensor in request.inputs}, 1, "letters", 1, MagicMock())
    job.received_ns = 0
    instance.admit(ExecutionBatch([job], "letters_0", clock), MagicMock())
    step = first_step(instance)
    clock.now_ns.return_value = 50_000 if late else 49_999
    assert (instance.follow(step, instance.compute(step)) is None) is late
