"""Back-pressure on a model that answers many times."""

from __future__ import annotations

import threading
from collections.abc import Callable

from trireme.engine.instances.answer_window import AnswerWindow

NOT_THIS_THREAD = -1
PATIENCE_S = 10.0


def answering(window: AnswerWindow, count: int) -> tuple[threading.Thread, list[int], Callable[[int], None]]:
    """A thread that gives `count` answers; what it has given; a function that waits until it has given so many."""
    given: list[int] = []
    changed = threading.Condition()

    def answer() -> None:
        for number in range(count):
            window.enter()
            with changed:
                given.append(number)
                changed.notify_all()

    def until(expected: int) -> None:
        with changed:
            assert changed.wait_for(lambda: len(given) >= expected, PATIENCE_S)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    return thread, given, until


def test_the_answer_beyond_the_limit_waits_until_one_is_taken() -> None:
    window = AnswerWindow(2, NOT_THIS_THREAD)
    thread, given, until = answering(window, 5)
    until(2)
    window.leave(1)
    until(3)
    assert len(given) == 3  # a fourth would be the third that waits to be taken
    window.leave(2)
    until(5)
    thread.join(PATIENCE_S)
    assert window.crowded


def test_no_sender_waits_once_answers_are_not_taken() -> None:
    window = AnswerWindow(1, NOT_THIS_THREAD)
    thread, given, until = answering(window, 4)
    until(1)
    window.open_up()
    thread.join(PATIENCE_S)
    assert given == [0, 1, 2, 3]


def test_the_event_loop_is_never_held_back() -> None:
    """Otherwise it could never take what it waits for."""
    window = AnswerWindow(1, threading.get_ident())
    for _ in range(10):
        window.enter()
    assert window.crowded
