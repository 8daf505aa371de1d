"""An instance of a generating model, step by step, without a server."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from unittest.mock import MagicMock

from counting_network import CONTEXT, CountingNetwork, asks, said, write_model

from trireme.engine.backends.generation.instance import GenerationInstance
from trireme.engine.backends.generation.tokenizer import Tokenizer
from trireme.engine.clock import SystemClock
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
