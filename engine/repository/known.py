"""Models as they were read last, and what follows from that (docs/reference/model-control.md)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..config.model import ModelConfig
from ..ensemble import members_of
from ..errors import TriremeError
from ..options import ServerOptions
from .source import ModelSource
from .uploads import refuse_named_code

FORGOTTEN_NS = -1
"""As the time of the last change: it is to be read again."""


@dataclass(frozen=True, slots=True)
class Known:
    """A model that is to be served, as it was read last.

    Attributes:
        origin: what was looked at.
        source: what is loaded; the same, unless repository agents have put something else in its place.
        modified_ns: when `origin` had been changed last by then; below 0 if it could not be loaded.
        contents: equal as long as nothing but the configuration has changed.
    """

    origin: ModelSource
    source: ModelSource
    config: ModelConfig
    modified_ns: int
    contents: Hashable


@dataclass(frozen=True, slots=True)
class Override:
    """What a load request brings along for the models of one name.

    Attributes:
        source: the model's files, if they came with the request.
    """

    name: str
    config_json: str
    source: ModelSource | None


def check_override(override: Override, own: Sequence[ModelSource], options: ServerOptions) -> None:
    """Look whether what a load request brings along may choose what is run (``--allow-code-upload=false``).

    Args:
        own: the models of that name in the repositories.

    Raises:
        InvalidArgumentError: it does.
    """
    for source in own or [None]:
        loaded = override.source or source
        given = None if loaded is None else _message(loaded, options, override.config_json)
        if given is not None:  # else there is no such model, or its configuration cannot be read, which a poll tells
            before = None if source is None else _message(source, options)
            refuse_named_code(override.name, given, before, brings_files=override.source is not None)


def _message(source: ModelSource, options: ServerOptions, config_json: str | None = None) -> Any | None:
    with suppress(TriremeError):
        return source.message(options, config_json)


def members(config: ModelConfig) -> tuple[str, ...]:
    """The names of the models that an ensemble needs; none for any other model."""
    return members_of(config) if config.has_ensemble_scheduling else ()


def resolve(known: Mapping[str, Known], there: Mapping[str, ModelSource], namespace: str, member: str) -> str | None:
    """Which model an ensemble of a repository means: the one beside it, else the only one of that name
    (docs/reference/model-control.md#namespaces).

    Returns:
        Its id; None if there is none, or several.
    """
    own = f"{namespace}::{member}" if namespace else member
    names = {identity: source.name for identity, source in there.items()}
    names.update((identity, each.source.name) for identity, each in known.items())
    matching = [identity for identity, name in names.items() if name == member]
    if own in matching:
        return own
    return matching[0] if len(matching) == 1 else None


def always(_known: Known) -> bool:
    """Whatever is loaded, it is not wanted."""
    return True


def is_outdated(known: Known) -> bool:
    """Whether a plain load would bring something else. Reads files, or asks a store."""
    return known.source.outdated(known.contents, known.modified_ns)
