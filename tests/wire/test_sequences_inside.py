"""Sequences through the server itself, without sockets: very many of them, and time that a test moves."""

from __future__ import annotations

import gc
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trireme.actors import InferenceServer
from trireme.engine.datatypes import INT32
from trireme.engine.errors import InvalidArgumentError, UnavailableError
from trireme.engine.options import ServerOptions
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor

SLOTS = 64
IDLE_S = 5.0

Sums = dict[int, list[int]]


@pytest.fixture
async def server(repository_root: Path, tmp_path: Path) -> AsyncIterator[InferenceServer]:
    """A server with `running_sum` alone, which has 64 slots."""
    shutil.copytree(repository_root / "model_repository" / "running_sum", tmp_path / "running_sum")
    async with InferenceServer(ServerOptions(model_repository=(tmp_path,))) as server:
        yield server


async def ask(server: InferenceServer, key: int, value: int, flags: str = "", timeout_us: int = 0) -> int:
    request = InferenceRequest(
        "running_sum",
        inputs=[Tensor("INPUT", INT32, (1, 1), array=np.array([[value]], np.int32))],
        correlation_id=key,
        sequence_start="s" in flags,
        sequence_end="e" in flags,
        timeout_us=timeout_us,
    )
    response = await server.infer(request)
    return int(response.output("OUTPUT").array[0, 0])


# Very many


async def one_sequence(server: InferenceServer, key: int, sums: Sums) -> None:
    sums[key] = [await ask(server, key, key, "s"), await ask(server, key, 1), await ask(server, key, -2 * key, "e")]


async def many_sequences(server: InferenceServer, count: int) -> Sums:
    """Sequences that are all open at once: each waits for an answer before it goes on, and most for a slot."""
    sums: Sums = {}
    async with trio.open_nursery() as nursery:
        for key in range(1, count + 1):
            nursery.start_soon(one_sequence, server, key, sums)
    return sums


def living() -> Counter[str]:
    """How many objects of Trireme's own classes there are, by class; but for statistics, which grow with the number of
    different batch sizes."""
    gc.collect()
    modules = [(str(type(each).__module__), type(each).__qualname__) for each in gc.get_objects()]
    return Counter(
        name
        for module, name in modules
        if module.startswith("trireme.") and not module.startswith("trireme.engine.metrics")
    )


@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_many_sequences_at_once_have_their_own_sums_and_leave_nothing_behind(
    server: InferenceServer, mock_clock: MockClock, count: int
) -> None:
    """On a clock that stands still, for a slow machine may take longer than a sequence may be silent."""
    await many_sequences(server, 10 * SLOTS)
    before = living()
    sums = await many_sequences(server, count)
    assert sums == {key: [key, key + 1, 1 - key] for key in range(1, count + 1)}
    left = living() - before
    for _ in range(100):  # an instance's thread lets go of its last batch after the answer
        if left:
            await trio.lowlevel.checkpoint()
            left = living() - before
    assert left == Counter()
    (entry,) = server.statistics("running_sum")
    assert entry.statistics.success.count == 3 * (count + 10 * SLOTS)
    assert entry.statistics.execution_count >= 3 * count / SLOTS


# Time


async def test_a_sequence_that_pauses_too_long_is_forgotten(server: InferenceServer, mock_clock: MockClock) -> None:
    assert await ask(server, 1, 5, "s") == 5
    mock_clock.jump(IDLE_S - 0.5)
    assert await ask(server, 1, 6) == 11
    mock_clock.jump(IDLE_S + 0.5)
    with pytest.raises(InvalidArgumentError, match="sequence 1 to model 'running_sum' must specify the START flag"):
        await ask(server, 1, 7)


async def test_the_slot_of_a_forgotten_sequence_goes_to_the_one_that_waits(
    server: InferenceServer, mock_clock: MockClock
) -> None:
    for key in range(1, SLOTS + 1):
        await ask(server, key, key, "s")
    answers: list[int] = []

    async def wait_for_a_slot() -> None:
        answers.append(await ask(server, 1000, 3, "s"))
        answers.append(await ask(server, 1000, 4, "e"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_a_slot)
        await wait_all_tasks_blocked()
        mock_clock.jump(IDLE_S - 0.5)
        await wait_all_tasks_blocked()
        assert answers == []
        mock_clock.jump(1.0)
    assert answers == [3, 7], "it begins with a sum of its own"


async def test_waiting_for_a_slot_may_have_a_limit(server: InferenceServer, mock_clock: MockClock) -> None:
    for key in range(1, SLOTS + 1):
        await ask(server, key, key, "s")
    refused: list[str] = []

    async def wait_for_a_slot() -> None:
        with pytest.raises(UnavailableError) as caught:
            await ask(server, 1000, 3, "s", timeout_us=2_000_000)
        refused.append(str(caught.value))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_a_slot)
        await wait_all_tasks_blocked()
        mock_clock.jump(1.5)
        await wait_all_tasks_blocked()
        assert refused == []
        mock_clock.jump(1.0)
    assert refused == ["timeout of the corresponding sequence has been expired"]
    assert await ask(server, SLOTS, 1, "e") == SLOTS + 1, "those with a slot do not mind"
