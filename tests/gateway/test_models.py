"""The models of all replicas, merged."""

from __future__ import annotations

import logging

import pytest
from fleet_world import describe, gone, report, row

from trireme.engine.config.chat import ChatTemplate
from trireme.engine.errors import ColdModelError, NotFoundError, RefusalReason, TriremeError, UnavailableError
from trireme.gateway.models import FleetModels, loads_by_name

NOT_READY = ["Unavailable", "Request for unknown model: 'one' has no available versions", None]


@pytest.fixture
def models() -> FleetModels:
    models = FleetModels()
    models.report("a", report(row("one", describe("one", 1), describe("one", 2))))
    models.report("b", report(row("one", describe("one", 1)), row("two", describe("two"))))
    return models


def refusal(models: FleetModels, name: str, version: int = -1) -> TriremeError:
    with pytest.raises(TriremeError) as raised:
        models.describe(name, version)
    return raised.value


def test_versions_are_those_of_all_replicas(models: FleetModels) -> None:
    assert models.describe("one").version == 2
    assert models.describe("one").versions == (1, 2)
    assert models.describe("one", 1).versions == (1, 2)
    assert models.describe("two").versions == (1,)
    assert models.ready("a") == {"one": {1: True, 2: True}}
    assert models.ready("b") == {"one": {1: True}, "two": {1: True}}


def test_errors_are_those_of_a_server(models: FleetModels) -> None:
    assert refusal(models, "three").message == "Request for unknown model: 'three' is not found"
    error = refusal(models, "one", 3)
    assert isinstance(error, NotFoundError)
    assert error.message == "Request for unknown model: 'one' version 3 is not found"


def test_of_what_no_replica_can_serve_the_error_is_a_replica_s(models: FleetModels) -> None:
    for replica in ("a", "b"):
        models.report(replica, report({"name": "one", "latest": NOT_READY, "others": NOT_READY, "versions": []}))
    error = refusal(models, "one")
    assert isinstance(error, UnavailableError)
    assert error.message == NOT_READY[1]
    assert refusal(models, "one", 7).message == NOT_READY[1]


def test_a_model_that_is_not_in_memory_can_be_waited_for(models: FleetModels) -> None:
    cold = ["Unavailable", ColdModelError("cold").message, RefusalReason.NOT_IN_MEMORY.value]
    models.report("a", report(row("cold", v1=cold), everything=False))
    error = refusal(models, "cold")
    assert isinstance(error, ColdModelError)
    assert error.name == "cold"
    models.report("b", report(row("cold", describe("cold")), everything=False))
    assert models.describe("cold").version == 1


def test_without_any_replica_the_error_says_so() -> None:
    assert "no replica of the fleet has told yet what it serves" in refusal(FleetModels(), "one").message


def test_reports_are_changes(models: FleetModels) -> None:
    models.report("b", report(gone("one"), everything=False))
    assert models.ready("b") == {"two": {1: True}}
    models.report("a", report(row("one", describe("one", 1)), everything=False))
    assert models.describe("one").versions == (1,)
    models.report("b", report())
    assert refusal(models, "two").message == "Request for unknown model: 'two' is not found"


def test_a_replica_that_leaves_takes_its_models_with_it(models: FleetModels) -> None:
    models.forget("a")
    assert models.describe("one").version == 1
    models.forget("b")
    models.forget("nothing")
    refusal(models, "one")


def test_descriptions_and_readiness_stay_the_same_objects(models: FleetModels) -> None:
    """Heads that were read are remembered with a description, and the router compares readiness by identity."""
    before, ready = models.describe("one"), models.ready("a")
    models.report("a", report(row("one", describe("one", 1), describe("one", 2))))
    models.report("b", report(row("three", describe("three")), everything=False))
    assert models.describe("one") is before
    assert models.ready("b")["three"] == {1: True}
    again = models.ready("a")
    models.report("b", report(everything=False))
    assert models.ready("a") is again
    assert again == ready


def test_a_replica_with_other_metadata_is_not_ready_for_the_version(
    models: FleetModels, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            models.report("c", report(row("one", describe("one", 1, dims=8))))
    (record,) = caplog.records
    assert "replica c gets no requests for model 'one' version 1" in record.getMessage()
    assert models.ready("c") == {"one": {1: False}}
    assert models.ready("a")["one"] == {1: True, 2: True}
    assert models.describe("one", 1).config.input[0].dims == (4,)


def test_it_is_ready_when_those_that_agreed_are_gone(models: FleetModels) -> None:
    models.report("c", report(row("one", describe("one", 1, dims=8))))
    models.forget("a")
    models.forget("b")
    assert models.ready("c") == {"one": {1: True}}
    assert models.describe("one", 1).config.input[0].dims == (8,)


def test_who_was_first_stays_first_when_it_reports_again(models: FleetModels) -> None:
    """Though a replica that disagrees may come before it in the order of replicas."""
    models.report("a", report(row("one", describe("one", 1, dims=8))))
    assert models.ready("a") == {"one": {1: False}}
    assert models.describe("one", 1).config.input[0].dims == (4,)


def test_a_configuration_that_was_changed_is_shown(models: FleetModels) -> None:
    """Though clients find the same inputs and outputs."""
    for replica in ("b", "a"):
        changed = describe("one", 1)
        changed.config.message.max_batch_size = 0
        changed.config.message.version_policy.latest.num_versions = 7
        models.report(replica, report(row("one", changed)))
    assert models.describe("one").config.message.version_policy.latest.num_versions == 7


COLD = ["Unavailable", ColdModelError("one").message, RefusalReason.NOT_IN_MEMORY.value]


def test_adapters_are_those_that_all_replicas_have() -> None:
    models = FleetModels()
    models.report("a", report(row("one", describe("one", adapters=("cook", "pirate"))), row("two", describe("two"))))
    assert models.describe("one").adapters == ("cook", "pirate")
    models.report("b", report(row("one", describe("one", adapters=("pirate", "smith")))))
    assert models.describe("one").adapters == ("pirate",)
    assert models.with_adapter("pirate") == [models.describe("one")]
    assert models.with_adapter("cook") == models.with_adapter("smith") == []
    models.report("c", report(row("one", describe("one", dims=5))))  # which gets no requests
    assert models.describe("one").adapters == ("pirate",)
    models.forget("a")
    assert models.describe("one").adapters == ("pirate", "smith")
    models.report("b", report(gone("one"), everything=False))
    assert models.with_adapter("pirate") == []


def test_a_chat_template_is_told_and_so_is_another_one() -> None:
    models = FleetModels()
    models.report("a", report(row("one", describe("one", chat=ChatTemplate("{{ messages }}", "<s>", "</s>")))))
    before = models.describe("one")
    assert before.chat == ChatTemplate("{{ messages }}", "<s>", "</s>")
    models.report("a", report(row("one", describe("one", chat=ChatTemplate("{{ messages }}", "<s>", "</s>")))))
    assert models.describe("one") is before
    models.report("a", report(row("one", describe("one", chat=ChatTemplate("other")))))
    assert models.describe("one").chat == ChatTemplate("other")


def test_a_model_is_loaded_elsewhere_rather_than_waited_for(models: FleetModels) -> None:
    """When all that have it are lost, and others would load it."""
    models.report("b", report(row("one", v1=COLD)))
    assert models.describe("one", 1).version == 1
    models.lost("a")
    assert isinstance(refusal(models, "one"), ColdModelError)
    models.lost("a", False)
    assert models.describe("one", 1).version == 1
    models.lost("a")
    models.report("b", report(row("one", describe("one", 1))))
    assert models.describe("one", 1).version == 1


def test_what_a_lost_replica_has_is_waited_for(models: FleetModels) -> None:
    models.lost("a")
    models.lost("b")
    assert models.describe("one").version == 2
    assert models.describe("two").version == 1


def test_a_route_has_no_version(models: FleetModels) -> None:
    models.report("a", report(row("route", describe("route", -1, versions=())), everything=False))
    assert models.describe("route").version == -1
    assert models.ready("a")["route"] == {1: True}
    assert refusal(models, "route", 3).message == "Request for unknown model: 'route' version 3 is not found"


def test_who_knows_a_name(models: FleetModels) -> None:
    assert models.who_knows("one") == ["a", "b"]
    assert models.who_knows("two") == ["b"]


def test_loads_of_versions_are_added_up() -> None:
    loads = {"m:1": [3, 10], "m:2": [4, 20], "of:colons:1": [1, 0]}
    assert list(loads_by_name(loads)) == [("m", 7, 2e-05), ("of:colons", 1, 0.0)]
