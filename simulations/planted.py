"""Bugs, planted on purpose: does the simulator find them?

Each is a change to the actors or cores from outside, undone at the end of the block; there is no trace of them in the
code that serves. They are of the kind that slips through reviews: right nearly always, wrong in a corner. Only tests,
and ``python -m trireme.simulations --plant``, use them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, cast

import numpy as np

from ..actors.admission import Admission
from ..actors.door import stopping_error
from ..actors.ensemble import Ensemble
from ..actors.instances import Instances
from ..actors.messages import Answer as AnswerMessage
from ..actors.messages import Stop
from ..actors.name_locks import NameLocks
from ..actors.rate_limiter import RateLimiter, Unregister, Withdraw
from ..actors.repository import Repository
from ..actors.scheduler import Scheduler
from ..engine.config.model import QueuePolicy
from ..engine.ensemble import EnsembleRun, StepCall
from ..engine.ensemble.run import Iteration, RunState
from ..engine.ensemble.statistics import ComputeTimes
from ..engine.errors import NotFoundError, TriremeError
from ..engine.execution import ExecutionBatch, SealReason
from ..engine.gpu.flights import Flights
from ..engine.gpu.pipeline import Flight, Pipeline
from ..engine.instances.answer_window import AnswerWindow
from ..engine.instances.restart import RestartPolicy
from ..engine.job import Job, Outcome
from ..engine.metrics.statistics import ModelStatistics
from ..engine.request import InferenceRequest
from ..engine.scheduling.batch import BatchLayout, _ScatterLayout
from ..engine.scheduling.compatibility import Compatibility
from ..engine.scheduling.core import Action, InstanceId, Wait, WaitUntil
from ..engine.scheduling.dispatcher import Dispatcher
from ..engine.scheduling.dynamic import DynamicBatcher
from ..engine.scheduling.formation import Formation
from ..engine.scheduling.ordering import Answer, OrderedRelease
from ..engine.scheduling.queue import PriorityQueues
from ..engine.scheduling.rate_limiter import GrantState
from ..engine.scheduling.rate_limiter import RateLimiter as LimiterCore
from ..engine.scheduling.sequence.backlog import Backlog
from ..engine.scheduling.sequence.batcher import SequenceBatcher
from ..engine.scheduling.sequence.controls import Controls
from ..engine.scheduling.sequence.direct import DirectHost
from ..engine.scheduling.sequence.padding import NullJob
from ..engine.scheduling.sequence.state import SequenceState
from ..engine.tensor import Tensor
from .planted_credits import CREDIT_BUGS
from .planted_slots import SLOT_BUGS
from .planted_turns import TURN_BUGS


def _lost_reply(original: Any, scheduler: Scheduler, batch: ExecutionBatch, *rest: Any) -> None:
    """In a batch of three or more of which one was cancelled, the last answer is lost."""
    if len(batch.jobs) > 2 and any(job.cancelled for job in batch.jobs):
        batch.answers.pop()
    original(scheduler, batch, *rest)


def _double_reply(original: Any, scheduler: Scheduler, batch: ExecutionBatch, *rest: Any) -> None:
    """When a batch fails as a whole, its first request is answered twice."""
    original(scheduler, batch, *rest)
    if batch.answers and all(isinstance(outcome, TriremeError) for _, outcome, _ in batch.answers):
        job, outcome, final = batch.answers[0]
        job.reply.deliver(outcome, final)


def _reordered_answers(original: Any, release: OrderedRelease, job: Job, outcome: Outcome, final: bool) -> list[Answer]:
    """The answer to a cancelled request does not wait for its turn."""
    released = original(release, job, outcome, final)
    return released or ([(job, outcome, final)] if job.cancelled else [])


def _exceeded_batch(original: Any, batcher: DynamicBatcher, batching: Any, max_batch_size: int, *rest: Any) -> None:
    """Off by one: batches may grow one row too large."""
    original(batcher, batching, max_batch_size + 1, *rest)


def _inverted_priority(original: Any, queues: PriorityQueues, job: Job, now: float) -> bool:
    """A level that was empty is put last instead of where it belongs."""
    is_last = original(queues, job, now)
    queues._active.sort(key=lambda level: (level == job.level, level))
    return is_last


def _forgotten_instance(original: Any, batcher: DynamicBatcher, instance: InstanceId) -> None:
    """When an instance goes, those that are idle are forgotten with it."""
    original(batcher, instance)
    batcher._idle.clear()


def _swallowed_death(original: Any, scheduler: Scheduler, instance: InstanceId) -> None:
    """A dead instance stays where it can be given work."""
    if instance in scheduler._dispatcher.dismissed:
        original(scheduler, instance)


def _kept_share(original: Any, scheduler: Scheduler, job: Job, error: TriremeError) -> None:
    """A rejected request still counts as in flight."""
    original(scheduler, job, error)
    scheduler._inflight += error.reason.value == "REJECTED"


def _held_for_ever(original: Any, release: OrderedRelease, job: Job, outcome: Outcome, final: bool) -> list[Answer]:
    """A cancelled request keeps its place in the order of answers."""
    return [] if job.cancelled and isinstance(outcome, TriremeError) else original(release, job, outcome, final)


def _unknown_while_stopping(original: Any, admission: Admission, request: InferenceRequest, *rest: Any) -> Any:
    """A server that stops no longer knows its models."""
    if admission.stopping:
        raise NotFoundError(f"Request for unknown model: '{request.model_name}' is not found")
    return original(admission, request, *rest)


def _healthy_corpse(original: Any, repository: Repository, name: str, *version: int) -> bool:
    """A model counts as ready because nobody looks at its instances."""
    del original
    return any(model.name == name and model.ready for model in repository.models())


def _refused_in_one_breath(original: Any, scheduler: Scheduler) -> None:
    """Requests that came together are counted as waiting although an instance is there to take some."""


def _reaper_never_rests(original: Any, batcher: SequenceBatcher, now: float) -> Action:
    """When the last sequence is over, there is nobody to wait for, and the reaper looks again at once, for ever."""
    action = original(batcher, now)
    return WaitUntil(now) if isinstance(action, Wait) and batcher._sequences and not batcher.active else action


def _resource_dies_with_its_holder(original: Any, limiter: RateLimiter, message: Any) -> None:
    """What an instance had been granted is not given back when it dies."""
    if not isinstance(message, Unregister):
        original(limiter, message)


def _stays_in_line(original: Any, limiter: RateLimiter, message: Any) -> None:
    """An instance whose work has expired goes on waiting for its resources, and holds up others."""
    if not isinstance(message, Withdraw):
        original(limiter, message)


def _late_failure(original: Any, run: EnsembleRun, call: StepCall, error: TriremeError, final: bool = True) -> None:
    """When a step of an ensemble has failed, others that fail later are not taken off the list."""
    if run.state is not RunState.FAILED:
        original(run, call, error, final)


def _step_taken_twice(original: Any, run: EnsembleRun, arrived: list[str], at: Iteration) -> None:
    """A step that takes two tensors is carried out when the first of them is there, and once more with the second."""
    before = run._needed
    original(run, arrived, at)
    for call in list(run._ready):
        if len(dict.fromkeys(name for _, name in call.step.inputs)) > 1 and call.step.index in before:
            run._ready[StepCall(run, call.step, at)] = None
            for _, name in call.step.inputs:
                run._values[name, at].uses += 1
            break


def _members_first(original: Any, repository: Repository, message: Any) -> None:
    """A server that stops tells all models at once, the members of ensembles too."""
    if isinstance(message, Stop):
        for model in repository.models():
            model._holds = 0  # or it would not be drained before all let it go that hold it
    original(repository, message)


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


def _never_let_go(original: Any, ensemble: Ensemble, step: Any) -> None:
    """A member that is held back for the sake of a step stays so, even if that waits for the member itself."""


def _locks_nothing(original: Any, locks: NameLocks, names: frozenset[str]) -> Any:
    """Operations on one model do not wait for each other."""
    del original, locks, names
    return nullcontext()


def _drained_without_end(original: Any, instances: Instances, *about: Any) -> float | None:
    """An instance that dies while its model is drained is not started again, whoever still waits for it."""
    delay_s = original(instances, *about)
    return None if cast(Any, instances._scheduler._core)._stopping else delay_s


def _dropped_by_reload(original: Any, scheduler: Scheduler, **options: Any) -> None:
    """A model that is replaced answers nothing any more."""
    original(scheduler, **options)
    scheduler.fail_held(stopping_error())


def _last_comes_first(original: Any, backlog: Backlog) -> Any:
    """The sequence that came last to the backlog gets the slot."""
    del original
    return backlog._sequences.popitem(last=True)[0]


def _one_slot_less(original: Any, host: DirectHost, *arguments: Any) -> None:
    """One slot less than the minimum utilization asks for is enough."""
    original(host, *arguments)
    host._enough = max(0, host._enough - 1)


def _impatient_restart(original: Any, policy: RestartPolicy, now: float) -> float:
    """The delay does not grow while an instance goes on dying."""
    original(policy, now)
    return policy._first_delay_s


def _first_step_alone(original: Any, times: ComputeTimes, marks: Any) -> None:
    """The compute times of an ensemble are those of the first step that was answered."""
    if not times.infer_ns:
        original(times, marks)


def _priorities_ignored(original: Any, limiter: LimiterCore[Any], instance: Any, executed: bool = True) -> None:
    """An execution counts as one, whatever the priority."""
    original(limiter, instance, executed)
    entry = limiter._entries.get(instance)
    if entry is not None and executed:
        entry.executed += 1 - entry.weight


def _small_demands_first(original: Any, limiter: LimiterCore[Any]) -> Any:
    """Who can be granted is, also before one that waits for more of the same."""
    del original
    for instance in limiter.waiting():
        entry = limiter._entries[instance]
        if limiter._pools.take(entry.demand):
            entry.state = GrantState.GRANTED
            limiter._overtake(entry)
            return instance
    return None


def _hit_overtakes(original: Any, scheduler: Scheduler, message: AnswerMessage) -> None:
    """What is found in the response cache is answered before what came earlier."""
    del original, scheduler
    message.job.accept()
    message.job.reply.deliver(message.response, True)


def _state_written_in_place(original: Any, state: SequenceState, output: Tensor) -> None:
    """A state is written where it is; and that is where all sequences begin."""
    del original
    (tensor,) = state.inputs.values()
    np.copyto(tensor.array, output.array)


def _memory_back_early(
    original: Any, flight: Flight, outputs: Any, computed: Any, landed: Any, held: Any, error: Any
) -> None:
    """What a GPU uses for a batch is not held until the batch has landed."""
    del held
    original(flight, outputs, computed, landed, None, error)


def _one_credit_too_many(original: Any, dispatcher: Dispatcher, instance: InstanceId, most: int, **about: Any) -> None:
    """A GPU instance is given one batch more than it has credits."""
    original(dispatcher, instance, most + (most > 1), **about)


def _shared_stream(original: Any, pipeline: Pipeline, *arguments: Any) -> None:
    """Outputs are copied on the stream of the inputs, where they hold up those of the next batch."""
    original(pipeline, *arguments)
    pipeline._copies_out = pipeline._copies_in


def _sickness_unnoticed(original: Any, flights: Flights, now_s: float) -> None:
    """Nobody asks after batches that do not land."""
    original(flights, now_s)


def _latest_idle_first(original: Any, batcher: DynamicBatcher, instance: InstanceId, *spare: bool) -> None:
    """The instance that became idle last takes the next batch."""
    original(batcher, instance, *spare)
    batcher._idle.rotate(1)


def _first_preferred(original: Any, formation: Formation, job: Job) -> bool:
    """A batch ends at the first preferred size, not at the last."""
    cut, reason = formation._cut, formation._cut_reason
    goes_on = original(formation, job)
    if cut:
        formation._cut, formation._cut_reason = cut, reason
    return goes_on


def _delay_of_the_first(original: Any, formation: Formation, job: Job) -> bool:
    """The delay counts from the first request of a batch, though that may not be the oldest one."""
    oldest_s = formation._oldest_s
    goes_on = original(formation, job)
    if formation.count > 1:
        formation._oldest_s = oldest_s
    return goes_on


def _longer_override(original: Any, queues: PriorityQueues, job: Job, policy: QueuePolicy, now: float) -> None:
    """A request may ask for a longer time than the default one."""
    asked_us = job.request.timeout_us
    longer = policy.allow_timeout_override and asked_us > policy.default_timeout_us
    original(queues, job, replace(policy, default_timeout_us=asked_us) if longer else policy, now)


def _anyones_reason(original: Any, formation: Formation, now: float, draining: bool) -> Any:
    """A batch that is sent when its delay is over is said to be sent for an idle instance."""
    count, reason = original(formation, now, draining) or (0, SealReason.IDLE)
    return (count, SealReason.IDLE if reason is SealReason.DELAY else reason) if count else None


def _padding_of_a_client(original: Any, job: NullJob, like: Job, controls: Controls) -> None:
    """Rows that fill gaps hold what the first request of the batch holds."""
    original(job, like, controls)
    job.inputs = {**job.inputs, **{name: like.inputs[name] for name in job.inputs if name.startswith("INPUT")}}


def _swapped_durations(
    original: Any, statistics: ModelStatistics, requests: Any, marks: Sequence[int], *rest: Any
) -> None:
    """The time in the queue counts as time of the inference, and the other way round."""
    original(statistics, requests, marks, *rest)
    statistics.queue, statistics.compute_infer = statistics.compute_infer, statistics.queue


def _swapped_phases(
    original: Any, statistics: ModelStatistics, rows: int, marks: Sequence[int], *rest: Any, **options: Any
) -> None:
    """The inputs' time of an execution counts as the outputs', and the other way round."""
    start, infer, output, end = marks
    original(statistics, rows, (start, start + end - output, start + end - infer, end), *rest, **options)


def _forgotten_beside_a_queue(original: Any, dispatcher: Dispatcher, instance: InstanceId, *its: Any) -> None:
    """An instance of a stateful model that has executed is forgotten while several requests are queued."""
    sequences = dispatcher.sequences
    if sequences is None or sequences.queued < 3 or sequences.active < 3:
        original(dispatcher, instance, *its)


def _names_alone(original: Any, compatibility: Compatibility, job: Job) -> Hashable:
    """Who gives the same inputs may share a batch, whatever is in a shape tensor."""
    contents, compatibility._contents = compatibility._contents, ()
    try:
        return original(compatibility, job)
    finally:
        compatibility._contents = contents


def _cut_from_the_end(original: Any, layout: Any, array: np.ndarray, jobs: Sequence[Job]) -> Any:
    """A flat output is cut up from its end."""
    return original(layout, array, jobs[::-1])[::-1]


def _rows_of_a_neighbour(original: Any, layout: BatchLayout, jobs: Sequence[Job], outputs: Sequence[Any]) -> Any:
    """In a batch of three or more, the last two get each other's rows."""
    shares = original(layout, jobs, outputs)
    if len(shares) > 2 and jobs[-1].rows == jobs[-2].rows:
        (one, mine), (other, its) = shares[-2:]
        shares[-2:] = (one, its), (other, mine)
    return shares


Bug = Callable[..., Any]

PLANTED: Mapping[str, tuple[type, str, Bug]] = {
    "lost-reply": (Scheduler, "_settle", _lost_reply),
    "double-reply": (Scheduler, "_settle", _double_reply),
    "reordered-answers": (OrderedRelease, "settle", _reordered_answers),
    "exceeded-batch": (DynamicBatcher, "__init__", _exceeded_batch),
    "inverted-priority": (PriorityQueues, "put", _inverted_priority),
    "forgotten-instance": (DynamicBatcher, "instance_gone", _forgotten_instance),
    "swallowed-death": (Scheduler, "detach", _swallowed_death),
    "kept-share": (Scheduler, "_reject", _kept_share),
    "reaper-never-rests": (SequenceBatcher, "next_action", _reaper_never_rests),
    "resource-dies-with-its-holder": (RateLimiter, "receive", _resource_dies_with_its_holder),
    "state-written-in-place": (SequenceState, "write", _state_written_in_place),
    "last-comes-first": (Backlog, "pop", _last_comes_first),
    "one-slot-less": (DirectHost, "__init__", _one_slot_less),
    "impatient-restart": (RestartPolicy, "died", _impatient_restart),
    "first-step-alone": (ComputeTimes, "add", _first_step_alone),
    "priorities-ignored": (LimiterCore, "release", _priorities_ignored),
    "small-demands-first": (LimiterCore, "next_grant", _small_demands_first),
    "hit-overtakes": (Scheduler, "_answer", _hit_overtakes),
    "locks-nothing": (NameLocks, "hold", _locks_nothing),
    "drained-without-end": (Instances, "_next_step", _drained_without_end),
    "dropped-by-reload": (Scheduler, "stop", _dropped_by_reload),
    "first-answer-late": (Scheduler, "_answered", _first_answer_late),
    "order-holds-the-model": (OrderedRelease, "settle", _order_holds_the_model),
    "window-counts-nothing": (AnswerWindow, "enter", _window_counts_nothing),
    "never-let-go": (Ensemble, "_look_whether_stuck", _never_let_go),
    "late-failure": (EnsembleRun, "step_failed", _late_failure),
    "step-taken-twice": (EnsembleRun, "_proceed", _step_taken_twice),
    "members-first": (Repository, "receive", _members_first),
    "stays-in-line": (RateLimiter, "receive", _stays_in_line),
    "held-for-ever": (OrderedRelease, "settle", _held_for_ever),
    "unknown-while-stopping": (Admission, "_check", _unknown_while_stopping),
    "healthy-corpse": (Repository, "model_ready", _healthy_corpse),
    "refused-in-one-breath": (Scheduler, "_make_room", _refused_in_one_breath),
    "memory-back-early": (Flight, "__init__", _memory_back_early),
    "one-credit-too-many": (Dispatcher, "attach", _one_credit_too_many),
    "shared-stream": (Pipeline, "__init__", _shared_stream),
    "latest-idle-first": (DynamicBatcher, "instance_idle", _latest_idle_first),
    "first-preferred": (Formation, "add", _first_preferred),
    "delay-of-the-first": (Formation, "add", _delay_of_the_first),
    "longer-override": (PriorityQueues, "_set_deadline", _longer_override),
    "anyones-reason": (Formation, "decide", _anyones_reason),
    "padding-of-a-client": (NullJob, "__init__", _padding_of_a_client),
    "swapped-durations": (ModelStatistics, "record_successes", _swapped_durations),
    "swapped-phases": (ModelStatistics, "record_execution", _swapped_phases),
    "forgotten-beside-a-queue": (Dispatcher, "_has_credit", _forgotten_beside_a_queue),
    **TURN_BUGS,
    **CREDIT_BUGS,
    **SLOT_BUGS,
    "names-alone": (Compatibility, "signature", _names_alone),
    "cut-from-the-end": (_ScatterLayout, "split", _cut_from_the_end),
    "rows-of-a-neighbour": (BatchLayout, "split", _rows_of_a_neighbour),
    "sickness-unnoticed": (Flights, "overdue", _sickness_unnoticed),
}
"""By name: the class and the method that is wrong, and what it does instead."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Within the block this bug is there. An empty name plants none."""
    if not name:
        yield
        return
    where, method, bug = PLANTED[name]
    original = getattr(where, method)
    setattr(where, method, lambda *arguments, **options: bug(original, *arguments, **options))
    try:
        yield
    finally:
        setattr(where, method, original)
