"""The engine's table of models, and a front end's copy."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import hypothesis.strategies as st
import orjson
import pytest
from hypothesis import given
from wired import JSON, wired

from trireme.engine.clock import SystemClock
from trireme.engine.config.model import ModelConfig, ModelConfigMessage, model_config
from trireme.engine.description import ModelDescription
from trireme.engine.errors import ColdModelError, InvalidArgumentError, NotFoundError, TriremeError, UnavailableError
from trireme.engine.request import LATEST
from trireme.front_ends.link import LinkError
from trireme.front_ends.models import ModelMirror, ModelTable, write_models


class SetClock(SystemClock):
    def __init__(self) -> None:
        self.at_s = 10.0
        self.now_s = lambda: self.at_s


def config(name: str, decoupled: bool = False) -> ModelConfig:
    message = ModelConfigMessage(name=name, backend="onnxruntime", max_batch_size=8)
    message.input.add(name="IN", data_type=11, dims=[16])
    message.output.add(name="OUT", data_type=11, dims=[16], label_filename="labels.txt")
    message.parameters["key"].string_value = "value"
    message.model_transaction_policy.decoupled = decoupled
    return model_config(message)


class World:
    """Models as a repository has them: by name, the configuration of each version, or None if it is not ready."""

    def __init__(self) -> None:
        self.models: dict[str, dict[int, ModelConfig | None]] = {}
        self.labels = {"OUT": ("cat", "dog \udc80")}
        self.adapters = ("doll", "dog \udc80")
        self.ambiguous: set[str] = set()
        self.started = True
        self.looked: list[tuple[str, int]] = []
        self.table = ModelTable(self.describe, self.versions, lambda: self.started)

    def versions(self, name: str) -> list[int] | None:
        return sorted(self.models[name]) if name in self.models else None

    def touch(self, *names: str) -> None:
        for name in names or self.models:
            self.table.touch(name)

    def describe(self, name: str, version: int = LATEST) -> ModelDescription:
        self.looked.append((name, version))
        if not self.started:
            raise UnavailableError("Server not ready")
        versions = self.models.get(name)
        if versions is None:
            raise NotFoundError(f"Request for unknown model: '{name}' is not found")
        if name in self.ambiguous:
            raise InvalidArgumentError(f"There are 2 identifiers of model '{name}' in global map")
        ready = [each for each, loaded in versions.items() if loaded is not None]
        if version == LATEST:
            if not ready:
                raise NotFoundError(f"Request for unknown model: '{name}' has no available versions")
            version = max(ready)
        if version not in versions:
            raise NotFoundError(f"Request for unknown model: '{name}' version {version} is not found")
        found = versions[version]
        if found is None:
            raise UnavailableError(f"Request for unknown model: '{name}' version {version} is not at ready state")
        return ModelDescription(name, version, tuple(sorted(ready)), found, self.labels, adapters=self.adapters)

    def tell(self, *mirrors: ModelMirror) -> None:
        """Pass the change on."""
        change = self.table.refresh()
        for message in write_models(self.table.generation, change):
            for mirror in mirrors:
                mirror.read(*wired(*message))


def said(describe: Any, name: str, version: int) -> Any:
    try:
        found: ModelDescription = describe(name, version)
    except TriremeError as error:
        return type(error), error.message
    return found.name, found.version, found.versions, found.config, dict(found.labels), found.adapters


def check_same(world: World, mirror: ModelMirror) -> None:
    for name in ("a", "b", "c", "unknown"):
        for version in (LATEST, 0, 1, 2, 3, 99):
            assert said(mirror.describe, name, version) == said(world.describe, name, version)
    for description, number in mirror.numbers.items():
        known = world.table.get(number)
        assert known is not None
        assert said(lambda *_: known, "", 0) == said(lambda *_: description, "", 0)  # noqa: B023


STEPS = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.sampled_from(("load", "loading", "unload", "forget", "ambiguous")), st.integers(1, 3)
    ),
    max_size=12,
)


@given(STEPS, st.integers(0, 12))
def test_a_front_end_says_of_models_what_the_engine_does(steps: list[tuple[str, str, int]], late: int) -> None:
    world, mirrors = World(), [ModelMirror()]
    for index, (name, step, version) in enumerate(steps):
        versions = world.models.setdefault(name, {})
        if step == "load":
            versions[version] = config(name, decoupled=bool(version % 2))
        elif step in ("loading", "unload"):
            versions[version] = None
        elif step == "forget":
            del world.models[name]
        else:
            world.ambiguous ^= {name}
        world.touch(name)
        world.tell(*mirrors)
        if index == late:
            mirrors.append(ModelMirror())
            for message in write_models(world.table.generation, world.table.everything()):
                mirrors[1].read(*wired(*message))
        for mirror in mirrors:
            check_same(world, mirror)


def test_what_has_not_changed_is_not_sent_again() -> None:
    world, mirror = World(), ModelMirror()
    world.models = {"a": {1: config("a")}, "b": {1: config("b")}}
    world.touch()
    world.tell(mirror)
    before = mirror.describe("a")
    generation = world.table.generation
    assert world.table.refresh().empty
    assert world.table.generation == generation
    world.models["b"][2] = config("b")
    world.touch()
    change = world.table.refresh()
    assert [row[0] for row in change.rows] == ["b"]
    assert [each.version for each in change.descriptions.values()] == [2, 1]  # another version more is news of both
    for message in write_models(world.table.generation, change):
        mirror.read(*wired(*message))
    assert mirror.describe("a") is before
    assert mirror.describe("b").version == 2


def test_a_model_that_is_loaded_anew_has_another_description() -> None:
    world, mirror = World(), ModelMirror()
    world.models = {"a": {1: config("a")}}
    world.touch()
    world.tell(mirror)
    before = mirror.describe("a")
    number = mirror.numbers[before]
    world.models["a"][1] = config("a")
    world.touch("a")
    world.tell(mirror)
    assert mirror.describe("a") is not before
    assert before not in mirror.numbers
    assert world.table.get(number) is None


def test_many_models_are_told_in_several_messages_of_which_the_last_has_the_generation() -> None:
    world, mirror = World(), ModelMirror()
    world.models = {f"m{number}": {1: config(f"m{number}")} for number in range(600)}
    world.touch()
    messages = list(write_models(5, world.table.refresh()))
    assert [head[1] for head, _ in messages] == [0] * (len(messages) - 1) + [5]
    assert len(messages) > 19
    for message in messages:
        mirror.read(*wired(*message))
    assert all(mirror.describe(name).name == name for name in world.models)
    assert mirror.generation == 5


def test_for_a_name_that_is_unknown_the_server_is_asked_once_in_a_while() -> None:
    clock = SetClock()
    world, mirror = World(), ModelMirror(clock)
    world.models = {"there": {1: config("there")}, "gone": {}}
    world.touch()
    for message in write_models(1, world.table.refresh()):
        mirror.read(*wired(*message))
    for name in ("new", "gone"):
        clock.at_s += 1
        for _ in range(2):  # it may be looked up again before it is asked for
            with pytest.raises(ColdModelError):
                mirror.describe(name)
        mirror.asked(name)
        with pytest.raises(NotFoundError, match=f"unknown model: '{name}'"):
            mirror.describe(name)
    clock.at_s += 1
    mirror.asked("there")
    with pytest.raises(NotFoundError, match="'there' version 7 is not found"):
        mirror.describe("there", 7)
    with pytest.raises(ColdModelError):
        mirror.describe("new")


def test_a_change_costs_no_look_at_other_models() -> None:
    world, mirror = World(), ModelMirror()
    world.models = {f"m{number}": {1: config(f"m{number}")} for number in range(100)}
    world.touch()
    world.tell(mirror)
    world.looked.clear()
    world.models["m7"][1] = config("m7")
    world.touch("m7")
    world.tell(mirror)
    assert {name for name, _ in world.looked} == {"m7"}
    assert mirror.numbers[mirror.describe("m7")] > 100
    check_same(world, mirror)


def test_models_may_have_as_much_to_say_as_they_like() -> None:
    world, mirror = World(), ModelMirror()
    names = [f"{number}-{'n' * 4_000}" for number in range(200)]
    world.models = {name: {1: None} for name in names}
    world.touch()
    for head, payload in write_models(1, world.table.refresh()):
        assert len(orjson.dumps(head)) < 100
        mirror.read(*wired(head, payload))
    assert all(said(mirror.describe, name, 1) == said(world.describe, name, 1) for name in names)


def test_a_server_that_did_not_start_says_so_of_all_models() -> None:
    world, mirror = World(), ModelMirror()
    world.started = False
    world.tell(mirror)
    assert world.table.generation == 1
    with pytest.raises(UnavailableError):
        mirror.describe("a")


@given(st.lists(JSON, max_size=5), st.binary(max_size=64))
def test_any_other_word_is_an_error_of_the_link(tail: list[Any], payload: bytes) -> None:
    with suppress(LinkError):
        ModelMirror().read([39, *tail], memoryview(payload))


@given(JSON, JSON, st.binary(max_size=64))
def test_any_other_rows_are_an_error_of_the_link(rows: Any, descriptions: Any, rest: bytes) -> None:
    said = orjson.dumps([rows, descriptions])
    with suppress(LinkError):
        ModelMirror().read([39, 1, True, len(said)], memoryview(said + bytes(-len(said) % 16) + rest))
