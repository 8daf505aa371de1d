"""What is known of models that are loaded on demand before they are loaded: what they take, need and are worth.

Rules:
 1. Models are read when they are asked for, and again when they have changed meanwhile.
 2. A model needs its members, and what these need in turn. One that needs itself, or what is not there, is not loaded
    at all.
 3. The parameter `PRIORITY` of a model's configuration is a whole number, 0 without it: the higher it is, the longer
    the model stays. With the parameter `PIN` set to true it stays for good once it has been loaded.
 4. What a model needs is worth as much as the model, or more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..backends.parameters import parse_bool
from ..config.model import ModelConfig, model_config
from ..ensemble import Dependencies
from ..errors import InvalidArgumentError, TriremeError
from ..options import ServerOptions
from .agents import AgentRegistry
from .known import members
from .source import ModelSource

PRIORITY, PIN = "ON_DEMAND_PRIORITY", "ON_DEMAND_PIN"
_MOST = 100


@dataclass(frozen=True, slots=True)
class Reading:
    """One model, as it was read last.

    Attributes:
        modified_ns: when it had been changed last by then; -1 if it could not be read, which its load will say.
        nbytes: of memory that it will take, by an estimate.
        members: the models that it needs itself.
        problem: why it is not to be loaded; empty if nothing is known against it.
    """

    modified_ns: int = -1
    nbytes: int = 0
    members: tuple[str, ...] = ()
    priority: int = 0
    pinned: bool = False
    problem: str = ""


def read_models(
    name: str,
    sources: Mapping[str, ModelSource],
    known: Mapping[str, Reading],
    options: ServerOptions,
    agents: AgentRegistry,
) -> dict[str, Reading]:
    """A model, and what it needs, however deep. Reads files.

    Args:
        sources: the models that there are, by name; others are left out.
        known: what was read before.
    """
    found: dict[str, Reading] = {}
    waiting = [name]
    while waiting:
        each = waiting.pop()
        if each in sources and each not in found:
            found[each] = _read(sources[each], known.get(each), options, agents)
            waiting += found[each].members
    return found


def needs_of(name: str, models: Mapping[str, Reading]) -> dict[str, tuple[str, ...]]:
    """What a model needs, and what each of those needs, itself the last one (rule 2).

    Args:
        models: itself, and those that it needs.

    Raises:
        TriremeError: it is not to be loaded.
    """
    found = Dependencies({each: read.members for each, read in models.items()})
    if name in found.problems:
        raise found.problems[name]
    for read in models.values():
        if read.problem:
            raise InvalidArgumentError(read.problem)
    needs: dict[str, tuple[str, ...]] = {}
    for name in (name for wave in found.waves() for name in wave):
        own = models[name].members
        needs[name] = tuple(dict.fromkeys(each for member in own for each in (*needs[member], member)))
    return needs


def worth(models: Sequence[Reading]) -> tuple[int, bool]:
    """Priority of a model, and whether it is pinned (rule 4).

    Args:
        models: itself, and those that need it.
    """
    return max(each.priority for each in models), any(each.pinned for each in models)


def _read(source: ModelSource, known: Reading | None, options: ServerOptions, agents: AgentRegistry) -> Reading:
    try:
        modified_ns = source.modified_ns()
        if known is not None and known.modified_ns == modified_ns >= 0:
            return known
        if modified_ns < 0:
            return Reading()  # it is gone
        message = source.message(options)
        config = source.open(options, None, agents)[1] if message is None else model_config(message)
        about = modified_ns, source.estimated_bytes(), members(config)
    except (TriremeError, OSError):
        return Reading()
    try:
        return Reading(*about, _priority(config), _pinned(config))
    except InvalidArgumentError as error:
        return Reading(*about, problem=error.message)


def _priority(config: ModelConfig) -> int:
    text = config.parameters.get(PRIORITY, "0")
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 3 and int(digits) <= _MOST):
        raise _bad(config, PRIORITY, f"a whole number from -{_MOST} to {_MOST}")
    return int(text)


def _pinned(config: ModelConfig) -> bool:
    try:
        return parse_bool(config.parameters.get(PIN, "false"))
    except InvalidArgumentError:
        raise _bad(config, PIN, "'true' or 'false'") from None


def _bad(config: ModelConfig, name: str, expected: str) -> InvalidArgumentError:
    text = config.parameters[name]
    return InvalidArgumentError(f"parameter '{name}' of model '{config.name}' is '{text}'; expected {expected}")
