"""Repositories that are registered while the server runs."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from trireme.engine.errors import AlreadyExistsError, InvalidArgumentError, UnsupportedError
from trireme.engine.options import ControlMode, ServerOptions
from trireme.engine.repository.agents import AgentRegistry
from trireme.engine.repository.local import LocalRepository
from trireme.engine.repository.registered import RegisteredRepositories


def model(repository: Path, name: str, config: str = 'backend: "onnxruntime"') -> Path:
    directory = repository / name
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(config)
    return directory


@pytest.fixture
def first(tmp_path: Path) -> Path:
    model(tmp_path / "first", "a")
    return tmp_path / "first"


@pytest.fixture
def second(tmp_path: Path) -> Path:
    model(tmp_path / "second", "b")
    model(tmp_path / "second", "c")
    return tmp_path / "second"


def repositories(
    first: Path, mode: ControlMode = ControlMode.EXPLICIT, *, namespacing: bool = False
) -> RegisteredRepositories:
    options = ServerOptions(model_repository=(first,), model_control_mode=mode, model_namespacing=namespacing)
    return RegisteredRepositories(LocalRepository([first], namespacing=namespacing), options)


def names(source: RegisteredRepositories) -> list[str]:
    return [each.name for each in source.scan().models]


def test_models_of_a_registered_directory_are_found_until_it_is_taken_away(first: Path, second: Path) -> None:
    source = repositories(first)
    assert names(source) == ["a"]
    source.register(second, {"b": "z"})
    assert names(source) == ["a", "c", "z"], "by the names that are given to them"
    source.unregister(second)
    assert names(source) == ["a"]


def test_two_threads_cannot_both_take_a_name(first: Path, second: Path, tmp_path: Path) -> None:
    source = repositories(first)
    refused: list[str] = []

    def register_another() -> None:
        try:
            source.register(model(tmp_path / "third", "d").parent, {"d": "z"})
        except AlreadyExistsError as error:
            refused.append(error.message)

    class Names(dict[str, str]):
        """Has the other thread begin when what is taken has just been looked at."""

        def values(self) -> Any:
            thread.start()
            thread.join(0.05)
            return super().values()

    thread = Thread(target=register_another)
    source.register(second, Names(b="z"))
    thread.join()
    assert refused == ["failed to register 'z', there is a conflicting mapping for 'z'"]


def test_a_name_in_two_directories_is_served_from_neither(first: Path, second: Path) -> None:
    source = repositories(first)
    source.register(second, {"b": "a"})
    assert (names(source), source.scan().duplicates) == (["c"], ("a",))


def test_with_namespaces_it_is_served_from_both(first: Path, second: Path) -> None:
    source = repositories(first, namespacing=True)
    source.register(second, {"b": "a"})
    ids = {each.id for each in source.scan().models}
    assert ids == {f"{first}::a", f"{second}::a", f"{second}::c"}


def test_the_configuration_may_say_another_name(first: Path, tmp_path: Path) -> None:
    model(tmp_path / "other", "model", 'name: "its_own" backend: "onnxruntime"')
    source = repositories(first)
    source.register(tmp_path / "other", {"model": "renamed"})
    renamed = next(each for each in source.scan().models if each.name == "renamed")
    _, config = renamed.open(ServerOptions(auto_complete=True), None, AgentRegistry())
    assert config.name == "renamed"


def test_a_directory_that_is_gone_does_not_hide_the_others(first: Path, second: Path) -> None:
    source = repositories(first)
    source.register(second, {})
    second.rename(second.with_name("elsewhere"))
    assert names(source) == ["a"]


def test_what_cannot_be_registered_says_why(first: Path, second: Path) -> None:
    source = repositories(first)
    source.register(second, {"b": "z"})
    model(first.parent / "third", "m")
    for path, given, error, text in (
        (second, {}, AlreadyExistsError, f"model repository '{second}' has already been registered"),
        (first, {}, AlreadyExistsError, f"model repository '{first}' has already been registered"),
        (first / "x", {}, InvalidArgumentError, f"failed to register '{first / 'x'}', repository not found"),
        (
            *(first.parent / "third", {"m": "z"}, AlreadyExistsError),
            "failed to register 'z', there is a conflicting mapping for 'z'",
        ),
    ):
        with pytest.raises(error) as refused:
            source.register(path, given)
        assert refused.value.message == text
    with pytest.raises(InvalidArgumentError) as refused:
        source.unregister(first)
    assert refused.value.message == f"failed to unregister '{first}', repository not found"


def test_only_the_explicit_mode_knows_it(first: Path, second: Path) -> None:
    source = repositories(first, ControlMode.POLL)
    for call, what in ((lambda: source.register(second, {}), ""), (lambda: source.unregister(second), "un")):
        with pytest.raises(UnsupportedError) as refused:
            call()
        text = f"repository {what}registration is not allowed if model control mode is not EXPLICIT"
        assert refused.value.message == text
