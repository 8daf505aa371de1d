"""An instance of an encoder: the texts of its requests are computed together, step by step.

Rules:
 1. Which texts are computed is decided on the event loop (`Encodings`); the thread computes them, and makes tokens of
    the texts of requests that have come meanwhile. Another thread (`aside`) makes tokens of long ones.
 2. A request is answered when all its texts are computed, which may be in several steps.
 3. One that is wrong, or whose result is not numbers, fails alone. What a step raises, its texts' requests get.
 4. One whose client leaves is over at once. One that is too late is refused, unless some of it has been computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ....errors import InternalError, TriremeError, backend_failure
from ....generation.encodings import EncodedText, Encodings
from ....job import INFER_START, OUTPUT_START, ExecutionBatch, Job
from ....metrics.statistics import EncodingStatistics
from ....scheduling import refusals
from ...interface import SteppedInstance
from ..tokenizer import LONG_TEXT, Tokenizer
from .asked import answers, asked_texts, text_bytes
from .layout import EncoderLayout
from .network import EncoderNetwork
from .packed import TokenRow


@dataclass(slots=True, eq=False)
class _Request:
    """A request that is being answered.

    Attributes:
        rows: its texts in tokens.
        texts: the same, as they wait and are computed.
        found: what came of them so far, by their places.
        begun: one of them was in a step.
    """

    job: Job
    batch: ExecutionBatch
    rows: Sequence[TokenRow] = ()
    texts: list[EncodedText] = field(default_factory=list)
    found: dict[int, np.ndarray] = field(default_factory=dict)
    begun: bool = False
    gone: bool = False


@dataclass(frozen=True, slots=True)
class _TextStep:
    """What the thread has to do: new requests to look at, and texts to compute."""

    new: Sequence[_Request]
    texts: Sequence[EncodedText]
    rows: Sequence[TokenRow]


@dataclass(slots=True)
class _TextResult:
    """What came of it: why new requests are refused, and which have long texts; what each text gives, or why there is
    nothing."""

    refused: dict[_Request, TriremeError] = field(default_factory=dict)
    long: set[_Request] = field(default_factory=set)
    found: Sequence[np.ndarray] = ()
    error: TriremeError | None = None


class EncoderInstance(SteppedInstance):
    """One instance; see `SteppedInstance` for who calls what.

    Args:
        tokenizer: makes one; each thread has its own.
        most_tokens: of a step.
        most_requests: that it has at once; further ones wait in the model's queue.
        truncates: texts that are too long are cut.
        batched: tensors have a batch dimension.
        statistics: of the model, to count in.
    """

    def __init__(
        self,
        name: str,
        network: EncoderNetwork,
        tokenizer: Callable[[], Tokenizer],
        layout: EncoderLayout,
        most_tokens: int,
        most_requests: int,
        truncates: bool,
        batched: bool,
        statistics: EncodingStatistics,
    ) -> None:
        self.credits = most_requests
        self.core = Encodings(most_tokens)
        self._name = name
        self._statistics = statistics
        statistics.instances[name] = self.core
        self._network: EncoderNetwork | None = network
        self._tokenizer, self._make_tokenizer = tokenizer(), tokenizer
        self._tokenizer_aside: Tokenizer | None = None
        self._layout = layout
        self._truncates = truncates
        self._batched = batched
        self._new: list[_Request] = []
        self._owners: dict[EncodedText, tuple[_Request, int]] = {}
        self._overs: dict[ExecutionBatch, Callable[[], None]] = {}

    # ---- on the event loop ----

    def admit(self, batch: ExecutionBatch, over: Callable[[], None]) -> None:
        self._overs[batch] = over
        for job in batch.jobs:
            request = _Request(job, batch)
            job.on_cancel = lambda request=request: self._cancel(request)
            self._new.append(request)

    def begin_step(self, now_s: float) -> _TextStep | None:
        for text in self.core.expire(now_s):
            self._fail(self._owners[text][0], refusals.expired())
        new, self._new = [request for request in self._new if not request.gone], []
        texts = self.core.begin_step()
        rows = []
        for text in texts:
            request, place = self._owners[text]
            rows.append(request.rows[place])
            if request.batch.marks[INFER_START] < 0:
                request.batch.mark(INFER_START)
            if not request.begun:
                request.begun = True
                self._statistics.wait.add((request.batch.now_ns() - request.job.received_ns) / 1e9)
            for other in request.texts:
                other.deadline_s = None
        if texts:
            self._statistics.texts += len(texts)
            self._statistics.step_tokens.add(sum(text.tokens for text in texts))
        return _TextStep(new, texts, rows) if new or texts else None

    def end_step(self, step: _TextStep, result: _TextResult) -> None:
        found = dict(zip(step.texts, result.found, strict=False))
        for text in self.core.end_step():
            request, place = self._owners[text]
            if request.gone:
                continue
            if result.error is not None:
                self._fail(request, result.error)
            elif not np.isfinite(found[text]).all():
                self._fail(request, InternalError("the model's result is not numbers (NaN or infinite)"))
            else:
                request.found[place] = found[text]
                if len(request.found) == len(request.texts):
                    self._answer(request)
        for batch in self._overs:  # also those that wait: they are not stuck
            batch.heard = True
        for request in step.new:
            if request in result.long:
                self.aside(partial(self._look_aside, request), partial(self._arrive, request))
            else:
                self._arrive(request, result.refused.get(request))

    def fail_step(self, step: _TextStep, error: TriremeError) -> None:
        self.end_step(_TextStep((), step.texts, step.rows), _TextResult(error=error))
        for request in step.new:
            self._fail(request, error)

    def _arrive(self, request: _Request, refused: TriremeError | None) -> None:
        if request.gone:
            return
        if refused is not None:
            self._fail(request, refused)
            return
        job = request.job
        for place, row in enumerate(request.rows):
            text = EncodedText(len(row.ids), max(job.level, 1), job.deadline_s)
            request.texts.append(text)
            self._owners[text] = request, place
            self.core.arrive(text)

    def _answer(self, request: _Request) -> None:
        job = request.job
        request.batch.mark(OUTPUT_START)
        found = [request.found[place] for place in range(len(request.texts))]
        outputs = answers(self._layout, request.rows, found, self._batched)
        job.respond(job.response([tensor for tensor in outputs if job.wants(tensor.name)]))
        self._leave(request)

    def _fail(self, request: _Request, error: TriremeError) -> None:
        if not request.gone:
            request.job.fail(error)
            self._leave(request)

    def _cancel(self, request: _Request) -> None:
        if not request.gone:
            request.job.fail(refusals.cancelled())
            self._leave(request)

    def _leave(self, request: _Request) -> None:
        request.gone = True
        request.job.on_cancel = None
        for text in request.texts:
            self.core.leave(text)
            self._owners.pop(text, None)
        batch = request.batch
        if all(job.answered for job in batch.jobs):
            self._overs.pop(batch)()

    # ---- on another thread ----

    def _look_aside(self, request: _Request) -> TriremeError | None:
        """Make tokens of long texts; why that cannot be."""
        network = self._network
        if request.gone or network is None:
            return InternalError("the texts were not looked at")
        try:
            tokenizer = self._tokenizer_aside = self._tokenizer_aside or self._make_tokenizer()
        except TriremeError as error:
            return error
        return self._look(request, network, tokenizer)

    # ---- on the instance's thread ----

    def _look(self, request: _Request, network: EncoderNetwork, tokenizer: Tokenizer) -> TriremeError | None:
        """Make tokens of the texts of a request; why that cannot be."""
        try:
            request.rows = asked_texts(request.job, tokenizer, network.context, network.vocabulary, self._truncates)
        except Exception as error:  # noqa: BLE001 - one request's, whatever it is
            return backend_failure(error)
        return None

    def compute(self, step: _TextStep) -> _TextResult:
        network = self._network
        assert network is not None, "it is closed when it has nothing to do"
        result = _TextResult()
        for request in step.new:
            if text_bytes(request.job) > LONG_TEXT:
                result.long.add(request)
            elif refused := self._look(request, network, self._tokenizer):
                result.refused[request] = refused
        if step.rows:
            try:
                result.found = list(network.run(step.rows))
            except TriremeError as error:
                result.error = error
        return result

    def close(self) -> None:
        if self._statistics.instances.get(self._name) is self.core:  # and not one that has taken its place
            del self._statistics.instances[self._name]
        self._network = None
