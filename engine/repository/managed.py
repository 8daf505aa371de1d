"""A model that repository agents have a say in (`agents`): loaded from wherever they put it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

from ..backends.interface import Completion, ModelFiles
from ..config.json_writer import write_json
from ..config.model import ModelConfig
from ..config.read import finish_config, read_message
from ..errors import InternalError
from ..gpu.discovery import NO_GPUS, Gpus
from ..options import ServerOptions
from .agents import AgentChain, AgentModel, AgentRegistry
from .source import ModelSource


class ManagedModel(ModelSource):
    """A model whose agents are told whether it was loaded, and when it is unloaded.

    Args:
        model: what the agents want to be loaded.
        agents: they have had LOAD.
    """

    def __init__(self, model: ModelSource, agents: AgentChain) -> None:
        self._model = model
        self._agents = agents

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def namespace(self) -> str:
        return self._model.namespace

    def read(self, options: ServerOptions) -> ModelConfig:
        return self._model.read(options)

    def modified_ns(self) -> int:
        return self._model.modified_ns()

    def contents(self) -> Hashable:
        """Like no other: what agents make of a model is loaded each time."""
        return object()

    def versions(self, config: ModelConfig) -> tuple[int, ...]:
        return self._model.versions(config)

    def files(self, version: int) -> ModelFiles:
        return self._model.files(version)

    def place(self, config: ModelConfig, gpus: Gpus) -> ModelConfig:
        return self._model.place(config, gpus)

    def prepare(self, config: ModelConfig, completion: Completion | None, gpus: Gpus = NO_GPUS) -> ModelConfig:
        return self._model.prepare(config, completion, gpus)

    def labels(self, config: ModelConfig) -> Mapping[str, tuple[str, ...]]:
        return self._model.labels(config)

    @property
    def temporary(self) -> bool:
        return True

    def load_ended(self, succeeded: bool) -> None:
        if succeeded:
            self._agents.load_completed()
        else:
            self._agents.load_failed()

    def unloading(self) -> None:
        self._agents.unloading()

    def dispose(self) -> None:
        self._agents.end()

    def __repr__(self) -> str:
        return f"<ManagedModel {self._model!r}>"


def open_managed(
    directory: Path,
    message: Any,
    place: Callable[[Path], ModelSource],
    options: ServerOptions,
    registry: AgentRegistry,
) -> tuple[ManagedModel, ModelConfig]:
    """Let the agents that a configuration names have their say.

    Args:
        directory: the model's.
        message: its configuration, as it was written.
        place: the model, as it is in another directory.

    Raises:
        TriremeError: an agent refuses, or cannot be found; or what they hand over is no valid model.
    """
    messages = {directory: message}

    def read(other: Path) -> str:
        if not other.is_dir():
            raise InternalError(f"failed to stat file {other}")
        messages[other] = read_message(
            other, config_name=options.model_config_name, override_json=None, auto_complete=options.auto_complete
        )
        return write_json(messages[other]).decode()

    asked = [registry.make(agent.name, dict(agent.parameters)) for agent in message.model_repository_agents.agents]
    chain = AgentChain(asked, read)
    name = place(directory).name
    found = chain.load(AgentModel(name, directory, write_json(message).decode())).directory
    done = False
    try:
        config = finish_config(messages[found], found, name, auto_complete=options.auto_complete)
        done = True
    finally:
        if not done:
            chain.load_failed()
    return ManagedModel(place(found), chain), config
