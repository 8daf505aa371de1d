"""Which model and adapter a name stands for (docs/openai.md#adapters)."""

from __future__ import annotations

from typing import Any

import pytest

from trireme.api.openai.adapters import find_named, listed_models
from trireme.api.openai.errors import FieldError
from trireme.engine.access.callers import Right
from trireme.engine.config.model import ModelConfig, ModelInput, ModelOutput
from trireme.engine.datatypes import BYTES
from trireme.engine.description import ModelDescription
from trireme.engine.errors import ColdModelError, NotFoundError, UnavailableError

INPUTS = ModelInput("text_input", BYTES, (1,)), ModelInput("sampling_parameters", BYTES, (1,), optional=True)
OUTPUTS = (ModelOutput("text_output", BYTES, (-1,)),)


def described(name: str, *adapters: str, parameters: dict[str, str] | None = None) -> ModelDescription:
    config = ModelConfig(name, input=INPUTS, output=OUTPUTS, parameters=parameters or {})
    return ModelDescription(name, 1, (1,), config, {}, adapters=adapters)


class Models:
    """Those of a server, some of which are loaded when they are waited for."""

    def __init__(self, *models: ModelDescription, cold: tuple[str, ...] = ()) -> None:
        self.models = {each.name: each for each in models}
        self.cold = set(cold)
        self.wanted: list[str] = []
        self.management = self

    def describe(self, name: str, _version: int = -1) -> ModelDescription:
        if name in self.cold:
            raise ColdModelError(name)
        if name == "broken":
            raise UnavailableError("it is not ready")
        if name not in self.models:
            raise NotFoundError(f"Request for unknown model: '{name}' is not found")
        return self.models[name]

    def with_adapter(self, adapter: str) -> list[ModelDescription]:
        return [each for each in self.models.values() if adapter in each.adapters and each.name not in self.cold]

    async def want(self, name: str, _timeout_us: int = 0) -> None:
        self.wanted.append(name)
        self.cold.discard(name)


class Caller:
    """May use these models."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def may(self, right: Right, model: str) -> bool:
        assert right is Right.INFER
        return model in self.names


async def found(models: Models, name: str, caller: Caller | None = None) -> tuple[str, str]:
    server: Any = models
    who: Any = caller
    return await find_named(server, who, name)


async def test_a_model_goes_before_an_adapter() -> None:
    models = Models(described("writer", "poet", "pirate"), described("poet"))
    assert await found(models, "poet") == ("poet", "")
    assert await found(models, "writer:poet") == ("writer", "poet")
    assert await found(models, "pirate") == ("writer", "pirate")
    assert await found(models, "writer:pirate") == ("writer", "pirate")
    with pytest.raises(UnavailableError):
        await found(Models(described("writer", "broken")), "broken")


async def test_what_is_unknown_stays_what_it_is() -> None:
    models = Models(described("writer", "pirate"))
    for name in ("none", "writer:none", "none:pirate", ":pirate", "pirate:", ":", "writer:"):
        assert await found(models, name) == (name, "")


async def test_a_name_of_several_adapters_is_refused_with_the_ways_to_say_it() -> None:
    models = Models(described("writer", "pirate"), described("qwen:7b", "pirate"))
    with pytest.raises(FieldError, match="expected one of 'writer:pirate', 'qwen:7b:pirate'") as caught:
        await found(models, "pirate")
    assert caught.value.param == "model"
    assert await found(models, "qwen:7b:pirate") == ("qwen:7b", "pirate")
    assert await found(models, "pirate", Caller("qwen:7b")) == ("qwen:7b", "pirate")


async def test_models_that_the_caller_may_not_use_are_neither_looked_at_nor_waited_for() -> None:
    models = Models(described("writer", "pirate"), described("pirate"), cold=("pirate",))
    assert await found(models, "pirate", Caller("writer")) == ("writer", "pirate")
    assert await found(models, "writer:pirate", Caller("other")) == ("writer:pirate", "")
    assert await found(models, "pirate", Caller()) == ("pirate", "")
    assert models.wanted == []


async def test_a_model_that_is_loaded_on_demand_is_waited_for() -> None:
    models = Models(described("writer", "pirate"), cold=("writer",))
    assert await found(models, "writer:pirate") == ("writer", "pirate")
    assert models.wanted == ["writer"]


async def test_a_model_that_takes_no_sampling_parameters_has_no_adapters_here() -> None:
    models = Models(described("writer", "pirate", parameters={"openai_text_input": "text_input"}))
    assert await found(models, "pirate") == ("pirate", "")
    assert list(listed_models(list(models.models.values()))) == [("writer", None)]


def test_a_list_has_names_that_can_be_asked_for() -> None:
    listed = listed_models(
        [
            described("a", "both", "b", "own"),
            described("b", "both"),
            ModelDescription("useless", 1, (1,), ModelConfig("useless"), {}, adapters=("lost",)),
        ]
    )
    assert list(listed) == [("a", None), ("a:both", "a"), ("a:b", "a"), ("own", "a"), ("b", None), ("b:both", "b")]
