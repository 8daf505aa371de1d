"""What an ensemble knows of its members, bound to it for as long as it serves.

An ensemble was planned for the configurations that its members had when it was loaded, so those very versions of them
carry out its steps until its last request is answered, whatever is loaded or unloaded under their names meanwhile.
When its members change the repository loads the ensemble again; the old one then drains and lets the old members go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ..engine.config.ensemble import ensemble_scheduling
from ..engine.config.model import ModelConfig
from ..engine.errors import UnavailableError
from ..engine.repository.catalog import ModelVersion
from ..engine.request import InferenceRequest
from ..engine.validation import RequestValidator
from .door import Door
from .messages import Hold, LetGo
from .readiness import ReadinessCheck


class Member(ModelVersion, Protocol):
    """What ensembles use of a model (`model.Model`, which says more)."""

    labels: Mapping[str, tuple[str, ...]]

    @property
    def serving(self) -> bool: ...
    @property
    def trouble(self) -> str: ...
    @property
    def has_sequences(self) -> bool: ...
    @property
    def scheduler(self) -> Door[Any]: ...
    @property
    def validator(self) -> RequestValidator: ...

    def own_checks(self) -> list[ReadinessCheck]: ...
    def fingerprint(self) -> str: ...
    def tell(self, message: Hold | LetGo) -> None: ...


FindModel = Callable[[str, int], Member]
FindContinuing = Callable[[Sequence[str], InferenceRequest], Member | None]


class Members:
    """Holds the model of each step.

    Args:
        config: the ensemble's.
        find: the ready version of a model that answers.
        continuing: of the models with these ids, the version that has the sequence which a request continues.

    Attributes:
        steps: the models, in the order of the steps; one that has several steps is there several times.

    Raises:
        TriremeError: one is not there.
    """

    def __init__(self, config: ModelConfig, find: FindModel, continuing: FindContinuing) -> None:
        self._find = find
        self._continuing = continuing
        names = [(step.model_name, step.model_version) for step in ensemble_scheduling(config).steps]
        self.steps = [find(*name) for name in names]
        self._by_name = dict(zip(names, self.steps, strict=True))
        for model in self._by_name.values():
            model.tell(Hold())

    def find(self, request: InferenceRequest) -> Member:
        """The model that answers the request of a step.

        Raises:
            TriremeError: it serves no more, and nor does another one of its name.
        """
        model = self._by_name[request.model_name, request.model_version]
        if not model.serving:
            model = self._find(request.model_name, request.model_version)
        if model.stateful and not model.continues(request):
            return self._continuing([model.id], request) or model
        return model

    @property
    def trouble(self) -> str:
        """What is wrong with one of them; empty if nothing is."""
        for model in self.steps:
            if not model.serving:
                return f"its member '{model.name}' version {model.version} is not serving"
            if model.trouble:
                return f"its member '{model.name}' version {model.version}: {model.trouble}"
        return "" if self.steps else "its members are not there"

    def own_checks(self) -> list[ReadinessCheck]:
        """Of every one, once."""
        return [check for model in dict.fromkeys(self.steps) for check in model.own_checks()]

    def let_go(self) -> None:
        """The ensemble asks nothing more of them."""
        for model in self._by_name.values():
            model.tell(LetGo())
        self._by_name = {}
        self.steps = []


def refuse_recursion(request: InferenceRequest, model: Member) -> None:
    """Refuse a request that all instances of its model wait for, because they made it or what it was made for: it could
    never be executed, whether a model makes it or an ensemble that a model asks. To be called for requests with
    `callers`.

    Args:
        model: which is to execute the request.

    Raises:
        UnavailableError: none of its instances could.
    """
    waiting = {instance for caller, instance in request.callers if caller == (model.name, model.version)}
    if waiting and len(waiting) >= model.actor_statistics().instances:
        raise UnavailableError(
            f"all {len(waiting)} instances of model '{model.name}' wait for the answer to this very request, so that "
            "it could never be executed"
        )
