"""Steps in fixed shapes and their graphs, on a stand-in for a GPU that is the CPU; `test_gpu_network` has one that is
late."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from eager_device import EagerDevice
from hypothesis import given
from hypothesis import strategies as some
from reference_networks import ARCHITECTURES, NEW, SIZES, Played, Reference, one_thread

from trireme.engine.backends.generation import decode_graphs
from trireme.engine.backends.generation.attention import table_of
from trireme.engine.backends.generation.decode_graphs import DecodeShape, decode_shape
from trireme.engine.backends.generation.gpu_network import GpuNetwork
from trireme.engine.errors import InternalError
from trireme.engine.generation.requests import Generation

RUNNING = 12
"""Texts of a step; no power of two."""


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module", params=["llama", "gpt2", "mistral"])
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture
def gpu() -> EagerDevice:
    return EagerDevice()


@pytest.fixture
def make(gpu: EagerDevice) -> Callable[..., GpuNetwork]:
    device: Any = gpu
    return partial(GpuNetwork, gpu=device, name="writer_0", most_running=RUNNING)


def play(reference: Reference, count: int, make: Any, **more: Any) -> Played:
    return Played(reference, count, make=make, **{"most_running": RUNNING, **more})


def decoding(played: Played) -> Any:
    network = played.network
    assert isinstance(network, GpuNetwork)
    return network.decoding


@pytest.mark.parametrize("count", [1, 3, 8, 12])
@pytest.mark.parametrize("graphs", [False, True])
def test_texts_are_what_transformers_generates_one_by_one(
    reference: Reference, count: int, graphs: bool, make: Any, gpu: EagerDevice
) -> None:
    played = play(reference, count, partial(make, graphs=graphs), most_tokens=400)
    played.check(reference)
    steps = decoding(played)
    assert len(steps.captured) == gpu.captures == (len(set(steps.captured)) if graphs else 0)
    assert steps.launched == (NEW - 1 - gpu.captures if graphs else 0), "the first step has prompts"
    if graphs and count > 1:
        assert {shape.rows for shape in steps.captured} == {min(1 << (count - 1).bit_length(), RUNNING)}


def test_texts_that_come_and_grow_cross_the_borders_of_shapes(reference: Reference, make: Any) -> None:
    for running, wanted in ((RUNNING, {1, 2, 4, 8, 12}), (1, {1})):
        played = play(reference, 32, make, most_tokens=45, most_running=running)
        played.check(reference)
        rows, blocks = zip(*decoding(played).captured, strict=True)
        assert len(set(rows)) > 1 or running == 1
        assert set(rows) <= wanted
        assert 16 in blocks, "texts of more than 32 tokens"
        assert decoding(played).launched > 10
    assert 8 in blocks, "and of less"


def test_so_they_are_where_beginnings_are_shared(reference: Reference, make: Any) -> None:
    played = play(reference, 16, make, most_running=3)
    played.check(reference)
    assert played.memory.found > 100
    assert decoding(played).launched > 20


@pytest.mark.parametrize("held", [0, 40])
def test_so_they_are_where_memory_runs_out(reference: Reference, held: int, make: Any) -> None:
    """Texts that are swapped out come back to other blocks, which later graphs have to find."""
    played = play(reference, 16, make, blocks=26, most_running=8, held=held, swaps_from=4)
    played.check(reference)
    counts = played.core.counts
    assert (counts.swaps if held else counts.recomputations) > 3
    assert decoding(played).launched > 10


def test_rows_without_a_text_write_to_a_block_that_none_has(reference: Reference, make: Any) -> None:
    """Nor is anything else changed but the places of the step's tokens."""
    played = play(reference, 3, make)
    for number, prompt in enumerate(reference.prompts[:5]):
        played.core.arrive(Generation(number, list(prompt), NEW))
    network: Any = played.network
    memory, changed = network._memory, 0
    while (step := played.core.begin_step(0.0)) is not None:
        halves = [half for layer in memory.layers for half in memory.of(layer)]
        before = [half.clone() for half in halves]
        shape = network.decoding.shape_of(step)
        logits = network.run(step)
        if shape is not None:
            assert shape.rows == 8
            written = {memory.scratch * 4}
            for piece in step.pieces:
                written.add(table_of(piece)[piece.start // 4] * 4 + piece.start % 4)
            for was, half in zip(before, halves, strict=True):
                places = (was != half).flatten(1).any(1).nonzero().flatten().tolist()
                assert set(places) <= written
                changed += len(places)
        drawing = [piece.generation for piece in step.pieces if piece.draws]
        drawn = {each: [int(row.argmax())] for each, row in zip(drawing, logits, strict=True)}
        played.core.end_step(drawn, lambda _generation: False)
    assert changed > NEW * 4, "there was something to be seen"


def test_texts_do_not_depend_on_what_is_in_that_block(make: Any, tmp_path: Path) -> None:
    reference = Reference("llama", tmp_path, 5)

    def spoiled(*arguments: Any) -> GpuNetwork:
        network = make(*arguments)
        real = network.run

        def run(step: Any) -> Any:
            with torch.inference_mode():
                for layer in network._memory.layers:
                    for half in network._memory.of(layer):
                        half[network._memory.scratch * 4 :] = float("nan")
            return real(step)

        network.run = run
        return network

    play(reference, 5, spoiled).check(reference)


def test_a_capture_that_fails_is_the_last_one_and_is_said_once(
    reference: Reference, make: Any, gpu: EagerDevice, caplog: pytest.LogCaptureFixture
) -> None:
    gpu.refuses = InternalError("unable to capture a CUDA graph: it waits")
    with caplog.at_level(logging.WARNING):
        played = play(reference, 32, make, most_tokens=45)
    played.check(reference)
    assert gpu.captures == 1
    assert decoding(played).launched == 0
    (record,) = [each.getMessage() for each in caplog.records if each.name.endswith("decode_graphs")]
    assert record.startswith("instance 'writer_0': no CUDA graph for ")
    assert record.endswith("nor any further ones: unable to capture a CUDA graph: it waits")


def test_only_the_latest_graphs_are_kept(reference: Reference, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_graphs, "_MOST_GRAPHS", 2)
    played = play(reference, 32, make, most_tokens=45)
    played.check(reference)
    assert len(decoding(played).captured) == 2


def test_steps_whose_copies_would_be_too_large_are_computed_in_parts(
    reference: Reference, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_graphs, "_MOST_COPIED_BYTES", 1)
    played = play(reference, 3, make)
    played.check(reference)
    assert decoding(played).captured == []


def test_another_memory_has_other_graphs(make: Any, tmp_path: Path) -> None:
    """As where its size is told in bytes, and has to be found out first."""
    reference = Reference("llama", tmp_path, 5)

    def kept(directory: Path, blocks: int, size: int, held: int) -> GpuNetwork:
        network = Played(reference, 1, make=make, blocks=30).network
        network.keep(blocks, size, held)
        return network  # type: ignore[return-value]

    play(reference, 3, kept).check(reference)


def test_networks_whose_operations_depend_on_a_step_are_not_captured(
    make: Any, gpu: EagerDevice, tmp_path: Path
) -> None:
    ARCHITECTURES["mixtral"] = lambda: transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**SIZES, num_local_experts=4)
    )
    try:
        reference = Reference("mixtral", tmp_path, 3)
    finally:
        del ARCHITECTURES["mixtral"]
    played = play(reference, 3, make)
    played.check(reference)
    assert decoding(played) is not None
    assert gpu.captures == 0


@given(some.integers(1, 64), some.integers(1, 200), some.integers(1, 64), some.integers(1, 200))
def test_shapes_hold_their_steps_and_are_few(rows: int, blocks: int, most_rows: int, most_blocks: int) -> None:
    rows, blocks = min(rows, most_rows), min(blocks, most_blocks)
    shape = decode_shape(rows, blocks, DecodeShape(most_rows, most_blocks))
    assert rows <= shape.rows <= min(2 * rows, most_rows)
    assert blocks <= shape.blocks <= min(max(2 * blocks, 8), most_blocks)
    for number, most in ((shape.rows, most_rows), (shape.blocks, most_blocks)):
        assert number == most or number.bit_count() == 1
