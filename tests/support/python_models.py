"""Model folders with a ``model.py``, written for a test."""

from __future__ import annotations

import os
import textwrap
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import trio
from trio.testing import MockClock

from trireme.actors import InferenceServer
from trireme.engine.datatypes import FP32
from trireme.engine.options import ServerOptions
from trireme.engine.request import InferenceRequest
from trireme.engine.tensor import Tensor

IDENTITY = """
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                tensor = pb_utils.get_input_tensor_by_name(request, "INPUT0")
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor.as_numpy())]))
            return responses
"""

CONFIG = """
    backend: "python"
    max_batch_size: 8
    input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }]
    output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }]
"""


def write_model(repository: Path, name: str, code: str = IDENTITY, config: str = CONFIG, version: int = 1) -> Path:
    """Write a model; its directory."""
    directory = repository / name
    (directory / str(version)).mkdir(parents=True)
    (directory / str(version) / "model.py").write_text(textwrap.dedent(code))
    (directory / "config.pbtxt").write_text(textwrap.dedent(config))
    return directory


def fp32(values: Sequence[float] | np.ndarray, name: str = "INPUT0") -> Tensor:
    """A tensor of one row."""
    array = np.asarray(values, np.float32).reshape(1, -1)
    return Tensor(name, FP32, array.shape, array.tobytes())


def ask(model: str, *values: float, **fields: Any) -> InferenceRequest:
    """A request with one FP32 input."""
    return InferenceRequest(model, inputs=[fp32(values)], **fields)


@asynccontextmanager
async def open_repository(repository: Path, **options: Any) -> AsyncIterator[InferenceServer]:
    """A server without sockets, on these models."""
    async with InferenceServer(ServerOptions(model_repository=(repository,), **options)) as server:
        yield server


STRANGERS: frozenset[int] = frozenset()
"""Processes of servers that are none of the test's business."""


def child_processes() -> set[int]:
    """Processes that this one has started and that it has not seen the end of, but for `STRANGERS`."""
    children = {child.pid for child in psutil.Process().children()}  # the lists of /proc lose some while others end
    return children - STRANGERS


def open_descriptors() -> set[tuple[int, int, str]]:
    """Number, inode and target of each: a check for what is left over compares two of these, since what earlier tests
    have left may go at any moment."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one for the list itself
            place = f"/proc/self/fd/{number}"
            found.add((int(number), os.stat(place).st_ino, os.readlink(place)))
    return found


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that is not announced."""
    with trio.fail_after(60):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.01)


async def leap(clock: MockClock, seconds: float, condition: Callable[[], object] = lambda: True) -> None:
    """Let this time pass once something is true, and all tasks wait."""
    await until(condition)
    await trio.testing.wait_all_tasks_blocked()
    clock.jump(seconds)


async def until_alive(server: InferenceServer) -> None:
    """Wait until every instance of every model is there."""
    await until(lambda: all(actor.instances_alive == actor.instances for actor in server.model_statistics()))
