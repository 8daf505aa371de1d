"""What a server reports to gateways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from trireme.actors import fleet_report
from trireme.actors.fleet_report import FleetReports
from trireme.engine.config import model_config
from trireme.engine.config.chat import ChatTemplate
from trireme.engine.config.model import ModelConfigMessage
from trireme.engine.description import ModelActorStatistics, ModelDescription, ModelState
from trireme.engine.errors import NotFoundError, RefusalReason, UnavailableError
from trireme.engine.request import LATEST


class Clock:
    now = 0.0

    def now_s(self) -> float:
        return self.now

    def now_ns(self) -> int:
        return int(self.now * 1e9)

    def wall_ms(self) -> int:
        return 0


class Server:
    """Models as dictionaries of their ready versions."""

    def __init__(self) -> None:
        self.draining = self.exiting = False
        self.started = True
        self.models: dict[str, dict[int, ModelDescription]] = {}
        self.busy: list[ModelActorStatistics] = []
        self.tell: Callable[[str], None] = lambda _name: None

    def follow_models(self, changed: Callable[[str], None]) -> None:
        self.tell = changed

    def model_names(self) -> list[str]:
        return list(self.models)

    def model_versions(self, name: str) -> Sequence[int] | None:
        return list(self.models[name]) if name in self.models else None

    def model_statistics(self) -> list[ModelActorStatistics]:
        return self.busy

    def describe(self, name: str, version: int = LATEST) -> ModelDescription:
        versions = self.models[name]
        if not versions:
            raise UnavailableError(f"Request for unknown model: '{name}' has no available versions")
        if version == LATEST:
            return versions[max(versions)]
        if version not in versions:
            raise NotFoundError(f"Request for unknown model: '{name}' version {version} is not found")
        return versions[version]

    def set(self, name: str, *versions: int) -> None:
        config = model_config(ModelConfigMessage(name=name, max_batch_size=4))
        self.models[name] = {each: ModelDescription(name, each, versions, config, {"OUT": ("a",)}) for each in versions}
        self.tell(name)

    def remove(self, name: str) -> None:
        del self.models[name]
        self.tell(name)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reports(server: Server, clock: Clock) -> FleetReports:
    server.set("one", 1, 2)
    return FleetReports(server, clock)


def names(report: dict[str, Any]) -> list[tuple[str, bool]]:
    return [(row["name"], "gone" in row) for row in report["models"]]


def test_the_first_report_says_everything(reports: FleetReports) -> None:
    report = reports.report()
    assert report["all"]
    assert report["state"] == "ready"
    (row,) = report["models"]
    assert row["name"] == "one"
    assert row["latest"]["version"] == 2
    assert row["latest"]["versions"] == [1, 2]
    assert row["latest"]["labels"] == {"OUT": ["a"]}
    assert [version for version, _ in row["versions"]] == [1, 2]
    assert row["others"] is None


def test_later_ones_say_what_has_changed(server: Server, reports: FleetReports) -> None:
    known = reports.report()["generation"]
    server.set("two", 1)
    second = reports.report(known)
    assert not second["all"]
    assert names(second) == [("two", False)]
    assert names(reports.report(second["generation"])) == []
    server.remove("one")
    assert names(reports.report(second["generation"])) == [("one", True)]
    assert names(reports.report(known)) == [("two", False), ("one", True)]


def test_a_change_back_is_said_once(server: Server, reports: FleetReports) -> None:
    known = reports.report()["generation"]
    server.set("one", 1, 2)
    assert reports.report(known)["generation"] == known


def test_a_model_that_comes_again_is_not_gone(server: Server, reports: FleetReports) -> None:
    known = reports.report()["generation"]
    server.remove("one")
    reports.report(known)
    server.set("one", 3)
    assert names(reports.report(known)) == [("one", False)]


def test_who_knows_a_generation_that_never_was_is_told_everything(reports: FleetReports) -> None:
    assert reports.report(1000)["all"]


def test_names_that_are_gone_are_forgotten_in_the_end(
    server: Server, reports: FleetReports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then who has not heard of them is told everything."""
    monkeypatch.setattr(fleet_report, "_MOST_GONE", 1)
    known = reports.report()["generation"]
    for name in ("two", "three"):
        server.set(name, 1)
        reports.report()
        server.remove(name)
        reports.report()
    last = reports.report()["generation"]
    assert reports.report(known)["all"]
    assert not reports.report(last)["all"]


def test_errors_have_kind_text_and_refusal(server: Server, reports: FleetReports) -> None:
    server.set("one")
    (row,) = reports.report()["models"]
    text = "Request for unknown model: 'one' has no available versions"
    assert row["latest"] == ["Unavailable", text, None]
    assert row["others"] == ["Unavailable", text, None]
    server.models["one"] = {}
    original = server.describe

    def describe(name: str, version: int = LATEST) -> ModelDescription:
        if version == LATEST:
            raise UnavailableError("not yet", refusal=RefusalReason.STOPPING)
        return original(name, version)

    server.describe = describe  # type: ignore[method-assign]
    server.tell("one")
    (row,) = reports.report()["models"]
    assert row["latest"] == ["Unavailable", "not yet", "stopping"]


def busy(inflight: int, count: int, ns: int) -> ModelActorStatistics:
    about = ModelState.READY, "", 2, 2, 0, 0
    return ModelActorStatistics("one", 2, *about, inflight, queue_count=count, queue_ns=ns)


def test_loads_are_what_is_pending_and_how_long_requests_have_waited_of_late(
    server: Server, clock: Clock, reports: FleetReports
) -> None:
    server.busy = [busy(3, 10, 10_000_000)]
    report = reports.report()
    assert report["loads"] == {"one:2": [3, 1000]}
    assert report["inflight"] == 3
    assert report["capacity"] == 2
    clock.now = 0.1
    server.busy = [busy(1, 12, 10_004_000)]
    assert reports.report()["loads"] == {"one:2": [1, 2]}
    clock.now = 0.2
    assert reports.report()["loads"] == {"one:2": [1, 2]}, "nothing new was begun, and something is pending"
    clock.now = 0.3
    server.busy = [busy(0, 12, 10_004_000)]
    assert reports.report()["loads"] == {}


def test_many_gateways_do_not_look_at_models_more_often(server: Server, clock: Clock, reports: FleetReports) -> None:
    server.busy = [busy(3, 0, 0)]
    reports.report()
    server.busy = [busy(1, 0, 0)]
    clock.now = 0.01
    assert reports.report()["inflight"] == 3
    clock.now = 0.1
    assert reports.report()["inflight"] == 1


def test_a_server_that_stops_says_so(server: Server, reports: FleetReports) -> None:
    server.draining = True
    assert reports.report()["state"] == "draining"
    server.draining, server.started = False, False
    assert reports.report()["state"] == "starting"


def test_what_openai_s_clients_ask_for_is_told(server: Server, reports: FleetReports) -> None:
    """The chat template, and the adapters; names that cannot be JSON are left out."""
    config = model_config(ModelConfigMessage(name="writer"))
    chat = ChatTemplate("{{ messages }}", "<s>", "")
    adapters = ("cook", "\udcff", "kräuter")
    server.models["writer"] = {1: ModelDescription("writer", 1, (1,), config, {}, chat=chat, adapters=adapters)}
    server.tell("writer")
    (found,) = [each["latest"] for each in reports.report()["models"] if each["name"] == "writer"]
    assert found["chat"] == ["{{ messages }}", "<s>", ""]
    assert found["adapters"] == ["cook", "kräuter"]
