"""An instance of a generating model: its requests become generations, whose steps it computes together.

Rules:
 1. What is computed is decided on the event loop (`Iterations`); the thread computes it, draws tokens, makes text of
    them, and makes tokens of prompts. Of a request the event loop alone has what goes to its client, and the thread
    what it draws with. If the next step is known before, the event loop leaves it for the thread, which takes it when
    the one before is over, unless a text has come to its end. What happens meanwhile, and may change it, has the
    event loop take it back; if the thread was first, that counts for the step after it.
 2. A request that streams is answered after each step in which it has got text; another one in the end. If its client
    does not take its answers, the text waits for it, and for no other: it comes in larger pieces then.
 3. A request with several choices has one text for each in every answer.
 4. Requests that come are looked at before the next step, so that they can be in it; but not twice without a step.
 5. A constraint that is not known is read by another thread (`aside`), once for all requests that have it, and a long
    prompt is made tokens there. Meanwhile these are in no step, and hold up none. If all their clients leave, a
    constraint is not read any further.
 6. One whose client leaves is over before the next step. So is one whose tokens cannot be drawn, and one whose time is
    over: as long after it was received as its `timeout` says. Others go on. A step that fails fails those that it was
    to compute, and not those that came meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...errors import (
    FailureReason,
    InternalError,
    InvalidArgumentError,
    TriremeError,
    UnavailableError,
    backend_failure,
)
from ...generation.blocks import BlockMemory
from ...generation.iterations import IterationLimits, Iterations, Step
from ...generation.requests import Generation, GenerationEnd, GenerationState
from ...generation.sampling import Sampler
from ...generation.text import GeneratedText
from ...gpu.device import SickDeviceError
from ...job import ExecutionBatch
from ...metrics.statistics import GenerationStatistics
from ..interface import SteppedInstance
from . import asked as names
from .asked import TOKENS, Asked, asked
from .choices import DrawnChoice, take_outputs
from .constraint_readings import ConstraintReadings
from .constraints import ConstrainedText, Constraints
from .network import Network
from .step_work import DrawnText, GenerationRequest, GenerationResult, GenerationStep, StepAhead
from .times import StepBeginning, deadline_ns, deadline_s
from .tokenizer import LONG_TEXT, Tokenizer


class GenerationInstance(SteppedInstance):
    """One instance; see `SteppedInstance` for who calls what.

    Args:
        limits: what its steps may take. It has as many requests as may run, and as many that wait for their tokens.
        memory: of keys and values.
        ends: tokens that end a text.
        statistics: of the model, to count in.

    Attributes:
        core: decides what is computed.
        constraints: of its texts; the thread's.
    """

    def __init__(
        self,
        name: str,
        network: Network,
        tokenizer: Tokenizer,
        limits: IterationLimits,
        memory: BlockMemory,
        ends: frozenset[int],
        statistics: GenerationStatistics | None = None,
    ) -> None:
        self.credits = 2 * limits.most_running
        self._statistics = GenerationStatistics() if statistics is None else statistics
        self.core = Iterations(memory, limits, self._ended, self._begun, self._statistics.counts)
        self._statistics.instances[name] = self.core
        self._name = name
        self._network: Network | None = network
        self._tokenizer = tokenizer
        self._ends = ends
        self.constraints = Constraints(tokenizer, network.vocabulary)
        self._new: list[GenerationRequest] = []
        self._begun_steps = 0
        self._looked = False  # at new requests, since the last step
        self._moved: Sequence[GenerationRequest] = ()  # in the last step
        self._under_way: GenerationStep | None = None
        self._requests: dict[int, GenerationRequest] = {}  # whose generations are not all over, by their number
        self._numbers = itertools.count()
        self._late: list[GenerationRequest] = []  # whose time is over, and who have not been told
        self._readings: ConstraintReadings[GenerationRequest] = ConstraintReadings(self.constraints, self._have_read)

    # ---- on the event loop ----

    def admit(self, batch: ExecutionBatch, over: Callable[[], None]) -> None:
        (job,) = batch.jobs
        request = GenerationRequest(job, over)
        job.on_cancel = lambda: self._leave(request)
        if job.window is not None:
            job.window.on_room = lambda: self._send(request)
        self._come(request)

    def _come(self, request: GenerationRequest) -> None:
        """It is to be looked at before the next step."""
        self._new.append(request)
        self._take_back()

    def _take_back(self) -> None:
        """What the step after the one under way is has to be decided anew."""
        if self._under_way is not None:
            self._under_way.take_ahead()

    def begin_step(self, now_s: float) -> GenerationStep | None:
        new, self._new = [request for request in self._new if not request.gone], []
        for request in new:
            request.deadline_s = deadline_s(request.job, now_s)
            request.deadline_ns = deadline_ns(request.job)
        self._looked = bool(new) and not self._looked
        step = None if self._looked else self.core.begin_step(now_s)
        late, self._late = self._late, []
        for request in late:
            self._fail(request, UnavailableError("Request timeout expired", reason=FailureReason.REJECTED))
        if step is not None:
            self._note_beginning(step)
        self._under_way = GenerationStep(new, step) if new or step is not None else None
        return self._under_way

    def _note_beginning(self, step: Step) -> None:
        self._begun_steps += 1
        memory = self.core.memory
        used = 1 - memory.free / memory.count
        requests = [self._request_of(piece.generation) for piece in step.pieces]
        begins = StepBeginning(self._begun_steps, _now_ns(requests), len(requests), step.tokens, used)
        for request in requests:
            request.times.begins(request.job, begins)

    def end_step(self, step: GenerationStep, result: GenerationResult) -> None:
        self._under_way = result.following
        self._moved = self._requests_of(step)
        now_ns = _now_ns(self._moved)
        for request in self._moved:
            request.times.step_over(now_ns)
        if result.error is None:
            self._go_on(step, result)
        else:
            self._fail_moved(step, result.error)
        for request in step.new:
            constraint = result.unread.get(request)
            if constraint is not None and not request.gone:
                request.constraint = constraint
                self._readings.wait(request, constraint, self.aside)
            elif request in result.long:
                self.aside(partial(self._look_aside, request), partial(self._have_read, request))
            elif constraint is None:
                self._arrive(request, result.refused.get(request))

    def fail_step(self, step: GenerationStep, error: TriremeError) -> None:
        self._under_way = None
        self._fail_moved(step, error)
        for request in step.new:
            self._fail(request, error)

    def answer(self) -> None:
        moved, self._moved = self._moved, ()
        for request in moved:
            self._send(request)
        self._look_ahead()

    def _look_ahead(self) -> None:
        """Leave for the thread what it may go on with."""
        work = self._under_way
        if work is None or work.new or self._new or (step := self.core.ahead()) is None:
            return
        requests = [self._request_of(piece.generation) for piece in step.pieces]
        batch = requests[0].job.batch
        if batch is not None:
            limit_ns = min(request.deadline_ns for request in requests)
            work.ahead.append(StepAhead(step, limit_ns, batch.now_ns))

    def _go_on(self, step: GenerationStep, result: GenerationResult) -> None:
        failed = {self._request_of(generation): error for generation, error in result.failed.items()}
        for generation in result.failed:
            self.core.leave(generation, GenerationEnd.FAILED)
        if step.step is not None:
            for generation, drawn in result.drawn.items():
                self._take(generation, drawn)
            tokens = {generation: [each.token.token for each in drawn] for generation, drawn in result.drawn.items()}
            following = None if result.following is None else result.following.step
            self.core.end_step(tokens, self._stops, following)
            if following is not None:
                self._note_beginning(following)
        for request, error in failed.items():
            self._fail(request, error)

    def _take(self, generation: Generation, drawn: Sequence[DrawnText]) -> None:
        """What was drawn for a generation, or for each choice."""
        request, first = self._request_of(generation), generation.choice
        request.times.draws(request.job, range(first, first + len(drawn)), self._statistics)
        for choice, each in zip(request.choices[first:], drawn, strict=False):
            choice.untold.append(each.token)
            choice.ready += each.text
            choice.stopped = each.stopped

    def _fail_moved(self, step: GenerationStep, error: TriremeError) -> None:
        """Nothing was computed for those that were to get on."""
        moved = self._requests_of(step)
        if step.step is not None:
            self.core.fail_step()
        for request in moved:
            self._fail(request, error)

    def _requests_of(self, step: GenerationStep) -> Sequence[GenerationRequest]:
        pieces = () if step.step is None else step.step.pieces
        return list(dict.fromkeys(self._request_of(piece.generation) for piece in pieces))

    def _arrive(self, request: GenerationRequest, refused: TriremeError | None) -> None:
        if request.gone:
            return
        of, job = request.asked, request.job
        if of is None or refused is not None:
            self._fail(request, refused or InternalError("the request was not looked at", reason=FailureReason.BACKEND))
            return
        number, level = next(self._numbers), max(job.level, 1)
        generation = Generation(number, list(request.prompt), request.most_new, level, request.deadline_s)
        generation.choices = of.choices
        generation.adapter, generation.salt = of.adapter, of.adapter.encode()
        try:
            self.core.arrive(generation)
        except TriremeError as error:
            self._fail(request, error)
        else:
            self._requests[number] = request
            request.choices[0].generation = generation

    def _have_read(self, request: GenerationRequest, found: Any) -> None:
        """Its constraint is read, or there are tokens of its prompt; or why not."""
        request.constraint = None
        if isinstance(found, TriremeError):
            self._fail(request, found)
        else:
            request.read = found
            self._come(request)

    def _begun(self, generation: Generation) -> None:
        self._request_of(generation).choices[generation.choice].generation = generation

    def _ended(self, generation: Generation) -> None:
        request = self._request_of(generation)
        choice = request.choices[generation.choice]
        end = generation.end
        assert end is not None, "it is over"
        if end is GenerationEnd.EXPIRED:
            self._late.append(request)
        choice.ended = end.value if end in (GenerationEnd.STOP, GenerationEnd.LENGTH) else "abort"
        begun = [each.generation for each in request.choices if each.generation is not None]
        if all(each.state is GenerationState.OVER for each in begun):
            del self._requests[generation.number]

    def _stops(self, generation: Generation) -> bool:
        return self._choice_of(generation).stopped

    def _request_of(self, generation: Generation) -> GenerationRequest:
        return self._requests[generation.number]

    def _choice_of(self, generation: Generation) -> DrawnChoice:
        return self._request_of(generation).choices[generation.choice]

    def _leave(self, request: GenerationRequest) -> None:
        """Its client has gone, or it has failed (rule 6)."""
        if request.gone:
            return
        request.gone = True
        self._take_back()
        for choice in request.choices:
            if choice.generation is not None:
                self.core.leave(choice.generation)
        if request.constraint is not None:
            self._readings.leave(request, request.constraint)
        if not request.job.answered:
            self._note_end(request)
            request.job.respond(None, final=True)
        self._over(request)

    def _fail(self, request: GenerationRequest, error: TriremeError) -> None:
        if not request.gone:
            self._note_end(request)
            request.job.fail(error, final=True)
            self._leave(request)

    def _note_end(self, request: GenerationRequest) -> None:
        begun = [choice.generation for choice in request.choices if choice.generation is not None]
        request.times.ends(request.job, begun)

    def _over(self, request: GenerationRequest) -> None:
        request.job.on_cancel = None
        if request.job.window is not None:
            request.job.window.on_room = None
        request.over()

    # ---- answers ----

    def _send(self, request: GenerationRequest) -> None:
        """Answer with what there is, if that is wanted now (rule 2)."""
        of, job = request.asked, request.job
        if request.gone or of is None:
            return
        final = all(choice.ended for choice in request.choices)
        if not final:
            window = job.window
            fresh = any(
                choice.ready or (choice.untold and names.TOKENS_OUT in of.returned) for choice in request.choices
            )
            if not (of.stream and fresh) or (window is not None and window.crowded):
                return
        if final:
            self._note_end(request)
        found = take_outputs(of, request.prompt, request.choices, self._tokenizer.decode)
        job.respond(job.response([tensor for tensor in found if job.wants(tensor.name)]), final=final)
        if final:
            request.gone = True
            self._over(request)

    # ---- on the instance's thread ----

    def compute(self, step: GenerationStep) -> GenerationResult:
        network = self._network
        assert network is not None, "it is closed when it has nothing to do"
        result = GenerationResult()
        for request in step.new:
            try:
                self._prepare(request, network, result)
            except Exception as error:  # noqa: BLE001 - one request's, whatever it is
                result.refused[request] = backend_failure(error)
        if step.step is not None:
            try:
                logits = network.run(step.step)
            except SickDeviceError:
                raise
            except Exception as error:  # noqa: BLE001 - of those in the step, and not of the new ones
                result.error = backend_failure(error)
            else:
                self._draw_all(step.step, logits, result)
        return result

    def follow(self, step: GenerationStep, result: GenerationResult) -> GenerationStep | None:
        ahead = step.take_ahead()
        if ahead is None or result.error is not None or result.failed or ahead.now_ns() >= ahead.limit_ns:
            return None
        if any(each.stopped for (each,) in result.drawn.values()):
            return None
        latest = {generation: each.token.token for generation, (each,) in result.drawn.items()}
        result.following = GenerationStep((), replace(ahead.step, latest=latest))
        return result.following

    def _draw_all(self, step: Step, logits: np.ndarray, result: GenerationResult) -> None:
        drawing = [piece.generation for piece in step.pieces if piece.draws]
        for generation, row in zip(drawing, logits, strict=True):
            try:
                result.drawn[generation] = self._draw(generation, row)
            except TriremeError as error:
                result.failed[generation] = error

    def _prepare(self, request: GenerationRequest, network: Network, result: GenerationResult) -> None:
        """Get a request ready for its first step, unless its constraint has to be read before."""
        if request.looked is None:
            of = asked(request.job)
            if of.text is not None and len(of.text) > LONG_TEXT:
                self._tokenizer.check_length(of.text, network.context)
                result.long.add(request)
                return
            request.looked = of, self._tokens(of, network)
        of, prompt = request.looked
        texts: Sequence[ConstrainedText | None] = [None] * of.choices
        if of.constraint is not None:
            if request.read is None and not self.constraints.known(of.constraint):
                result.unread[request] = of.constraint
                return
            ends = () if of.ignores_end else tuple(self._ends)
            texts = self.constraints.begin(of.constraint, request.read, of.choices, ends, tuple(of.stop_tokens))
            request.read = None
        decode = partial(self._tokenizer.decode, special=of.special)
        for number in range(of.choices):
            sampler = Sampler(of.sampling, prompt, network.vocabulary, number)
            text = GeneratedText(decode, of.stops)
            request.choices.append(DrawnChoice(sampler, text, texts[number]))
        request.asked, request.prompt = of, prompt
        room = min(self.core.limits.context, self.core.memory.count * self.core.memory.size) - len(prompt)
        request.most_new = max(room, 1) if of.most_new is None else of.most_new

    def _tokens(self, of: Asked, network: Network) -> Sequence[int]:
        """A prompt in tokens; what can be known to be wrong before is said before."""
        if of.adapter and of.adapter not in network.adapters:
            known = f"one of {', '.join(network.adapters)}" if network.adapters else "none, as the model has none"
            raise InvalidArgumentError(f"lora_name is '{of.adapter}', which is not known; expected {known}")
        prompt = of.tokens if of.tokens is not None else self._tokenizer.encode(of.text or "")
        unknown = [token for token in prompt if not 0 <= token < network.vocabulary]
        if unknown:
            text = f"token {unknown[0]} in the prompt; expected 0 to {network.vocabulary - 1}"
            raise InvalidArgumentError(text, about=TOKENS)
        return prompt

    def _draw(self, generation: Generation, logits: np.ndarray) -> list[DrawnText]:
        """The next token, or the first one of each choice."""
        request = self._request_of(generation)
        choices = request.choices[generation.choice : generation.choice + generation.wide]
        return [self._drawn(request, choice, logits) for choice in choices]

    def _drawn(self, request: GenerationRequest, choice: DrawnChoice, logits: np.ndarray) -> DrawnText:
        of = request.asked
        assert of is not None, "it has been prepared"
        constrained = choice.constrained
        drawn = choice.sampler.draw(logits, None if constrained is None else constrained.allowed)
        choice.count += 1
        ends = drawn.token in of.stop_tokens or (drawn.token in self._ends and not of.ignores_end)
        text = "" if ends else choice.text.add(drawn.token)
        if constrained is not None:
            constrained.take(drawn.token)
            ends = ends or constrained.over
        if ends or choice.count == request.most_new:
            text += choice.text.end()
        return DrawnText(drawn, text, ends or choice.text.stopped)

    # ---- on another thread ----

    def _look_aside(self, request: GenerationRequest) -> TriremeError | None:
        """Make tokens of a long prompt; why that cannot be."""
        network = self._network
        if request.gone or network is None:
            return None
        try:
            of = asked(request.job)
            request.looked = of, self._tokens(of, network)
            return None
        except Exception as error:  # noqa: BLE001 - one request's, whatever it is
            return backend_failure(error)

    # ---- on the instance's thread ----

    def close(self) -> None:
        if self._statistics.instances.get(self._name) is self.core:  # and not one that has taken its place
            del self._statistics.instances[self._name]
        self._readings.close()
        if self._network is not None:
            self._network.close()
        self._network = None


def _now_ns(requests: Sequence[GenerationRequest]) -> int:
    """The time, by the clock of the first of these that has not been answered; 0 if all have."""
    return next((request.job.batch.now_ns() for request in requests if request.job.batch is not None), 0)
