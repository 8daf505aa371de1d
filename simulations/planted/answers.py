"""Bugs of answers and of what clients are told, planted on purpose (`bugs`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...actors.admission import Admission
from ...actors.messages import CacheHit
from ...actors.scheduler import Scheduler
from ...engine.errors import NotFoundError, TriremeError
from ...engine.instances.answer_window import AnswerWindow
from ...engine.job import Job, Outcome
from ...engine.request import InferenceRequest
from ...engine.scheduling.ordering import GivenAnswer, OrderedRelease


def _lost_reply(original: Any, scheduler: Scheduler) -> None:
    """In a batch of three or more of which one was cancelled, the last answer is lost."""
    for batch in scheduler._over:
        if len(batch.jobs) > 2 and any(job.cancelled for job in batch.jobs):
            batch.answers.pop()
    original(scheduler)


def _double_reply(original: Any, scheduler: Scheduler) -> None:
    """When a batch fails as a whole, its first request is answered twice."""
    over = list(scheduler._over)
    original(scheduler)
    for batch in over:
        if batch.answers and all(isinstance(outcome, TriremeError) for _, outcome, _ in batch.answers):
            job, outcome, final = batch.answers[0]
            job.reply.deliver(outcome, final)


def _reordered_answers(
    original: Any, release: OrderedRelease, job: Job, outcome: Outcome, final: bool
) -> list[GivenAnswer]:
    """The answer to a cancelled request does not wait for its turn."""
    released = original(release, job, outcome, final)
    return released or ([(job, outcome, final)] if job.cancelled else [])


def _held_for_ever(
    original: Any, release: OrderedRelease, job: Job, outcome: Outcome, final: bool
) -> list[GivenAnswer]:
    """A cancelled request keeps its place in the order of answers."""
    return [] if job.cancelled and isinstance(outcome, TriremeError) else original(release, job, outcome, final)


def _kept_share(original: Any, scheduler: Scheduler, job: Job, error: TriremeError) -> None:
    """A rejected request still counts as in flight."""
    original(scheduler, job, error)
    scheduler._inflight += error.reason.value == "REJECTED"


def _first_answer_late(original: Any, scheduler: Scheduler, job: Job, outcome: Outcome, final: bool) -> None:
    """The first answer of a decoupled model makes a detour, and one given at the same moment overtakes it."""
    if job.responded or final:
        original(scheduler, job, outcome, final)
    else:
        scheduler._turn.call_from_thread(original, scheduler, job, outcome, final)


def _order_holds_the_model(original: Any, release: OrderedRelease, job: Job, outcome: Outcome, final: bool) -> Any:
    """An answer that waits for its turn counts as one that its client does not take."""
    released = original(release, job, outcome, final)
    if not released and job.window is not None:
        job.window.enter()
    return released


def _window_counts_nothing(original: Any, window: AnswerWindow) -> None:
    """A model that answers too fast is never held back."""


def _hit_overtakes(original: Any, scheduler: Scheduler, message: CacheHit) -> None:
    """What is found in the response cache is answered before what came earlier."""
    del original, scheduler
    message.job.accept()
    message.job.reply.deliver(message.response, True)


def _refused_in_one_breath(original: Any, scheduler: Scheduler) -> None:
    """Requests that came together are counted as waiting although an instance is there to take some."""


def _unknown_while_stopping(original: Any, admission: Admission, request: InferenceRequest, *rest: Any) -> Any:
    """A server that stops no longer knows its models."""
    if admission.exiting:
        raise NotFoundError(f"Request for unknown model: '{request.model_name}' is not found")
    return original(admission, request, *rest)


ANSWER_BUGS: Mapping[str, tuple[type, str, Callable[..., Any]]] = {
    "lost-reply": (Scheduler, "_send_answers", _lost_reply),
    "double-reply": (Scheduler, "_send_answers", _double_reply),
    "reordered-answers": (OrderedRelease, "settle", _reordered_answers),
    "held-for-ever": (OrderedRelease, "settle", _held_for_ever),
    "kept-share": (Scheduler, "_reject", _kept_share),
    "first-answer-late": (Scheduler, "_answered", _first_answer_late),
    "order-holds-the-model": (OrderedRelease, "settle", _order_holds_the_model),
    "window-counts-nothing": (AnswerWindow, "enter", _window_counts_nothing),
    "hit-overtakes": (Scheduler, "_answer", _hit_overtakes),
    "refused-in-one-breath": (Scheduler, "_make_room", _refused_in_one_breath),
    "unknown-while-stopping": (Admission, "find", _unknown_while_stopping),
}
