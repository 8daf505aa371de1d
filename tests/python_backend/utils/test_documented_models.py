"""The models in docs/python_models.md, amid what a server would not show: errors, and what is left.

That they serve, test_pages.py shows.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from recording_host import ListedResponses, RecordingHost, executed

from trireme.python_backend.child.utils.event_loop import EventLoop
from trireme.python_backend.child.utils.response import InferenceResponse, error_response
from trireme.python_backend.child.utils.runner import Runner
from trireme.python_backend.child.utils.tensor import Tensor
from trireme.python_backend.trio_loop import TrioLoop

DOCUMENT = Path(__file__).parents[3] / "docs" / "python_models.md"

Make = Callable[..., Runner]


@pytest.fixture
def make(tmp_path: Path, host: RecordingHost) -> Iterator[Make]:
    """The one documented model whose text has a certain word in it."""
    made: list[Runner] = []

    def write(word: str, loop: EventLoop | None = None) -> Runner:
        (code,) = [code for code in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL) if word in code]
        (tmp_path / "1").mkdir()
        (tmp_path / "1" / "model.py").write_text(code)
        args = {"model_version": "1", "model_repository": str(tmp_path), "model_name": "m"}
        made.append(Runner(host, str(tmp_path / "1" / "model.py"), args, loop=loop))
        made[0].initialize()
        return made[0]

    yield write
    made[0].finalize()


def test_counting_down(make: Make, host: RecordingHost) -> None:
    host.decoupled = True
    executed(make("count_down"), [host.request(1, Tensor("START", np.array([3], np.int32)))])
    for thread in threading.enumerate():
        if "count_down" in thread.name:
            thread.join(10)
    sent = [response and response.output_tensors()[0].as_numpy().tolist() for _, response, _ in host.sent]
    assert sent == [[3], [2], [1], None]
    assert host.abandoned == []


def test_asking(make: Make, host: RecordingHost) -> None:
    answer = InferenceResponse([Tensor("PROBABILITIES", np.zeros((1, 10)))])
    host.answers["digits"] = ListedResponses([answer, error_response("busy")])
    first, second = executed(make("digits"), [host.request(1), host.request(2)])
    assert first is not None
    assert second is not None
    assert first.output_tensors() == answer.output_tensors()
    assert second._error is not None
    assert second._error.message() == "busy"


def test_asking_on_trio(make: Make, host: RecordingHost) -> None:
    answer = InferenceResponse([Tensor("LOUD", np.zeros((1, 1)))])
    host.answers["shout"] = ListedResponses([answer, error_response("busy")])
    responses = executed(make("open_nursery", TrioLoop("patient")), [host.request(1), host.request(2)])
    told = sorted(response._error.message() for response in responses if response and response._error)
    assert (told, len(responses)) == (["busy"], 2)
