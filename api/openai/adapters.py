"""Adapters of models as models of their own (docs/openai.md#adapters).

Rules:
 1. Models that generate text and take `sampling_parameters` are asked for an adapter by ``lora_name`` in these.
 2. ``MODEL:ADAPTER`` is that adapter of that model.
 3. The name of the adapter is enough if no model has it for its own, and only one model has such an adapter. In a list
    of models an adapter has this name if it is enough, else that of rule 2.
 4. Who may use a model may use its adapters. Models that a caller may not use count for nothing here: they are neither
    looked at nor waited for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress

from ...actors.facade import Facade
from ...engine.access.callers import Caller, Right
from ...engine.description import ModelDescription
from ...engine.errors import NotFoundError
from ...engine.request import LATEST
from ..pipeline import find_model
from .errors import FieldError
from .models import TextModel, served_model

_BETWEEN = ":"


def listed_models(descriptions: Sequence[ModelDescription]) -> Iterator[tuple[str, str | None]]:
    """The names in a list of models, those of adapters with the name of their model.

    Args:
        descriptions: of the models that are ready and that the caller may use.
    """
    adapters = {each.name: adapters_of(each) for each in descriptions}
    owners = Counter(adapter for each in adapters.values() for adapter in each)
    for each in descriptions:
        with suppress(NotFoundError):
            served_model(each)
            yield each.name, None
        for adapter in adapters[each.name]:
            alone = owners[adapter] == 1 and adapter not in adapters
            yield adapter if alone else f"{each.name}{_BETWEEN}{adapter}", each.name


def adapters_of(description: ModelDescription) -> tuple[str, ...]:
    """Those that can be asked for here (rule 1)."""
    if description.adapters:
        with suppress(NotFoundError):
            model = served_model(description)
            if isinstance(model, TextModel) and model.parameters is None:
                return description.adapters
    return ()


async def find_named(server: Facade, caller: Caller | None, name: str) -> tuple[str, str]:
    """The model that a name stands for, and its adapter; empty if the name is none of an adapter.

    Raises:
        FieldError: it is the name of several adapters.
        TriremeError: a model that may be meant cannot be loaded.
    """

    def may(model: str) -> bool:
        return caller is None or caller.may(Right.INFER, model)

    if may(name) and await _there(server, name):
        return name, ""
    model, _, adapter = name.rpartition(_BETWEEN)
    if model and may(model) and await _there(server, model) and adapter in adapters_of(server.describe(model)):
        return model, adapter
    owners = [each.name for each in server.with_adapter(name) if may(each.name) and adapters_of(each)]
    if len(owners) > 1:
        ways = ", ".join(f"'{each}{_BETWEEN}{name}'" for each in owners)
        raise FieldError("model", f"Several models have an adapter '{name}': expected one of {ways}.")
    return (owners[0], name) if owners else (name, "")


async def _there(server: Facade, name: str) -> bool:
    """Whether there is a model of this name; one that is loaded on demand is waited for."""
    try:
        await find_model(server, name, LATEST)
    except NotFoundError:
        return False
    return True
