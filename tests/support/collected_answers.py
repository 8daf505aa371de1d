"""Answers of a batch that a test executes itself: they are collected in the batch, and not delivered."""

from __future__ import annotations

from typing import Any

from trireme.engine.errors import TriremeError
from trireme.engine.request import InferenceResponse


class NoReply:
    """The reply of a job whose answer stays in its batch."""

    def deliver(self, outcome: Any, final: bool) -> bool:
        raise AssertionError("answers of a batch are collected, not delivered")


def plain(outcome: Any) -> Any:
    """A response's arrays by name; an error as it is."""
    if isinstance(outcome, InferenceResponse):
        return {tensor.name: tensor.array for tensor in outcome.outputs}
    assert isinstance(outcome, TriremeError)
    return outcome
