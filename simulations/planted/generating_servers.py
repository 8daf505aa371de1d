"""Bugs of generating models in a whole server, planted on purpose (`bugs`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import outcome

from ...actors.step_executor import StepExecutor
from ...engine.backends.generation.instance import GenerationInstance


def _stands_still(original: Any, executor: StepExecutor, run: Any, result: Any) -> None:
    """After a step in which a request failed none begins until another request comes."""
    failed = isinstance(result, outcome.Value) and bool(result.value.failed)
    executor._closed, closed = executor._closed or failed, executor._closed
    if failed and not closed:
        run.instance.end_step(run.step, result.unwrap())
    original(executor, run, result)
    executor._closed = closed


def _goes_on_alone(original: Any, instance: GenerationInstance, request: Any) -> None:
    """Who has left is forgotten, and what it wanted is computed all the same."""
    generations = [choice.generation for choice in request.choices]
    for choice in request.choices:
        choice.generation = None
    original(instance, request)
    for choice, generation in zip(request.choices, generations, strict=True):
        choice.generation = generation


def _waits_for_readers(original: Any, instance: GenerationInstance, now_s: float) -> Any:
    """As long as a client does not take its answers, nothing is computed."""
    windows = [request.job.window for request in instance._requests.values()]
    if any(window is not None and window.crowded for window in windows):
        return None
    return original(instance, now_s)


def _room_unheard(original: Any, instance: GenerationInstance, batch: Any, over: Callable[[], None]) -> None:
    """That a client takes its answers again is not heard; it gets the rest when more has been computed."""
    original(instance, batch, over)
    (job,) = batch.jobs
    if job.window is not None:
        job.window.on_room = None


def _told_twice(original: Any, instance: GenerationInstance, request: Any) -> None:
    """Of tokens that have waited for a slow client the last one is told again."""
    waited = [list(choice.untold) for choice in request.choices]
    original(instance, request)
    for choice, untold in zip(request.choices, waited, strict=True):
        if len(untold) > 1 and not choice.untold:
            choice.untold = untold[-1:]


def _late_end_taken(original: Any, executor: StepExecutor, *about: Any) -> None:
    """A step of an instance that was given up ends, and the next one begins."""
    closed, executor._closed = executor._closed, False
    original(executor, *about)
    executor._closed = closed


def _all_fail(original: Any, instance: GenerationInstance, step: Any, result: Any) -> None:
    """A request whose tokens cannot be drawn takes those with it that are in the same step."""
    if result.failed:
        result.error = next(iter(result.failed.values()))
    original(instance, step, result)


def _arrivals_lost(original: Any, instance: GenerationInstance, step: Any, result: Any) -> None:
    """What has come during a step that failed is lost."""
    if result.error is not None:
        instance._new.clear()
    original(instance, step, result)


def _end_untold(original: Any, instance: GenerationInstance, request: Any, error: Any) -> None:
    """Of a request that failed with others the instance does not say that it is over."""
    if request.choices and request.choices[0].generation is not None:
        request.over = lambda: None
    original(instance, request, error)


def _death_unheard(original: Any, executor: StepExecutor, death: Exception) -> None:
    """What has ended its thread is not said."""
    del original, death
    executor._closed = True


def _not_taken_back(original: Any, instance: GenerationInstance) -> None:
    """What has been left for the thread stays, whatever happens meanwhile."""
    del original, instance


def _end_passed(original: Any, instance: GenerationInstance, step: Any, result: Any) -> Any:
    """The thread goes on with the next step though a text is at its end."""
    told = {}
    for generation, drawn in result.drawn.items():
        told[generation] = [each._replace(stopped=False) for each in drawn]
    drawn, result.drawn = result.drawn, told
    following = original(instance, step, result)
    result.drawn = drawn
    return following


GENERATING_SERVER_BUGS: Mapping[str, tuple[type, str, Callable[..., Any]]] = {
    "stands-still": (StepExecutor, "_computed", _stands_still),
    "late-end-taken": (StepExecutor, "_computed", _late_end_taken),
    "death-of-steps-unheard": (StepExecutor, "_die", _death_unheard),
    "goes-on-alone": (GenerationInstance, "_leave", _goes_on_alone),
    "waits-for-readers": (GenerationInstance, "begin_step", _waits_for_readers),
    "room-unheard": (GenerationInstance, "admit", _room_unheard),
    "token-told-twice": (GenerationInstance, "_send", _told_twice),
    "all-fail-of-one": (GenerationInstance, "end_step", _all_fail),
    "arrivals-lost": (GenerationInstance, "end_step", _arrivals_lost),
    "not-taken-back": (GenerationInstance, "_take_back", _not_taken_back),
    "end-passed": (GenerationInstance, "follow", _end_passed),
    "end-untold": (GenerationInstance, "_fail", _end_untold),
}
"""Found by swarm runs of servers with generating models (`generating_servers`)."""
