"""Models whose methods are coroutines: to the end in default mode, side by side when decoupled."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
from recording_host import ListedResponses, RecordingHost, executed

from trireme.python_backend.child.utils.response import InferenceResponse
from trireme.python_backend.child.utils.runner import Runner
from trireme.python_backend.child.utils.tensor import Tensor

Make = Callable[[str], Runner]

HEAD = """
import asyncio
import threading
import triton_python_backend_utils as pb_utils

def answer():
    return pb_utils.InferenceResponse([])

class TritonPythonModel:
"""


class TellingHost(RecordingHost):
    """Lets a test wait until so and so many answers were sent."""

    def __init__(self) -> None:
        super().__init__(decoupled=True)
        self._changed = threading.Condition()

    def send(self, key: int, response: InferenceResponse | None, flags: int) -> None:
        with self._changed:
            super().send(key, response, flags)
            self._changed.notify_all()

    def wait_for_answers(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.sent) >= count, 10), self.sent


@pytest.fixture
def host() -> TellingHost:
    return TellingHost()


@pytest.fixture
def make(tmp_path: Path, host: RecordingHost) -> Iterator[Make]:
    made: list[Runner] = []

    def write(methods: str) -> Runner:
        (tmp_path / "1").mkdir()
        path = tmp_path / "1" / "model.py"
        path.write_text(HEAD + "\n".join("    " + line for line in dedent(methods).splitlines()))
        runner = Runner(host, str(path), {"model_version": "1", "model_repository": str(tmp_path), "model_name": "m"})
        made.append(runner)
        runner.initialize()
        return runner

    yield write
    for runner in made:
        runner.finalize()


def test_default_mode_waits_for_the_coroutine(make: Make, host: RecordingHost) -> None:
    host.decoupled = False
    runner = make("""
        async def execute(self, requests):
            await asyncio.sleep(0)
            return [answer() for _ in requests]
    """)
    for _ in range(2):
        assert [type(response) for response in executed(runner, [host.request(1), host.request(2)])] == [
            InferenceResponse,
            InferenceResponse,
        ]


def test_what_a_coroutine_raises_fails_the_batch(make: Make, host: RecordingHost) -> None:
    host.decoupled = False
    runner = make("""
        async def execute(self, requests):
            await asyncio.sleep(0)
            raise ValueError("late")
    """)
    (response,) = executed(runner, [host.request(1)])
    assert response is not None
    assert response._error is not None
    assert "ValueError: late\n\nAt:\n" in response._error.message()
    assert response._error.message().count("): ") == 1, "none but the user's frame"


def test_requests_to_other_models_are_awaited_together(make: Make, host: RecordingHost) -> None:
    host.decoupled = False
    host.answers["x"] = ListedResponses([InferenceResponse([Tensor(name, np.zeros(1))]) for name in "AB"])
    runner = make("""
        async def execute(self, requests):
            asked = [pb_utils.InferenceRequest(model_name="x", inputs=[], requested_output_names=[]) for _ in "ab"]
            answers = await asyncio.gather(*[request.async_exec() for request in asked])
            return [pb_utils.InferenceResponse([output for given in answers for output in given.output_tensors()])]
    """)
    (response,) = executed(runner, [host.request(1)])
    assert response is not None
    assert [output.name() for output in response.output_tensors()] == ["A", "B"]


def test_batches_of_a_decoupled_model_overlap(make: Make, host: TellingHost) -> None:
    """The first batch waits for the second, so this ends only if execute returns before its coroutine has."""
    runner = make("""
        def initialize(self, args):
            self.second_came = asyncio.Event()

        async def execute(self, requests):
            if requests[0].request_id() == "first":
                await self.second_came.wait()
            self.second_came.set()
            for request in requests:
                request.get_response_sender().send(answer(), 1)
    """)
    assert executed(runner, [host.request(1, request_id="first")]) == [None]
    assert executed(runner, [host.request(2)]) == [None]
    host.wait_for_answers(2)
    assert sorted(key for key, _, _ in host.sent) == [1, 2]


def test_exception_of_a_decoupled_coroutine_ends_what_is_open(make: Make, host: TellingHost) -> None:
    runner = make("""
        async def execute(self, requests):
            requests[0].get_response_sender().send(answer(), 1)
            raise ValueError("late")
    """)
    executed(runner, [host.request(1), host.request(2)])
    host.wait_for_answers(2)
    (first, _, _), (second, response, flags) = host.sent
    assert (first, second, flags) == (1, 2, 1)
    assert response is not None
    assert response._error is not None
    assert "ValueError: late" in response._error.message()


def test_decoupled_coroutine_that_answers_nothing_abandons_its_requests(make: Make, host: TellingHost) -> None:
    runner = make("""
        async def execute(self, requests):
            pass
    """)
    executed(runner, [host.request(1)])
    runner.finalize()
    gc.collect()
    assert host.abandoned == [1]


def test_unload_cancels_what_still_runs(make: Make, host: TellingHost) -> None:
    runner = make("""
        async def execute(self, requests):
            requests[0].get_response_sender().send(answer())
            try:
                await asyncio.Event().wait()
            finally:
                pb_utils.Logger.log_info("cancelled")
    """)
    executed(runner, [host.request(1)])
    host.wait_for_answers(1)
    runner.finalize()
    gc.collect()
    assert [message for _, _, _, message in host.logged] == ["cancelled"]
    assert host.abandoned == [1]


def test_readiness_may_be_a_coroutine(make: Make) -> None:
    runner = make("""
        async def is_ready(self):
            await asyncio.sleep(0)
            return False
    """)
    assert runner.is_ready() is False
