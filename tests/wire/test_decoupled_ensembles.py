"""Ensembles over a member that answers any number of times, on gRPC streams (docs/reference/ensembles.md#execution)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_stub import OpenStream, final_flag, stub_for, values_of
from scripted_server import ScriptedServer, scripted_server

from trireme.actors.reply import ANSWER_WINDOW

ENSEMBLE = """
platform: "ensemble"
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
ensemble_scheduling {
  step {
    model_name: "%s" model_version: -1
    input_map { key: "IN" value: "IN" }
    output_map { key: "OUT" value: "OUT" }
  }
}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    """With ``wrapped`` around ``many``, and ``twice`` around ``wrapped``."""
    repository = tmp_path_factory.mktemp("models")
    for name, member in (("wrapped", "many"), ("twice", "wrapped")):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(ENSEMBLE % member)
    with scripted_server(repository) as running:
        yield running


@pytest.fixture
def stub(server: ScriptedServer) -> Iterator[Any]:
    with stub_for(server.url) as made:
        yield made


@pytest.mark.parametrize("model", ["wrapped", "twice"])
def test_every_answer_of_the_member_becomes_one_of_the_ensemble(stub: Any, model: str) -> None:
    stream = OpenStream(stub)
    stream.say(model, "say say say!", "a", values=[1])
    responses = stream.rest()
    assert [values_of(each.infer_response) for each in responses] == [[1], [2], [3]]
    assert {each.infer_response.model_name for each in responses} == {model}
    assert final_flag(responses[-1])


def test_a_member_may_have_nothing_to_say(stub: Any) -> None:
    stream = OpenStream(stub)
    stream.say("wrapped", "end", "a")
    assert stream.rest() == []
    assert stream.status == (grpc.StatusCode.OK, "")


def test_an_error_of_the_member_ends_the_request_and_names_the_ensemble(stub: Any) -> None:
    stream = OpenStream(stub)
    stream.say("wrapped", "say fail:oops", "a")
    first, second = stream.rest()
    assert first.error_message == ""
    assert second.error_message == "in ensemble 'wrapped', oops"


@pytest.mark.parametrize("model", ["wrapped", "twice"])
def test_a_member_that_answers_faster_than_the_client_reads_is_held_back(
    server: ScriptedServer, stub: Any, model: str
) -> None:
    """However many ensembles are between them; and everything arrives in the end."""
    stream = OpenStream(stub)
    many = 40 * ANSWER_WINDOW
    stream.say(model, f"flood:{many} end", "flood", values=[0] * 20_000)  # 80 kB an answer: windows fill soon
    assert stream.hear().infer_response.id == "flood"

    said: list[int] = []

    def stands_still() -> bool:
        said.append(server.script.said["flood"])
        return len(said) > 40 and said[-1] == said[-40]

    server.until(stands_still)
    assert said[-1] < many
    assert len(stream.rest()) == many - 1
    server.until(lambda: server.server.budget_statistics().requests == 0)


def test_a_client_that_leaves_cancels_the_member(server: ScriptedServer, stub: Any) -> None:
    stream = OpenStream(stub)
    stream.say("twice", "say until-cancelled end", "left")
    stream.hear()
    stream.leave()
    server.until(lambda: "left" in server.script.cancelled)
    server.until(lambda: server.server.budget_statistics().requests == 0)
