"""Large answers are written off the event loop, and are what small ones are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from grpc_stub import PATIENCE_S, OpenStream, infer_request, stub_for
from scripted_server import scripted_server

from trireme.api import pipeline
from trireme.api.grpc import infer, stream_infer


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[Any]:
    with scripted_server(tmp_path) as server, stub_for(server.url) as made:
        yield made


@pytest.fixture
def on_loop(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each answer: whether it was written by a task of the event loop."""
    seen: list[bool] = []

    def watch(place: Any, name: str) -> None:
        genuine = getattr(place, name)

        def watched(*args: Any) -> Any:
            seen.append(trio.lowlevel.in_trio_task())
            return genuine(*args)

        monkeypatch.setattr(place, name, staticmethod(watched) if isinstance(place, type) else watched)

    watch(infer._InferCall, "encode")
    watch(stream_infer, "write_stream_response")
    return seen


def classes(count: int) -> Any:
    """A request whose output is to be classified."""
    request = infer_request(values=range(count))
    request.outputs.add(name="OUT").parameters["classification"].int64_param = 2
    return request


@pytest.mark.parametrize(("count", "small"), [(8, True), (9, False)])
def test_what_takes_long_is_written_elsewhere(
    stub: Any, on_loop: list[bool], monkeypatch: pytest.MonkeyPatch, count: int, small: bool
) -> None:
    monkeypatch.setattr(pipeline, "MANY_ELEMENTS", 8)
    answer = stub.ModelInfer(classes(count), timeout=PATIENCE_S)
    top = f"{count - 1}.000000:{count - 1}".encode()
    assert top in answer.raw_output_contents[0]
    stream = OpenStream(stub)
    for _ in range(3):
        stream.put(classes(count))
    answers = stream.rest()
    assert [top in each.infer_response.raw_output_contents[0] for each in answers] == [True] * 3
    assert on_loop == [small] * 4
