"""Where models come from, as the repository actor sees it.

The actor never looks at a disk itself: it asks a `RepositorySource` what there is. On the real server that is
`LocalRepository`; a simulation brings its models along in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from ..backends.interface import Completion, ModelFiles
from ..cancellation import Cancellation
from ..config import place_instances, prepare_for_load
from ..config.chat import ChatTemplate
from ..config.model import ModelConfig
from ..gpu.discovery import NO_GPUS, Gpus
from ..options import ServerOptions
from .agents import AgentRegistry


class ModelSource(ABC):
    """One model, not yet loaded. Its methods may read files, so they are called off the event loop.

    Args:
        namespace: with model namespacing, the repository that it is from; otherwise empty.

    Attributes:
        temporary: whether it was made for one load, and is to be disposed of when nothing uses it any more.
        distant: whether `fetch` may take long. Then `modified_ns` reads no files.
    """

    temporary: ClassVar[bool] = False
    distant: ClassVar[bool] = False

    def __init__(self, name: str, namespace: str = "") -> None:
        self.name = name
        self.namespace = namespace

    @property
    def id(self) -> str:
        """What tells it from every other model of the server (docs/reference/model-control.md#namespaces)."""
        return f"{self.namespace}::{self.name}" if self.namespace else self.name

    def fetch(self, options: ServerOptions, config_json: str | None, cancellation: Cancellation) -> ModelSource:
        """Bring its files to where paths lead to them. May take long.

        Args:
            config_json: see `open`.
            cancellation: of the look at the model.

        Returns:
            What is to be opened. If it is another source than this one, it is a temporary one.

        Raises:
            TriremeError: they cannot be brought there.
        """
        return self

    @abstractmethod
    def open(
        self, options: ServerOptions, config_json: str | None, agents: AgentRegistry
    ) -> tuple[ModelSource, ModelConfig]:
        """The poll phase (docs/reference/model-configuration.md#where-it-comes-from): the configuration, normalised and
        checked. The model's repository agents may put another model in its place
        (docs/reference/model-control.md#repository-agents).

        Args:
            config_json: a configuration in place of the model's own (docs/reference/model-control.md#load-parameters).

        Returns:
            What is to be loaded. If it is another source than this one, it is a temporary one.

        Raises:
            TriremeError: the configuration cannot be read or is invalid, or an agent refuses.
        """

    def estimated_bytes(self) -> int:
        """Of memory that it will take, as far as can be told before it is loaded."""
        return 0

    def message(self, options: ServerOptions, config_json: str | None = None) -> Any | None:
        """The configuration as it was written, a `ModelConfigMessage`, but with the backend filled in if that can be
        told; None for a model that no request can replace the configuration of.

        Raises:
            TriremeError: it cannot be read.
        """
        return None

    def modified_ns(self) -> int:
        """When anything about the model was last changed, in nanoseconds since some moment; -1 if it is not there."""
        return 0

    def contents(self) -> Hashable:
        """Stands for everything but the configuration: equal as long as none of that has changed
        (docs/reference/model-control.md#changes-in-place)."""
        return ()

    def outdated(self, contents: Hashable, modified_ns: int) -> bool:
        """Whether something of which `contents` and `modified_ns` once told has been replaced since. What was only
        added does not count: a model may write into its directory while it is loaded."""
        return False

    def load_ended(self, succeeded: bool) -> None:
        """The load for which it was opened is over. May take time."""

    def unloading(self) -> None:
        """What was loaded from it is about to be unloaded. May take time."""

    def dispose(self) -> None:
        """Give back what a temporary source takes up."""

    @abstractmethod
    def versions(self, config: ModelConfig) -> tuple[int, ...]:
        """The versions to serve, ascending, chosen by the version policy.

        Raises:
            TriremeError: none is left.
        """

    @abstractmethod
    def files(self, version: int) -> ModelFiles: ...

    def place(self, config: ModelConfig, gpus: Gpus) -> ModelConfig:
        """The load phase, before the backend is asked: see `place_instances`."""
        return place_instances(config, gpus)

    def prepare(self, config: ModelConfig, completion: Completion | None, gpus: Gpus = NO_GPUS) -> ModelConfig:
        """The load phase: see `prepare_for_load`."""
        return prepare_for_load(config, completion, gpus)

    def labels(self, config: ModelConfig) -> Mapping[str, tuple[str, ...]]:
        """Labels by output name.

        Raises:
            TriremeError: a label file cannot be read.
        """
        return {}

    def chat_template(self, version: int, config: ModelConfig) -> ChatTemplate | None:
        """That of a version; None if there is none.

        Raises:
            TriremeError: a file with one cannot be read.
        """
        return None


@dataclass(frozen=True, slots=True)
class Scan:
    """What a look at the repositories found.

    Attributes:
        models: in order of id; without namespacing, a name that several repositories have is not among them.
        duplicates: names that stand in two or more repositories; none of them is served.
    """

    models: tuple[ModelSource, ...]
    duplicates: tuple[str, ...] = ()


class RepositorySource(Protocol):
    def scan(self) -> Scan:
        """Look what is there now.

        Raises:
            TriremeError: a repository cannot be read.
        """
        ...
