"""The models of a repository as foresight needs them: their configurations, completed from their profiles, and what is
known of each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..engine.backends.interface import Completion
from ..engine.backends.registry import BackendRegistry
from ..engine.config.model import ModelConfig
from ..engine.errors import InvalidArgumentError, NotFoundError
from ..engine.gpu.discovery import NO_GPUS, Gpus
from ..engine.options import ServerOptions
from ..engine.profiles import ModelProfile, present_origin, read_profile
from ..engine.repository.agents import AgentRegistry
from ..engine.repository.local import LocalModel, LocalRepository

ENDING = ".profile.json"


@dataclass(frozen=True, slots=True)
class ForeseenModel:
    """One model.

    Attributes:
        config: complete.
        profile: None for an ensemble.
        stale: why its profile speaks of something else than what is there, in words.
    """

    config: ModelConfig
    profile: ModelProfile | None
    stale: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProfileStore:
    """Where the profiles of a repository's models are: beside each model's directory, or all in one folder."""

    folder: Path | None = None

    def path(self, directory: Path) -> Path:
        """The file of the profile of the model in this directory."""
        return (self.folder or directory.parent) / f"{directory.name}{ENDING}"

    def write(self, directory: Path, profile: ModelProfile) -> Path:
        """Keep a profile; the one before is replaced, whole.

        Raises:
            InvalidArgumentError: it cannot be written.
        """
        path = self.path(directory)
        new = path.with_name(f"{path.name}.new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(profile.to_json(), encoding="utf-8")
            new.replace(path)
        except OSError as error:
            raise InvalidArgumentError(f"profile '{path}' cannot be written: {error}") from error
        return path

    def read(self, directory: Path) -> ModelProfile | None:
        """The profile of the model in this directory; None if there is none.

        Raises:
            InvalidArgumentError: it cannot be read, or is none.
        """
        path = self.path(directory)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgumentError(f"profile '{path}' cannot be read: {error}") from error
        return read_profile(text, f"profile '{path}'")


@dataclass(slots=True)
class ForeseenModels:
    """Looks models up in repositories on this machine.

    Args:
        options: which repositories, and how configurations are read.
        gpus: of the machine that is foreseen.
    """

    options: ServerOptions
    store: ProfileStore = field(default_factory=ProfileStore)
    gpus: Gpus = NO_GPUS

    def directory(self, name: str) -> Path:
        """The model's. Raises NotFoundError: no repository has such a model."""
        return self.source(name).directory

    def written_config(self, name: str) -> ModelConfig:
        """The configuration as it is written, normalised. Raises TriremeError: it is invalid, or there is none."""
        return self.source(name).open(self.options, None, AgentRegistry())[1]

    def with_members(self, names: Iterable[str]) -> list[str]:
        """These models and the members of those that are ensembles, once each, members first."""
        found: dict[str, None] = {}

        def visit(name: str, callers: Sequence[str]) -> None:
            if name in callers:
                raise InvalidArgumentError(f"ensemble '{name}' contains itself")
            config = self.written_config(name)
            if config.has_ensemble_scheduling:
                for step in config.message.ensemble_scheduling.step:
                    visit(step.model_name, [*callers, name])
            found[name] = None

        for name in names:
            visit(name, ())
        return list(found)

    def foreseen(self, name: str) -> ForeseenModel:
        """A model, its configuration completed as loading it would.

        Raises:
            TriremeError: there is no such model, no profile of it, or one of them is invalid.
        """
        source = self.source(name)
        written = self.written_config(name)
        if written.has_ensemble_scheduling:
            return ForeseenModel(source.prepare(written, None, self.gpus), None)
        profile = self.store.read(source.directory)
        if profile is None:
            raise NotFoundError(
                f"model '{name}' has no profile at '{self.store.path(source.directory)}'; make one with: "
                f"trireme profile {name}"
            )
        if profile.model != name:
            raise InvalidArgumentError(f"profile '{self.store.path(source.directory)}' is one of '{profile.model}'")
        placed = source.place(written, self.gpus)
        config = source.prepare(placed, self._completion(source, profile, written), self.gpus)
        names = tuple(gpu.name for gpu in self.gpus.found) if config_uses_gpus(config) else ()
        now = present_origin(source.directory, written, profile.origin.date, names)
        return ForeseenModel(config, profile, profile.origin.changes(now))

    def _completion(self, source: LocalModel, profile: ModelProfile, written: ModelConfig) -> Completion:
        """What the backend found out when the profile was made. It leaves alone what is written by now."""
        text = json.dumps(dict(profile.config))
        config = source.open(self.options, text, AgentRegistry())[1]
        batching = config.dynamic_batching is not None and not written.max_batch_size
        return Completion(
            written.max_batch_size or config.max_batch_size, config.input, config.output, batching, config.decoupled
        )

    def source(self, name: str) -> LocalModel:
        """Raises NotFoundError: no repository has such a model."""
        paths = [Path(each) for each in self.options.model_repository]
        for source in LocalRepository(paths).scan().models:
            if source.name == name and isinstance(source, LocalModel):
                return source
        shown = ", ".join(f"'{path}'" for path in paths)
        raise NotFoundError(f"there is no model '{name}' in {shown}")


def config_uses_gpus(config: ModelConfig) -> bool:
    """Whether instances of it are on GPUs."""
    return any(group.kind == "KIND_GPU" for group in config.instance_group)


def completed_config(models: ForeseenModels, name: str, version: int) -> ModelConfig:
    """The configuration as the model's backend completes it, which looks at its files, but does not load it."""
    source, options = models.source(name), models.options
    config = source.place(models.written_config(name), models.gpus)
    files = source.files(version)
    backend = BackendRegistry(options.options_for_backend).for_model(config, files)
    return source.prepare(config, backend.auto_complete(config, files), models.gpus)
