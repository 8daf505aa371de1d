"""What is wrong with declarations: told by the first one, or collected, so that all are told at once."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

__trireme_hides_frames__ = True


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        text: what.
        remedy: what to write; may have several lines.
        file, line: where; empty and 0 if that is not known.
        model: of which it is; empty if it is of none.
    """

    text: str
    remedy: str
    file: str = ""
    line: int = 0
    model: str = ""

    def __str__(self) -> str:
        place = ":".join(str(each) for each in (self.file, self.line) if each)
        model = f"model '{self.model}': " if self.model else ""
        return f"{place}{': ' if place else ''}{model}{self.text}\n  {self.remedy}"


class DeclarationError(TypeError):
    """A model's declaration cannot be served. The text says where it stands, what is wrong, and what to write.

    Attributes:
        problems: all that is wrong with the declaration.
    """

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems: Sequence[Problem] = problems


@dataclass
class Faults:
    """Gathers what is wrong with the parts of one declaration."""

    problems: list[Problem] = field(default_factory=list)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """A part is looked at inside the block."""
        try:
            yield
        except DeclarationError as error:
            self.problems.extend(error.problems)

    def tell(self) -> None:
        """Raises DeclarationError: something is wrong."""
        if self.problems:
            raise DeclarationError(*self.problems)


def calling_place() -> tuple[str, int]:
    """File and line of the code that called these modules."""
    frame = sys._getframe(1)
    while frame.f_back is not None and "__trireme_hides_frames__" in frame.f_globals:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


_collected: ContextVar[list[Problem] | None] = ContextVar("problems of declarations", default=None)


@contextmanager
def collected_problems() -> Iterator[list[Problem]]:
    """Inside the block faulty declarations raise nothing, and what is wrong with them is noted in the list."""
    problems: list[Problem] = []
    token = _collected.set(problems)
    try:
        yield problems
    finally:
        _collected.reset(token)


def note(error: DeclarationError) -> bool:
    """Whether the problems of a declaration are collected; the caller raises the error if not."""
    collected = _collected.get()
    if collected is None:
        return False
    collected.extend(error.problems)
    return True
