"""What was measured of a model: how long its batches take, what its requests cost its host, how long it takes to start.

A profile is plain data, with a form in JSON (`to_json`, `read_profile`) that carries the number of its version.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from ..errors import InvalidArgumentError
from ..instances.executing import SHORT_NS
from .durations import TimeDistribution
from .generation import GenerationProfile
from .origin import ProfileOrigin

FORMAT = 5
"""Of the JSON form."""

T = TypeVar("T")


class ExecutorKind(enum.Enum):
    """Where a model's batches are executed.

    THREAD: on a thread of each instance.
    PROVING: the same; short batches on the event loop (`engine.instances.executing`).
    PROCESS: in a process of each instance.
    DEVICE: on a device of its own, such as a GPU.
    """

    THREAD = "thread"
    PROVING = "proving"
    PROCESS = "process"
    DEVICE = "device"


class Way(enum.Enum):
    """How requests reach the server."""

    HTTP = "http"  # tensors in binary
    JSON = "json"  # over HTTP, tensors as text
    GRPC = "grpc"
    STREAM = "stream"  # over gRPC, on one stream


@dataclass(frozen=True, slots=True)
class ServicePoint:
    """Batches of one size, with a number of instances executing side by side.

    Attributes:
        rows: of the batch.
        side_by_side: instances that execute batches of this size all the time, this one included.
        cores: processor seconds a second of execution: 0 for one that only waits.
        time: from the beginning of a batch to its end, where it is executed; copies included.
        copy_in_s, copy_out_s: means of what gathering inputs and scattering outputs takes of that.
    """

    rows: int
    side_by_side: int
    cores: float
    time: TimeDistribution
    copy_in_s: float = 0.0
    copy_out_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RestedLoop:
    """What a request costs more that finds the event loop asleep: cores that sleep, caches that others have used.

    Attributes:
        rest_s: for how long the loop has slept.
        loop_s: seconds of the event loop more, those of a batch that it executes included.
        outside_s: seconds more outside of it.
    """

    rest_s: float
    loop_s: float
    outside_s: float


NEVER_LATE = TimeDistribution.constant(0.0)


@dataclass(frozen=True, slots=True)
class HostPoint:
    """What a request that came in one way costs the host beside its execution.

    Attributes:
        nbytes: of its inputs.
        front_ends: processes that read and write for the server; 0 if the server does so itself. What one of several
            costs a request is what one alone does.
        request_s: seconds of the event loop for the request: decode, admit, schedule, encode, write.
        batch_s: seconds of the event loop for each wake-up and batch, which requests share that come together.
        outside: from the client to the loop and back: system calls, network, wake-ups, the client's own.
        rested: ascending by `rest_s`; the first costs nothing more. Empty if it was not measured.
        slowed: the factor by which batches took longer than in `service`, since the server read and wrote meanwhile;
            of a generating model, steps (`foresight.busy_texts`).
        late: how much later than nine of ten requests were answered that found the loop asleep; 0 for those nine.
            Other programs had a core then, for the most part. Nothing where batches take long, whose times have it.
        crowded: how late a thread gets a core while batches compute on all, or on all but one (`foresight.crowding`).
        answer_s: seconds of the event loop for each answer, of a model that answers many times.
        held_up: by so many of the seconds that the event loop works meanwhile a step of a generating model is longer.
        front_request_s: processor seconds of a front end for the request: read, decode, pass on, encode, write.
        front_turn_s: of a front end for each of its turns, which requests and answers share that come together. One
            request alone takes two.
    """

    way: Way
    nbytes: int
    front_ends: int
    request_s: float
    batch_s: float
    outside: TimeDistribution
    rested: tuple[RestedLoop, ...] = ()
    slowed: float = 1.0
    late: TimeDistribution = NEVER_LATE
    crowded: TimeDistribution = NEVER_LATE
    answer_s: float = 0.0
    held_up: float = 0.0
    front_request_s: float = 0.0
    front_turn_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Seconds until a version is ready (`load_s`, first instance, warm-up included), and until one more instance is."""

    load_s: float = 0.0
    instance_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """What is known of one version of a model.

    Attributes:
        config: its configuration as it was completed when it was loaded, as ``/config`` shows it.
        service: sorted by rows, and by instances side by side; one with a single instance at least. Of a generating
            model there is one, of steps that have one text.
        start, notice: from when the event loop hands a batch over to its beginning, and from its end to when the loop
            hears of it; of batches that are not executed on the loop.
        host: what requests cost the host; empty if that was not measured.
        recorded: made from real traffic and not by a measurement: nothing is known then of what was not asked.
        generation: how long its steps take; None for a model that generates no text.
    """

    model: str
    version: int
    executor: ExecutorKind
    config: Mapping[str, Any]
    service: tuple[ServicePoint, ...]
    start: TimeDistribution
    notice: TimeDistribution
    host: tuple[HostPoint, ...]
    starting: StartTimes
    origin: ProfileOrigin
    recorded: bool = False
    generation: GenerationProfile | None = None

    @property
    def on_loop(self) -> bool:
        """Batches of one row are so short that the event loop executes them once they have proved that."""
        alone = next(point for point in self.service if point.side_by_side == 1)
        return runs_on_loop(self.executor, alone.time.mean_s)

    def to_json(self) -> str:
        """The text of a profile file."""
        service = [{**_plain(each), "time": each.time.to_json()} for each in self.service]
        host = [
            {
                **_plain(each),
                "way": each.way.value,
                "outside": each.outside.to_json(),
                "rested": [asdict(rested) for rested in each.rested],
                "late": each.late.to_json(),
                "crowded": each.crowded.to_json(),
            }
            for each in self.host
        ]
        document = {
            "format": FORMAT,
            "model": self.model,
            "version": self.version,
            "origin": asdict(self.origin),
            "executor": self.executor.value,
            "recorded": self.recorded,
            "service": service,
            "start": self.start.to_json(),
            "notice": self.notice.to_json(),
            "host": host,
            "starting": asdict(self.starting),
            "config": dict(self.config),
        }
        if self.generation is not None:
            document["generation"] = self.generation.to_json()
        return json.dumps(document, indent=1) + "\n"


def runs_on_loop(executor: ExecutorKind, mean_s: float) -> bool:
    """Whether batches that take so long on average end up on the event loop (`engine.instances.executing`)."""
    return executor is ExecutorKind.PROVING and mean_s * 1e9 < SHORT_NS


def _plain(point: ServicePoint | HostPoint) -> dict[str, Any]:
    return {field.name: getattr(point, field.name) for field in fields(point)}


def read_profile(text: str, where: str) -> ModelProfile:
    """The profile that a text is (`ModelProfile.to_json`).

    Args:
        where: what is read, for the errors.

    Raises:
        InvalidArgumentError: it is none, or one of another version of the form; says what is wrong with which part.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InvalidArgumentError(f"{where}: not JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidArgumentError(f"{where}: expected an object, not {type(document).__name__}")
    known = document.get("format")
    if known != FORMAT:
        raise InvalidArgumentError(
            f"{where}: format {known!r} of profiles is not known; expected {FORMAT}. Profile again"
        )
    part = _Part(document, where)
    service = part.each("service", _service_point)
    service.sort(key=lambda point: (point.rows, point.side_by_side))
    if not any(point.side_by_side == 1 for point in service):
        raise InvalidArgumentError(f"{where}.service: expected a measurement of one instance alone")
    profile = ModelProfile(
        model=part.text("model"),
        version=part.whole("version", 1),
        executor=part.member("executor", ExecutorKind),
        config=part.table("config"),
        service=tuple(service),
        start=TimeDistribution.from_json(part.get("start"), f"{where}.start"),
        notice=TimeDistribution.from_json(part.get("notice"), f"{where}.notice"),
        host=tuple(part.each("host", _host_point)),
        starting=_starting(_Part(part.table("starting"), f"{where}.starting")),
        origin=ProfileOrigin.from_json(part.get("origin"), f"{where}.origin"),
        recorded=part.truth("recorded"),
        generation=GenerationProfile.from_json(part.get("generation"), f"{where}.generation")
        if "generation" in document
        else None,
    )
    part.finish()
    return profile


def _service_point(part: _Part) -> ServicePoint:
    return ServicePoint(
        rows=part.whole("rows", 1),
        side_by_side=part.whole("side_by_side", 1),
        cores=part.number("cores"),
        time=TimeDistribution.from_json(part.get("time"), f"{part.where}.time"),
        copy_in_s=part.number("copy_in_s"),
        copy_out_s=part.number("copy_out_s"),
    )


def _host_point(part: _Part) -> HostPoint:
    return HostPoint(
        way=part.member("way", Way),
        nbytes=part.whole("nbytes", 0),
        front_ends=part.whole("front_ends", 0),
        request_s=part.number("request_s"),
        batch_s=part.number("batch_s"),
        outside=TimeDistribution.from_json(part.get("outside"), f"{part.where}.outside"),
        rested=tuple(sorted(part.each("rested", _rested_loop), key=lambda each: each.rest_s)),
        slowed=part.number("slowed"),
        late=TimeDistribution.from_json(part.get("late"), f"{part.where}.late"),
        crowded=TimeDistribution.from_json(part.get("crowded", NEVER_LATE.to_json()), f"{part.where}.crowded"),
        answer_s=part.number("answer_s", 0.0),
        held_up=part.number("held_up", 0.0),
        front_request_s=part.number("front_request_s", 0.0),
        front_turn_s=part.number("front_turn_s", 0.0),
    )


def _rested_loop(part: _Part) -> RestedLoop:
    return RestedLoop(part.number("rest_s"), part.number("loop_s"), part.number("outside_s"))


def _starting(part: _Part) -> StartTimes:
    starting = StartTimes(part.number("load_s"), part.number("instance_s"))
    part.finish()
    return starting


class _Part:
    """An object of the document, which is read member by member.

    Args:
        where: its place, for the errors.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.where = where
        self._values = dict(values)
        self._read = {"format"}

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self._values and default is not None:
            return default
        if name not in self._values:
            raise InvalidArgumentError(f"{self.where}: {name} is missing")
        self._read.add(name)
        return self._values[name]

    def finish(self) -> None:
        """All that is known has been read."""
        unknown = sorted(set(self._values) - self._read)
        if unknown:
            raise InvalidArgumentError(f"{self.where}: unknown member {unknown[0]!r}")

    def text(self, name: str) -> str:
        value = self.get(name)
        if not isinstance(value, str) or not value:
            raise self._wrong(name, "a text", value)
        return value

    def truth(self, name: str) -> bool:
        value = self.get(name)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def whole(self, name: str, least: int) -> int:
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._wrong(name, f"a whole number from {least} on", value)
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise self._wrong(name, "a number from 0 on", value)
        return float(value)

    def member(self, name: str, kind: type[enum.Enum]) -> Any:
        value = self.get(name)
        known = {each.value: each for each in kind}
        if not isinstance(value, str) or value not in known:
            raise self._wrong(name, f"one of {', '.join(known)}", value)
        return known[value]

    def table(self, name: str) -> dict[str, Any]:
        value = self.get(name)
        if not isinstance(value, dict):
            raise self._wrong(name, "an object", value)
        return value

    def each(self, name: str, read: Callable[[_Part], T]) -> list[T]:
        value = self.get(name)
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise self._wrong(name, "a list of objects", value)
        parts = [_Part(each, f"{self.where}.{name}[{index}]") for index, each in enumerate(value)]
        points = [read(part) for part in parts]
        for part in parts:
            part.finish()
        return points

    def _wrong(self, name: str, expected: str, value: Any) -> InvalidArgumentError:
        return InvalidArgumentError(f"{self.where}.{name}: expected {expected}, not {value!r}")
