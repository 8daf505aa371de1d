"""Ctrl-C ends a measurement, whatever is executed when it comes."""

from __future__ import annotations

import contextlib
import signal

import pytest
import trio

from trireme.foresight.interruptible import interruptible

STEPS = 100


async def deaf(heard: list[int], steps: int = STEPS) -> str:
    """Work in which no exception that comes amid a step gets out of it."""
    for step in range(steps):
        with contextlib.suppress(KeyboardInterrupt):
            if step == 2:
                signal.raise_signal(signal.SIGINT)
        heard.append(step)
        await trio.lowlevel.checkpoint()
    return "done"


def test_an_interrupt_ends_work_that_would_not_let_it_out() -> None:
    steps: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        trio.run(interruptible, lambda: deaf(steps))
    assert len(steps) < STEPS
    alone: list[int] = []
    assert trio.run(deaf, alone) == "done"  # as it would be without
    assert len(alone) == STEPS


def test_without_an_interrupt_work_gives_what_it_has_and_raises_what_it_raises() -> None:
    async def fail() -> None:
        raise ValueError("as it is, in no group")

    assert trio.run(interruptible, lambda: deaf([], 2)) == "done"
    with pytest.raises(ValueError, match="in no group"):
        trio.run(interruptible, fail)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_process_that_is_not_to_hear_interrupts_hears_none() -> None:
    """As a shell starts it in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert trio.run(interruptible, lambda: deaf([])) == "done"
    finally:
        signal.signal(signal.SIGINT, before)
