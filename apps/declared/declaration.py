"""What is declared of a model, as the annotations and options of its function say."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .types import TensorType

__trireme_hides_frames__ = True

MARK = "__trireme_model__"
"""The attribute of a function, class or object that has its `Declaration`."""


class AnswerManner(enum.Enum):
    """How a function answers."""

    RETURNS = "returns"
    AWAITED = "awaited"
    YIELDS = "yields"
    YIELDS_AWAITED = "yields, awaited"

    @property
    def streams(self) -> bool:
        """Any number of answers to a request."""
        return self in (AnswerManner.YIELDS, AnswerManner.YIELDS_AWAITED)

    @property
    def awaited(self) -> bool:
        """It is a coroutine, or an asynchronous generator."""
        return self in (AnswerManner.AWAITED, AnswerManner.YIELDS_AWAITED)


@dataclass(frozen=True)
class InputSpec:
    """An input: a parameter of the function."""

    name: str
    type: TensorType
    optional: bool = False


@dataclass(frozen=True)
class OutputSpec:
    """An output."""

    name: str
    type: TensorType


@dataclass(frozen=True)
class ModelOptions:
    """What `model` is told. See there."""

    max_batch_size: int = 0
    queue_delay_us: int = 0
    instances: int = 1
    batches: str = "array"
    in_process: bool = False
    async_library: str = "asyncio"
    config: str = ""


@dataclass(frozen=True)
class Declaration:
    """A model.

    Attributes:
        target: the function, the class, or the object that is called.
        is_class: each instance of the model makes an object of it, and calls that.
        place: file and line, for people.
        context: the parameter that is given what is known of requests; empty if there is none.
    """

    name: str
    target: Callable[..., Any]
    is_class: bool
    manner: AnswerManner
    inputs: Sequence[InputSpec]
    outputs: Sequence[OutputSpec]
    options: ModelOptions = field(default_factory=ModelOptions)
    place: str = ""
    context: str = ""

    def callable_of_instance(self) -> Callable[..., Any]:
        """What an instance of the model calls; an object of its own if a class was declared."""
        return self.target() if self.is_class else self.target


def declaration_of(value: object) -> Declaration | None:
    """The declaration that something has itself; None if it is no model, or only an object of a class that is one."""
    found = value.__dict__.get(MARK) if hasattr(value, "__dict__") else None
    return found if isinstance(found, Declaration) else None
