"""Errors of a history, each said once: how often, and by how many sequences, instead of once for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from .events import RequestAnswered, RequestSubmitted
from .generations import model_of
from .history import History


@dataclass(slots=True)
class SaidOnce:
    """An error that clients of one model heard.

    Attributes:
        text: without the numbers of the request and of the sequence.
        at_ns: when, for each request that was answered with it.
        sequences: of these requests.
    """

    model: str
    text: str
    at_ns: list[int] = field(default_factory=list)
    sequences: set[int | str] = field(default_factory=set)

    @property
    def times(self) -> str:
        """How often."""
        return times_of(len(self.at_ns), len(self.sequences))


def errors_said_once(history: History) -> list[SaidOnce]:
    """Errors by model and text, in this order."""
    submitted: dict[int, RequestSubmitted] = {}
    found: dict[tuple[str, str], SaidOnce] = {}
    for event in history.events:
        if isinstance(event, RequestSubmitted):
            submitted[event.request] = event
        elif isinstance(event, RequestAnswered) and event.error:
            asked = submitted.get(event.request)
            sequence = asked.sequence if asked is not None else 0
            model = model_of(asked.model) if asked is not None else ""
            text = _without_numbers(event.error, sequence)
            said = found.setdefault((model, text), SaidOnce(model, text))
            said.at_ns.append(event.at_ns)
            if sequence:
                said.sequences.add(sequence)
    return [found[key] for key in sorted(found)]


def said_by_all(errors: Iterable[SaidOnce]) -> list[str]:
    """A line each, whichever model said it."""
    times: Counter[str] = Counter()
    sequences: Counter[str] = Counter()
    for said in errors:
        times[said.text] += len(said.at_ns)
        sequences[said.text] += len(said.sequences)
    return [f"    {times_of(times[text], sequences[text])}: {text}" for text in sorted(times)]


def times_of(requests: int, sequences: int) -> str:
    """How often: ``12 times, of 3 sequences``."""
    of = f", of {sequences} sequence{'s' * (sequences > 1)}" if sequences else ""
    return f"{requests} times{of}"


def _without_numbers(text: str, sequence: int | str) -> str:
    """An error's text without the request's own number in front, and its sequence's."""
    if text.startswith("[request id: "):
        text = text.split("] ", 1)[-1]
    return text.replace(f"sequence {sequence} ", "a sequence ") if sequence else text
