"""Records requests as they come, for the request log (`request_log`), at next to no cost.

Rules:
 1. What requests have in common stands in a *group*, which is found by the form of a request (`RequestForm`) and made
    once. A request adds its arrival to its group, and the id of its sequence, if it has one.
 2. Groups are encoded as lines later, and not on the event loop: `take` hands over all that waits, `encode` makes lines
    of it, a line for up to `LINE_ARRIVALS` requests of a group.
 3. What waits is bounded by `MOST_WAITING` arrivals; a group that begins counts as `GROUP_PLACES` of them. What finds
    no place is counted, and the lines that are written next say how many there were.
 4. With results a request is recorded when its final answer comes, or when it is refused; otherwise when it comes. One
    for generated text always waits for that: before, nothing is known of its tokens.
 5. A sequence's id that is a text is logged as a digest with a key of this log: the client's own name for the sequence
    is not, and the same id in another log is another one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import orjson

from ..access.callers import Caller
from ..clock import Clock, utc_text
from ..config.model import ModelConfig
from ..config.platforms import ENSEMBLE
from ..errors import CancelledError, TriremeError
from ..generation.records import GenerationRecord
from ..job import Job, Outcome
from ..request import LATEST, InferenceRequest
from ..tensor import Tensor
from .generated_columns import generation_columns
from .request_log import header_line

MOST_WAITING: Final = 1 << 17
GROUP_PLACES: Final = 8
LINE_ARRIVALS: Final = 1024
_MOST_GROUPS = 4096

_LINE = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
_NO_TIMES = (0, 0, 0, 0)


RecordedResult = tuple[int, int, int, int, int, int, str, str]
"""See `request_log.LoggedResult`: total, queue, input, infer and output, in nanoseconds; batch, instance, outcome."""


class SharedFields(NamedTuple):
    """What requests of a group have in common; see `request_log.LoggedRequest`."""

    model: str
    version: int = LATEST
    rows: int = 1
    nbytes: int = 0
    elements: tuple[int, ...] = ()
    priority: int = 0
    timeout_us: int = 0
    start: bool = False
    end: bool = False
    ensemble: bool = False
    tenant: str = ""
    protocol: str = ""


_IN_LINES = tuple(["bytes" if name == "nbytes" else name for name in SharedFields._fields])
_DEFAULTS = (None, *SharedFields("")[1:])


@dataclass(slots=True, eq=False)
class RequestGroup:
    """Requests that are alike.

    Attributes:
        config, protocol, caller: whose changes make another group of requests of the same form.
        times: when they came, in ns.
        sequences: ids, by indices of `times`.
        generates: these are requests for generated text (rule 4).
        results: one for each of `times`, with results.
        records: of generated text, by indices of `times`.
        plain: it has begun, and results are not wanted.
    """

    config: ModelConfig | None
    protocol: str
    caller: Caller | None
    shared: SharedFields
    generates: bool = False
    times: list[int] = field(default_factory=list)
    sequences: dict[int, int | str] = field(default_factory=dict)
    results: list[RecordedResult] = field(default_factory=list)
    records: dict[int, GenerationRecord] = field(default_factory=dict)
    plain: bool = False


class WaitingArrivals(NamedTuple):
    """What was recorded of a group."""

    shared: SharedFields
    times: list[int]
    sequences: dict[int, int | str]
    results: list[RecordedResult]
    records: dict[int, GenerationRecord]


class WaitingRecords(NamedTuple):
    """What was recorded since it was taken last.

    Attributes:
        dropped: so many requests found no place.
    """

    arrivals: Sequence[WaitingArrivals]
    dropped: int

    @property
    def requests(self) -> int:
        """How many there are."""
        return sum([len(each.times) for each in self.arrivals])


class RequestRecorder:
    """Holds what is recorded until it is written. On the event loop, but for `encode`.

    Args:
        clock: the log begins now.
        key: for rule 5.
        results: what comes of requests is recorded, too.
        most_waiting: see rule 3.

    Attributes:
        head: what a file of this log begins with.
        on_news: called when something waits, and nothing did.
        dropped: how many requests have found no place so far.
    """

    def __init__(self, clock: Clock, key: bytes, *, results: bool = False, most_waiting: int = MOST_WAITING) -> None:
        self.results = results
        self.head = header_line(utc_text(clock.wall_ms())).encode()
        self.on_news: Callable[[], None] = _ignore
        self.dropped = 0
        self._clock = clock
        self._began_ns = clock.now_ns()
        self._key = key
        self._most = most_waiting
        self._places = most_waiting
        self._untold = 0
        self._groups: dict[SharedFields, RequestGroup] = {}
        self._filled: list[RequestGroup] = []

    def arrived(
        self,
        request: InferenceRequest,
        config: ModelConfig,
        inputs: Mapping[str, Tensor],
        rows: int,
        received_ns: int,
    ) -> RequestGroup | None:
        """A client's request has come.

        Args:
            config: of the model that it is for.
            inputs: as the model is to see them.
            received_ns: when, on the clock.

        Returns:
            With results, and if it is for generated text, its group, for `follow` or `refused`. Otherwise it is
            recorded.
        """
        form = request.form
        group: RequestGroup | None = None if form is None else form.logged
        if (
            group is None
            or group.config is not config
            or group.caller is not request.caller
            or group.protocol is not request.protocol
        ):
            group = self._group_of(request, config, inputs, rows)
            if form is not None:
                form.logged = group
        elif (
            group.plain and self._places and not request.correlation_id
        ):  # as nearly all are: in as few steps as can be
            self._places -= 1
            group.times.append(received_ns)
            return None
        if self.results or group.generates:
            return group
        self._record(group, received_ns, request.correlation_id)
        return None

    def turned_away(self, name: str, version: int, reason: str, protocol: str = "") -> None:
        """A request was refused of which nothing is known but the model that it was for."""
        shared = SharedFields(name, version, protocol=protocol)
        group = self._groups.get(shared)
        if group is None:
            group = self._keep(RequestGroup(None, protocol, None, shared))
        now_ns = self._clock.now_ns()
        if self._record(group, now_ns, 0) and self.results:
            group.results.append((0, *_NO_TIMES, 0, "", reason))

    def refused(self, group: RequestGroup, request: InferenceRequest, received_ns: int, error: TriremeError) -> None:
        """A request was refused before it became a job (with results)."""
        if self._record(group, received_ns, request.correlation_id) and self.results:
            total_ns = self._clock.now_ns() - received_ns
            group.results.append((total_ns, *_NO_TIMES, 0, "", _outcome_of(error)))

    def follow(self, job: Job, group: RequestGroup) -> None:
        """Record a job's request when it is answered."""
        job.reply = _RecordedReply(self, job, group)

    def answered(self, job: Job, group: RequestGroup, outcome: Outcome) -> None:
        """The final answer has come."""
        if not self._record(group, job.received_ns, job.request.correlation_id):
            return
        record = job.generated
        if record is not None:
            group.records[len(group.times) - 1] = record
        if not self.results:
            return
        now_ns = self._clock.now_ns()
        queued_ns, total_ns, batch = job.enqueued_ns, now_ns - job.received_ns, job.batch
        told = "cancelled" if job.cancelled else _outcome_of(outcome)
        if batch is None or batch.marks[0] < 0:
            group.results.append((total_ns, now_ns - queued_ns if queued_ns else 0, 0, 0, 0, 0, "", told))
            return
        start_ns, infer_ns, output_ns, end_ns = batch.marks_until(now_ns)
        if record is not None and record.begun_ns >= 0:
            start_ns = infer_ns = max(start_ns, record.begun_ns)
        times = start_ns - queued_ns, infer_ns - start_ns, output_ns - infer_ns, end_ns - output_ns
        group.results.append((total_ns, *times, batch.rows, batch.instance_name, told))

    def take(self) -> WaitingRecords:
        """All that waits, which makes room."""
        arrivals = [
            WaitingArrivals(each.shared, each.times, each.sequences, each.results, each.records)
            for each in self._filled
        ]
        for group in self._filled:
            group.times, group.sequences, group.results, group.records, group.plain = [], {}, [], {}, False
        self._filled = []
        if len(self._groups) > _MOST_GROUPS:
            self._groups = {}  # requests find theirs by their forms, or begin new ones
        self._places = self._most
        dropped, self._untold = self._untold, 0
        return WaitingRecords(arrivals, dropped)

    def lost(self, waiting: WaitingRecords) -> None:
        """What was taken could not be written."""
        self.dropped += waiting.requests
        self._untold += waiting.requests + waiting.dropped

    def encode(self, waiting: WaitingRecords) -> Iterator[bytes]:
        """Lines, ended. From any thread."""
        for each in waiting.arrivals:
            for first in range(0, len(each.times), LINE_ARRIVALS):
                yield orjson.dumps(self._line(each, first), option=_LINE)
        if waiting.dropped:
            yield orjson.dumps({"dropped": waiting.dropped}, option=_LINE)

    def _line(self, arrivals: WaitingArrivals, first: int) -> dict[str, Any]:
        shared = {
            name: value
            for name, value, default in zip(_IN_LINES, arrivals.shared, _DEFAULTS, strict=True)
            if value != default
        }
        times = arrivals.times[first : first + LINE_ARRIVALS]
        if len(times) == 1 and not arrivals.sequences and not arrivals.results and not arrivals.records:
            return {"offset_s": round((times[0] - self._began_ns) / 1e9, 6), **shared}
        last = first + len(times)
        offsets = ((np.fromiter(times, np.int64, len(times)) - self._began_ns) / 1e9).round(6)
        columns: dict[str, Any] = {"offset_s": offsets}
        if arrivals.sequences:
            ids = [arrivals.sequences.get(at, 0) for at in range(first, last)]
            columns["sequence"] = [self._digest(each) if isinstance(each, str) else each for each in ids]
        if arrivals.results:
            columns |= _columns_of(arrivals.results[first:last])
        if arrivals.records:
            records = [(arrivals.times[at], arrivals.records.get(at)) for at in range(first, last)]
            columns |= generation_columns(records, results=bool(arrivals.results))
        if len(times) == 1:
            columns = {
                name: value if isinstance(value, str | int | float) else value[0] for name, value in columns.items()
            }
        return {**columns, **shared}

    def _record(self, group: RequestGroup, received_ns: int, sequence: int | str) -> bool:
        """Rule 1; whether there was room."""
        times = group.times
        if not times:
            self._begin(group)
        if not self._places:
            self.dropped += 1
            self._untold += 1
            return False
        self._places -= 1
        if sequence:
            group.sequences[len(times)] = sequence
        times.append(received_ns)
        return True

    def _begin(self, group: RequestGroup) -> None:
        """A group gets its first arrival."""
        if not self._places:
            return
        self._places = max(0, self._places - GROUP_PLACES)
        group.plain = not self.results and not group.generates
        if not self._filled:
            self.on_news()
        self._filled.append(group)

    def _group_of(
        self, request: InferenceRequest, config: ModelConfig, inputs: Mapping[str, Tensor], rows: int
    ) -> RequestGroup:
        nbytes = sum([tensor.nbytes for tensor in inputs.values()])
        elements = [
            math.prod(inputs[each.name].shape) // max(rows, 1)
            for each in config.input
            if -1 in each.dims and each.name in inputs
        ]
        caller = request.caller
        shared = SharedFields(
            request.model_name,
            request.model_version,
            rows,
            nbytes,
            tuple(elements),
            request.priority,
            request.timeout_us,
            request.sequence_start,
            request.sequence_end,
            config.platform == ENSEMBLE,
            "" if caller is None else caller.name,
            request.protocol,
        )
        group = self._groups.get(shared)
        if group is None or group.config is not config or group.caller is not caller:
            group = self._keep(RequestGroup(config, request.protocol, caller, shared, config.generates_text))
        return group

    def _keep(self, group: RequestGroup) -> RequestGroup:
        if len(self._groups) <= _MOST_GROUPS:
            self._groups[group.shared] = group
        return group

    def _digest(self, name: str) -> str:
        """Rule 5."""
        return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8, key=self._key).hexdigest()

    def __repr__(self) -> str:
        return f"<RequestRecorder: {self._most - self._places} places taken, {self.dropped} dropped>"


class _RecordedReply:
    """Takes the place of a job's reply, to which it passes everything on."""

    __slots__ = ("_group", "_job", "_recorder", "_reply")

    def __init__(self, recorder: RequestRecorder, job: Job, group: RequestGroup) -> None:
        self._recorder = recorder
        self._job: Job | None = job
        self._group = group
        self._reply = job.reply

    def deliver(self, outcome: Outcome, final: bool) -> bool:
        """See `engine.job.ReplyTarget`."""
        job = self._job
        if job is not None and final:
            self._job = None  # the job holds this: a cycle left here would be work for the garbage collector
            self._recorder.answered(job, self._group, outcome)
        return self._reply.deliver(outcome, final)


def _outcome_of(outcome: Outcome) -> str:
    if not isinstance(outcome, TriremeError):
        return ""
    if outcome.refusal is not None:
        return outcome.refusal.value
    return "cancelled" if isinstance(outcome, CancelledError) else "failed"


def _columns_of(results: Sequence[RecordedResult]) -> dict[str, Any]:
    *times, batches, instances, outcomes = zip(*results, strict=True)
    names = ("total_us", "queue_us", "input_us", "infer_us", "output_us")
    columns: dict[str, Any] = {
        name: (np.fromiter(each, np.int64, len(results)) / 1e3).round(3)
        for name, each in zip(names, times, strict=True)
    }
    columns |= {"batch": batches, "instance": instances, "outcome": outcomes}
    for name in ("batch", "instance", "outcome"):
        if len(set(columns[name])) == 1:
            columns[name] = columns[name][0]
    return columns


def _ignore() -> None:
    pass
