"""Backends by name."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from importlib.metadata import EntryPoint

import pytest

from trireme.engine import plugins
from trireme.engine.backends import registry
from trireme.engine.backends.interface import Backend, LoadedModel, ModelFiles
from trireme.engine.backends.onnxruntime import OnnxRuntimeBackend
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.config.model import ModelConfig
from trireme.engine.errors import InvalidArgumentError, UnavailableError


class Own(Backend):
    name = "own"
    made = 0

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        type(self).made += 1

    def load(self, config: ModelConfig, files: ModelFiles) -> LoadedModel:
        raise AssertionError("not asked to")


def test_a_backend_is_found_by_its_entry_point_made_once_with_its_options() -> None:
    asked: list[str] = []

    def options_for(name: str) -> dict[str, str]:
        asked.append(name)
        return {"default-max-batch-size": "9"}

    backends = BackendRegistry(options_for)
    backend = backends.get("onnxruntime")
    assert isinstance(backend, OnnxRuntimeBackend)
    assert backend.options == {"default-max-batch-size": "9"}
    assert backends.get("onnxruntime") is backend
    assert asked == ["onnxruntime"]


def test_extra_backends_need_no_entry_point_and_come_first() -> None:
    assert isinstance(BackendRegistry(lambda _: {}, {"onnxruntime": Own}).get("onnxruntime"), Own)


def test_many_threads_get_the_same_backend() -> None:
    Own.made = 0
    backends = BackendRegistry(lambda _: {}, {"own": Own})
    found: list[Backend] = []
    threads = [threading.Thread(target=lambda: found.append(backends.get("own"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1
    assert Own.made == 1


def test_an_unknown_backend() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        BackendRegistry(lambda _: {}).get("nosuch")
    assert caught.value.message == (
        "unable to find backend library for backend 'nosuch', try specifying runtime on the model configuration."
    )


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("no_such_package.backend:Backend", "No module named 'no_such_package'"),
        ("math:Backend", "has no attribute 'Backend'"),
        ("math:pi", "is not a subclass of the interface's Backend"),
    ],
)
def test_an_entry_point_that_leads_nowhere(value: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("broken", value, registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda **_: [broken])
    with pytest.raises(UnavailableError) as caught:
        BackendRegistry(lambda _: {}).get("broken")
    assert caught.value.message.startswith("backend 'broken'")
    assert value in caught.value.message
    assert why in caught.value.message


def test_a_backend_that_refuses_its_options_is_asked_again_next_time() -> None:
    options = {"default-max-batch-size": "x"}
    backends = BackendRegistry(lambda _: options)
    with pytest.raises(InvalidArgumentError):
        backends.get("onnxruntime")
    options["default-max-batch-size"] = "2"
    assert backends.get("onnxruntime").options == options
