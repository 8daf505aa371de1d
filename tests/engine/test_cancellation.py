"""Work on a thread is cancelled before it has a result, or not at all."""

from __future__ import annotations

from trireme.engine.cancellation import Cancellation


def test_a_result_comes_before_a_cancellation() -> None:
    cancellation = Cancellation()
    assert cancellation.complete()
    assert not cancellation.cancel()
    assert not cancellation.cancelled


def test_or_after_it() -> None:
    cancellation = Cancellation()
    assert cancellation.cancel()
    assert cancellation.cancel(), "twice is as good as once"
    assert cancellation.cancelled
    assert not cancellation.complete()


def test_what_the_work_waits_for_is_ended_once() -> None:
    cancellation = Cancellation()
    ended: list[str] = []
    with cancellation.ending(lambda: ended.append("first")):
        pass
    with cancellation.ending(lambda: ended.append("second")):
        cancellation.cancel()
        cancellation.cancel()
    assert ended == ["second"]
    with cancellation.ending(lambda: ended.append("third, which came too late")):
        assert ended == ["second", "third, which came too late"]
