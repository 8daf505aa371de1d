"""The members of an ensemble, bound to it for as long as it serves.

An ensemble was planned for the configurations that its members had when it was loaded, so those very versions of them
carry out its steps until its last request is answered, whatever is loaded or unloaded under their names meanwhile.
When its members change the repository loads the ensemble again; the old one then drains and lets the old members go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..engine.config.ensemble import ensemble_scheduling
from ..engine.config.model import ModelConfig
from ..engine.request import InferenceRequest

if TYPE_CHECKING:
    from .model import Model
    from .readiness import ReadinessCheck

FindModel = Callable[[str, int], "Model"]
AnsweringModel = Callable[["Model", InferenceRequest], "Model"]


class Members:
    """Holds the model of each step.

    Args:
        config: the ensemble's.
        find: the ready version of a model that answers.
        answering: the version of a model that has the sequence which a request continues; otherwise the model itself.

    Attributes:
        steps: the models, in the order of the steps; one that has several steps is there several times.

    Raises:
        TriremeError: one is not there.
    """

    def __init__(self, config: ModelConfig, find: FindModel, answering: AnsweringModel) -> None:
        self._find = find
        self._answering = answering
        names = [(step.model_name, step.model_version) for step in ensemble_scheduling(config).steps]
        self.steps = [find(*name) for name in names]
        self._by_name = dict(zip(names, self.steps, strict=True))
        for model in self._by_name.values():
            model.hold()

    def find(self, request: InferenceRequest) -> Model:
        """The model that answers the request of a step.

        Raises:
            TriremeError: it serves no more, and nor does another one of its name.
        """
        model = self._by_name[request.model_name, request.model_version]
        if not model.serving:
            model = self._find(request.model_name, request.model_version)
        return self._answering(model, request) if model.stateful else model

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
            model.let_go()
        self._by_name = {}
        self.steps = []
