"""Clients that give up in the middle of a sequence, with Triton's own client: what else of it was queued ends with it,
and its slot goes to the next (docs/reference/sequences.md#cancelled-sequences)."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from scripted_server import ScriptedServer, scripted_server
from tritonclient.utils import InferenceServerException

PATIENCE_S = 20

_CONFIG = """
backend: "scripted" max_batch_size: 1
input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }
instance_group { kind: KIND_CPU count: 1 }
"""

MODELS = {
    "direct": "sequence_batching { direct { } max_sequence_idle_microseconds: 60000000 }",
    "oldest": "sequence_batching { oldest { max_candidate_sequences: 1 } max_sequence_idle_microseconds: 60000000 }",
}
"""One slot each."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    repository = tmp_path_factory.mktemp("models")
    for name, extra in MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(_CONFIG + extra)
    with scripted_server(repository) as running:
        yield running


def inputs() -> list[triton.InferInput]:
    tensor = triton.InferInput("IN", [1, 1], "FP32")
    return [tensor.set_data_from_numpy(np.zeros((1, 1), np.float32))]


class Talk:
    """Requests to one model; `name` tells a request from others, `answers` are what came back under each name."""

    def __init__(self, server: ScriptedServer, client: triton.InferenceServerClient, model: str) -> None:
        self.server, self.client, self.model = server, client, model
        self._answers: dict[str, queue.Queue[Any]] = {}

    def ask(self, name: str, sequence: int, flags: str = "", script: str = "", **options: Any) -> Any:
        """Send a request; `flags` has "s" for the start and "e" for the end."""
        answers = self._answers[name] = queue.Queue()
        return self.client.async_infer(
            self.model,
            inputs(),
            lambda result, error: answers.put(error or "answered"),
            request_id=f"{self.model}-{name}",
            sequence_id=sequence,
            sequence_start="s" in flags,
            sequence_end="e" in flags,
            parameters={"script": script or "say!"},
            **options,
        )

    def answer(self, name: str) -> str:
        came = self._answers[name].get(timeout=PATIENCE_S)
        return came if isinstance(came, str) else f"{came.status()} {came.message()}"

    def running(self, name: str) -> None:
        """Wait until the model works on a request."""
        self.server.until(lambda: f"{self.model}-{name}" in self.server.script.begun)

    def accepted(self, count: int) -> None:
        """Wait until the server has so many requests that are not answered."""
        self.server.until(lambda: self.server.server.budget_statistics().requests == count)


@pytest.fixture(params=MODELS)
def talk(server: ScriptedServer, request: pytest.FixtureRequest) -> Iterator[Talk]:
    with triton.InferenceServerClient(server.url) as client:
        yield Talk(server, client, request.param)
    server.until(lambda: server.server.budget_statistics().requests == 0)


def test_a_request_given_up_in_the_queue_ends_its_sequence(server: ScriptedServer, talk: Talk) -> None:
    gate = f"{talk.model}-queue"
    talk.ask("first", 1, "s", f"wait:{gate} say!")
    talk.running("first")
    given_up = talk.ask("second", 1)
    talk.accepted(2)
    talk.ask("third", 1)
    talk.ask("next", 2, "se")
    talk.accepted(4)
    given_up.cancel()
    assert "CANCELLED" in talk.answer("second")
    assert "CANCELLED" in talk.answer("third")
    server.script.open(gate)
    assert talk.answer("first") == "answered"
    assert talk.answer("next") == "answered", "the slot is free for another sequence"
    assert not {f"{talk.model}-second", f"{talk.model}-third"} & set(server.script.begun), "they were never executed"
    talk.ask("late", 1)
    assert "must specify the START flag on the first request" in talk.answer("late")


def test_a_deadline_in_the_queue_ends_its_sequence(server: ScriptedServer, talk: Talk) -> None:
    """The client's own patience, which gRPC tells the server."""
    gate = f"{talk.model}-deadline"
    talk.ask("patient", 3, "s", f"wait:{gate} say!")
    talk.running("patient")
    talk.ask("impatient", 3, client_timeout=0.3)
    assert "DEADLINE_EXCEEDED" in talk.answer("impatient")
    talk.accepted(1)
    talk.ask("behind", 3)
    assert "must specify the START flag" in talk.answer("behind")
    server.script.open(gate)
    assert talk.answer("patient") == "answered"


def test_a_request_given_up_while_it_runs_is_seen_by_the_model(server: ScriptedServer, talk: Talk) -> None:
    """What runs is not stopped, and the sequence goes on."""
    running = talk.ask("run", 4, "s", "until-cancelled say!")
    talk.running("run")
    running.cancel()
    assert "CANCELLED" in talk.answer("run")
    server.until(lambda: f"{talk.model}-run" in server.script.cancelled)
    talk.ask("after", 4, "e")
    assert talk.answer("after") == "answered"


def test_a_stream_that_ends_early_gives_up_its_sequences(server: ScriptedServer, talk: Talk) -> None:
    gate = f"{talk.model}-stream"
    with triton.InferenceServerClient(server.url) as client:
        client.start_stream(lambda result, error: None)
        for step in range(4):
            client.async_stream_infer(
                talk.model,
                inputs(),
                request_id=f"{talk.model}-stream-{step}",
                sequence_id=5,
                sequence_start=step == 0,
                parameters={"script": f"wait:{gate} say!"},
            )
        talk.running("stream-0")
        talk.accepted(4)
        client.stop_stream(cancel_requests=True)
    talk.accepted(1)  # what is queued goes when the server has heard of it
    talk.ask("other", 6, "se")
    server.script.open(gate)
    assert talk.answer("other") == "answered"
    assert not [each for each in server.script.begun if each.startswith(f"{talk.model}-stream-") and each[-1] != "0"]


def test_a_sequence_that_waits_for_a_slot_is_given_up_as_a_whole(server: ScriptedServer, talk: Talk) -> None:
    gate = f"{talk.model}-backlog"
    talk.ask("holder", 7, "s", f"wait:{gate} say!")
    talk.running("holder")
    talk.ask("start", 8, "s")
    talk.accepted(2)
    middle = talk.ask("middle", 8)
    talk.accepted(3)
    middle.cancel()
    assert "CANCELLED" in talk.answer("middle")
    talk.ask("end", 7, "e")
    server.script.open(gate)
    assert talk.answer("end") == "answered"
    assert "CANCELLED" in talk.answer("start")
    with pytest.raises(InferenceServerException, match="must specify the START flag"):
        talk.client.infer(talk.model, inputs(), sequence_id=8)
