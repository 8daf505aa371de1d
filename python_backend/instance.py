"""A Python model instance, as the server sees it: a process, what it was given, and what it answers.

Rules:
 1. The process executes one batch at a time, or several if the model's ``execute`` is a coroutine (`credits`). A
    decoupled model may answer the requests of earlier batches meanwhile.
 2. A request is open from when it is given to the process until its final response. The process says nothing about
    others, and its answers are not read.
 3. A decoupled model may send `protocol.WINDOW` responses to a request ahead of its client. More are allowed as they
    are taken: at once, unless the request's window is crowded, and otherwise when there is room.
 4. When the process is gone, every open request of a batch that is over is answered with an error. The instance actor
    decides about those that are not over.
 5. A request that is to be executed once more keeps its key, so that its sender stays good. What the sender says before
    the request is executed again is kept until then.
 6. A batch is over when ``execute`` has returned, and, for a model that is not decoupled, each of its requests has been
    answered: a response sender may do so later.
 7. What the process logs and prints is taken in at a `Pace`. Of log lines it may send `protocol.LOG_WINDOW` ahead, of
    output what a pipe holds; then it waits. Of everything else that it says, `_HEARD_AT_ONCE` messages are heard in one
    turn, and then it is others' turn.
 8. Large inputs in clients' memory are copied once, when a batch is prepared. A job that loses one then fails alone.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, repeat
from typing import Any

from ..engine.backends.interface import InstanceSpec, ProcessInstance
from ..engine.backends.services import Services
from ..engine.config.model import ModelConfig
from ..engine.errors import FailureReason, InternalError, InvalidArgumentError, TriremeError, UnavailableError
from ..engine.job import INFER_START, OUTPUT_START, ExecutionBatch, Job
from ..engine.request import CallingInstance
from ..engine.tracing.record import Trace
from .calls import Calls
from .child import protocol
from .child.channel import ChannelClosedError, Letter
from .child.codec import Message, MessageError, Payload
from .launching import ModelThread, OutputLog, Pace, Process, describe_status, log_line, unhealthy
from .wire import KnownTensors, LostInputError, read_response, without_lost, write_job

logger = logging.getLogger("trireme.python")

_TAKEN_AT_ONCE = protocol.WINDOW // 2
_HEARD_AT_ONCE = 64
_HEARD_AT_END = 16_384  # more than a socket holds; what a model has started may go on saying something
_LOG_WEIGHT = 4
"""Log messages are formatted where they are received."""
_BROKEN = (MessageError, ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError)
"""What a message may lead to that no process of ours sends."""
_LONGEST_NS = 1 << 62
_LONGEST_NAME = 4096
_LOG_SLACK = 256 << 10
"""A process may send beyond its window what it began to send before."""


def _unheard(*_event: object) -> None:
    """No executor has the instance yet."""


@dataclass(slots=True, eq=False)
class Held:
    """A batch that is not over: the keys of its requests, whether ``execute`` has `returned`, and, once the model has
    asked something meanwhile, who waits for the answer."""

    batch: ExecutionBatch
    keys: list[int]
    returned: bool = False
    callers: tuple[CallingInstance, ...] | None = None


@dataclass(slots=True, eq=False)
class Open:
    """An open request, the responses that were taken and not reported to the process yet, and what is kept under rule
    5: arguments of `PythonInstance._answer`."""

    job: Job
    held: Held
    untold: int = 0
    early: list[tuple[memoryview, int, bool, Any]] | None = None


class PythonInstance(ProcessInstance):
    """An instance; see `ProcessInstance` for which thread calls what. Its process, just started, may take `finalize_s`
    until it is up, and the model as long to end. It may execute `most_batches` at once, if its model can."""

    completed = ""
    """The configuration as JSON, once `started`, if the settings ask for that."""

    def __init__(
        self,
        config: ModelConfig,
        spec: InstanceSpec,
        process: Process | ModelThread,
        services: Services,
        settings: dict[str, Any],
        finalize_s: float,
        most_batches: int = 1,
    ) -> None:
        self.name = spec.name
        self._decoupled = config.decoupled
        self._max_rows = config.max_batch_size
        self._outputs = tuple(output.name for output in config.output)
        reshaped = {output.name: output for output in config.output if output.reshape is not None}
        self._reading = KnownTensors(), reshaped, self._max_rows > 0
        self._process = process
        self._channel = process.channel
        self.ended, self.killable = process.ended, process.killable
        self._finalize_s = self.launch_limit_s = finalize_s
        self._pace = Pace()
        pipes = ((process.stdout, logging.INFO), (process.stderr, logging.WARNING))
        self._printed = {pipe: OutputLog(pipe, spec.name, self._pace, level) for pipe, level in pipes if pipe >= 0}
        self._logged = 0  # of `protocol.LOG_WINDOW`
        self._holds_logs = False
        self._model = (config.name, int(settings["args"]["model_version"]))
        self._calls = Calls(services, self._tell, self._tell_large, self._trace_of)
        self._keys = itertools.count()
        self._open: dict[int, Open] = {}
        self._again: dict[int, Open] = {}  # rule 5
        self._batches: dict[int, Held] = {}
        self._most_batches = most_batches
        self._ending = False
        self._lost: TriremeError | None = None
        # Replaced by the executor, and by who asks whether the instance is ready.
        self.on_congestion = self.on_returned = self.on_finished = self.on_ready = _unheard
        self._tell((protocol.START, settings))

    # What the executor calls.

    def prepare(self, batch: ExecutionBatch) -> tuple[Sequence[Job], list[int], Letter]:
        if batch.rows > self._max_rows > 0:
            raise InternalError(f"batch size {batch.rows} for '{self.name}', max allowed is {self._max_rows}")
        keys = list(islice(self._keys, len(batch.jobs)))  # several threads may do this at once
        if self._again:
            kept = {request.job: key for key, request in self._again.copy().items()}
            keys = [kept.get(job, key) for key, job in zip(keys, batch.jobs, strict=True)]
        jobs, payload = batch.jobs, Payload()
        try:
            while True:
                requests = tuple(map(write_job, jobs, keys, repeat(payload), repeat(self._outputs)))
                try:
                    return jobs, keys, self._channel.prepare((protocol.EXECUTE, requests), payload)
                except LostInputError as lost:
                    (jobs, keys), payload = without_lost(lost, jobs, keys), Payload()
        except (OSError, MemoryError) as error:
            raise InternalError(f"no shared memory for the inputs of '{self.name}': {error}") from None
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"a request for '{self.name}' cannot be sent to its process: {error}") from None

    def begin(self, batch: ExecutionBatch, prepared: tuple[Sequence[Job], list[int], Letter]) -> None:
        jobs, keys, letter = prepared
        held = self._batches[keys[0]] = Held(batch, keys)
        for key, job in zip(keys, jobs, strict=True):
            self._open[key] = self._again.pop(key, None) or Open(job, held)
            job.on_cancel = partial(self._cancel, key)
        try:
            self._post(letter)
        except ChannelClosedError:
            raise unhealthy(self.name) from None
        for key, job in zip(keys, jobs, strict=True):
            if job.cancelled:
                self._cancel(key)
            request = self._open.get(key)
            if request is not None and request.held is not held:
                request.held = held  # rule 5: it is executed again
                early, request.early = request.early, None
                for said in early or ():
                    self._answer(*said)

    def sources(self) -> Mapping[int, Callable[[], bool]]:
        self._channel.borrower.on_returned = lambda: self.on_returned()
        return {self._channel.fileno(): self._receive, self.ended: self._ended}

    def outputs(self) -> Mapping[int, Callable[[float], float | None]]:
        return {pipe: output.read for pipe, output in self._printed.items()}

    def give_back(self) -> None:
        with contextlib.suppress(ChannelClosedError):
            if self._channel.give_back(1):
                self.on_congestion()

    def open_jobs(self) -> list[Job]:
        return [request.job for request in self._open.values()]

    def fileno(self) -> int:
        return self._channel.fileno()

    def flush(self) -> bool:
        try:
            return self._channel.flush()
        except ChannelClosedError:
            raise unhealthy(self.name) from None

    def ask_ready(self) -> None:
        if self._lost is not None:
            self.on_ready(self._lost)
            return
        with contextlib.suppress(OSError):  # it is gone, which its watcher is about to notice
            os.write(self._process.bell, b"?")

    def ask_to_end(self) -> None:
        self._ending = True
        self._tell((protocol.FINALIZE,))

    def close(self) -> None:
        if self._process.wait(self._finalize_s):
            return
        text = "instance '%s' did not end within %g s of being told to; it is killed"
        logger.warning(text, self.name, self._finalize_s)
        self._process.kill()
        self._process.wait(self._finalize_s)

    def kill(self) -> None:
        self._process.kill()

    def abandon(self, error: TriremeError) -> None:
        """Rule 4."""
        self._lost = error
        self.on_ready(error)
        for request in self._open.values():
            request.job.on_cancel = None
            if request.held.keys[0] not in self._batches:
                request.job.fail(type(error)(error.message, reason=FailureReason.BACKEND))
        self._open.clear()
        self._again.clear()
        self._batches.clear()
        self._calls.close()
        for output in self._printed.values():
            output.close()
        self._process.close()

    # What the process says.

    def _receive(self, *, all_of_it: bool = False) -> bool:
        """Take in what has come, or (unless `all_of_it` is wanted) as much as is worth asking for: when the process is
        through with its only batch, it says nothing more. Messages that it sends all the same are received later."""
        only_batch = self.credits == 1 and not self._decoupled and not all_of_it
        heard, most = 0, _HEARD_AT_END if all_of_it else _HEARD_AT_ONCE
        try:
            while heard < most and (message := self._channel.receive()) is not None:
                kind = message.head[0]
                heard += _LOG_WEIGHT if kind >= protocol.READY else 1
                self._handle(message)
                if only_batch and (kind == protocol.DONE or kind == protocol.LONE_CALL):
                    break
            self.busy = heard >= _HEARD_AT_ONCE
            if self._channel.give_back():
                self.on_congestion()
        except ChannelClosedError:
            if not self._ending:
                self._process.kill()  # if it has not ended already, and is about to be noticed
            return False
        except (*_BROKEN, ValueError) as error:
            logger.error("instance '%s' sent what cannot be understood, and is killed: %s", self.name, error)
            self._process.kill()
            return False
        return True

    def _ended(self) -> bool:
        """The process has ended; what it said before counts."""
        self._receive(all_of_it=True)
        if self._ending:
            return False
        self._process.kill()  # and whatever it has started
        logger.error("the process of instance '%s' is gone: %s", self.name, describe_status(self._process.status))
        raise unhealthy(self.name)

    def _handle(self, message: Message) -> None:
        kind, *rest = message.head
        self.up = True
        if kind == protocol.DONE:
            self._done(message.payload, *rest)
        elif kind == protocol.LONE_CALL or kind == protocol.CALL:
            self._call(message.payload, *rest)
        elif kind == protocol.ANSWER:
            self._answer(message.payload, *rest)
        elif kind == protocol.LOG:
            self._log(*rest)
        elif kind == protocol.CALL_TAKEN:
            self._calls.taken(*rest)
        elif kind == protocol.CANCEL_CALL:
            self._calls.cancel(*rest)
        elif kind == protocol.STARTED:
            if rest[1]:
                self.credits = self._most_batches
            self.completed, _, self.checks_itself = rest
            self.started = True
        elif kind == protocol.READY:
            self.on_ready(self._unready(*rest))
        elif kind == protocol.FAILED:
            self._ending = True
            raise InternalError(rest[0])

    def _log(self, level: str, filename: str, line: int, text: str) -> None:
        """Rule 7."""
        cost = protocol.log_cost(text)
        self._logged += cost
        if self._logged > protocol.LOG_WINDOW + _LOG_SLACK:
            raise MessageError("more log lines than may be on their way")
        log_line(level, filename[-_LONGEST_NAME:], line, text)
        pause_s = self._pace.spend(cost, 1, self.now_s())
        if self._logged < protocol.LOG_WINDOW // 4 or self._holds_logs:
            return
        if pause_s:
            self._holds_logs = True
            self.later(pause_s, self._tell_logged)
        else:
            self._tell_logged()

    def _tell_logged(self) -> None:
        self._holds_logs = False
        cost, self._logged = self._logged, 0
        self._tell((protocol.LOGGED, cost))

    def _unready(self, ready: bool, text: str | None) -> TriremeError | None:
        """Why the model is not ready, as it says itself."""
        if text is not None:
            return InternalError(text)
        return None if ready else UnavailableError(f"Model '{self.name}' is not ready (user-defined check failed).")

    def _done(
        self,
        payload: memoryview,
        number: int,
        answers: tuple[tuple[int, Any], ...],
        rescheduled: tuple[int, ...],
        spent_ns: tuple[int, int],
    ) -> None:
        """The model's ``execute`` has returned."""
        infer_ns, output_ns = spent_ns
        whole = infer_ns.__class__ is output_ns.__class__ is int
        if not (whole and 0 <= infer_ns < _LONGEST_NS and 0 <= output_ns < _LONGEST_NS):
            raise MessageError(f"an execution of {infer_ns} + {output_ns} ns")
        held = self._batches[number]
        batch = held.batch
        marks = batch.marks
        marks[OUTPUT_START] = output_start_ns = batch.now_ns() - output_ns
        marks[INFER_START] = output_start_ns - infer_ns
        for key in rescheduled:
            request = self._open.get(key)
            if request is not None:
                self._reschedule(key, request.job)
        for key, wire in answers:
            request = self._open.get(key)
            if request is not None:
                self._reply(key, request.job, read_response(request.job, wire, payload, *self._reading), True)
        held.returned = True
        self._finish_if_over(held)

    def _finish_if_over(self, held: Held) -> None:
        """Rule 6."""
        if not held.returned:
            return
        if self._open and not self._decoupled and any(key in self._open for key in held.keys):
            return
        del self._batches[held.keys[0]]
        held.batch.finish(keep_open=self._decoupled)
        self.on_finished(held.batch)

    def _trace_of(self, key: int) -> Trace | None:
        request = self._open.get(key)
        return None if request is None else request.job.request.trace

    def _call(self, payload: memoryview, number: int, method: str, arguments: tuple[Any, ...], key: int | None) -> None:
        """The model asks something, during the execution of the batch with this key, if its process knows; else it may
        be any of those that are not over."""
        held = self._batches.get(key)  # type: ignore[arg-type]
        if held is None:
            batches = [held.batch for held in self._batches.values()]
            only = batches[0] if len(batches) == 1 else None
            callers = self._callers(batches)
        else:
            only = held.batch
            callers = held.callers = held.callers or self._callers([only])
        self._calls.call(payload, only, callers, number, method, arguments)

    def _callers(self, batches: list[ExecutionBatch]) -> tuple[CallingInstance, ...]:
        """Who waits for the answers to what the model asks now. None for a decoupled model, whose execute can return
        before the answer comes."""
        if not batches or self._decoupled:
            return ()
        before = dict.fromkeys([caller for batch in batches for job in batch.jobs for caller in job.request.callers])
        return (*before, (self._model, self.name))

    def _reschedule(self, key: int, job: Job) -> None:
        try:
            job.reschedule()
        except TriremeError as error:
            self._reply(key, job, error, True)
            return
        job.on_cancel = None
        self._again = {key: request for key, request in self._again.items() if not request.job.answered}
        self._again[key] = self._open.pop(key)

    def _answer(self, payload: memoryview, key: int, final: bool, wire: Any) -> None:
        """A response by a response sender."""
        request = self._open.get(key)
        if request is None:
            if key in self._again:
                again = self._again[key]
                early = again.early = again.early or []
                if len(early) > protocol.WINDOW:
                    raise MessageError("more responses than may be on their way")
                early.append((payload, key, final, wire))
            return
        outcome = None if wire is None else read_response(request.job, wire, payload, *self._reading)
        self._reply(key, request.job, outcome, final or not self._decoupled)
        if self._decoupled:
            if outcome is not None and not final:
                self._account(key, request)
        else:
            self._finish_if_over(request.held)

    def _reply(self, key: int, job: Job, outcome: Any, final: bool) -> None:
        if final:
            job.on_cancel = None
            self._open.pop(key, None)
        if not isinstance(outcome, TriremeError):
            job.respond(outcome, final)
        elif final:
            job.fail(outcome)
        elif job.batch is not None:
            if job.window is not None:
                job.window.enter()
            job.batch.answer(job, outcome, False)

    # What the process is told.

    def _account(self, key: int, request: Open) -> None:
        """Rule 3."""
        request.untold += 1
        if request.untold > protocol.WINDOW and not request.job.cancelled:
            raise MessageError("more responses than may be on their way")
        window = request.job.window
        if window is not None and window.crowded:
            window.on_room = partial(self._tell_taken, key)
        elif request.untold >= _TAKEN_AT_ONCE:
            self._tell_taken(key)

    def _tell_taken(self, key: int) -> None:
        request = self._open.get(key)
        if request is not None and request.untold:
            count, request.untold = request.untold, 0
            self._tell((protocol.TAKEN, key, count))

    def _cancel(self, key: int) -> None:
        request = self._open.get(key)
        if request is None:
            return
        self._tell((protocol.CANCEL, key))
        batch = request.held.batch
        if all(job.cancelled for job in batch.jobs):
            self._calls.cancel_made_for(batch)

    def _tell(self, head: tuple[Any, ...], payload: Payload | None = None) -> None:
        """Send a message that nothing hangs on if the process is gone; that is found out by reading."""
        try:
            self._post(self._channel.prepare(head, payload or Payload()))
        except ChannelClosedError:
            logger.debug("instance '%s' is gone and was not told", self.name)
        except OSError as error:
            self._cannot_tell(error)

    def _cannot_tell(self, error: OSError) -> None:
        """There is no memory for a message, without which the process cannot go on."""
        logger.error("instance '%s' cannot be told something, and is killed: %s", self.name, error)
        self._process.kill()

    def _tell_large(self, head: tuple[Any, ...], payload: Payload, then: Callable[[], None]) -> None:
        """The same where copying takes long, and so happens on a thread."""

        def prepare() -> Letter | OSError:
            try:
                return self._channel.prepare(head, payload)
            except OSError as error:
                return error

        def post(letter: Letter | OSError) -> None:
            if isinstance(letter, OSError):
                self._cannot_tell(letter)
                return
            with contextlib.suppress(ChannelClosedError):
                self._post(letter)
            then()

        self.aside(prepare, post)

    def _post(self, letter: Letter) -> None:
        self._channel.post(letter)
        if self._channel.congested:
            self.on_congestion()

    def __repr__(self) -> str:
        return f"<PythonInstance {self.name}: {len(self._open)} open>"
