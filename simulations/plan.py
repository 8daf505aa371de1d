"""A plan: everything that a swarm run will do, as plain data.

A plan is drawn from a seed (`swarm`), played (`play`), made smaller when it fails (`shrink`), and written to a file so
that it can be played anywhere. Nothing in a run is drawn later than here: what goes wrong is a property of a request
("the instance that executes it crashes"), so leaving a request out leaves the others what they were.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, replace
from typing import Any

from ..engine.config.model import (
    DynamicBatching,
    InstanceGroup,
    ModelConfig,
    ModelConfigMessage,
    ModelInput,
    ModelOutput,
    QueuePolicy,
    model_config,
)
from ..engine.config.objective import PARAMETER
from ..engine.config.sequence import ControlKind
from ..engine.datatypes import BYTES, FP32, UINT64
from ..engine.errors import InvalidArgumentError
from ..engine.request import LATEST
from .front_ends_plan import NO_FRONT_ENDS, FrontEndsPlan
from .models import BACKEND, Ends
from .plain import plain, read_plain
from .plan_parts import GpuPlan, PolicyPlan, RegionChange, ResourcePlan, SequencesPlan, StepPlan, ViewPlan
from .records import record
from .shapes import WIDTH, Shapes, with_shapes
from .workloads import WayIn

UNKNOWN_MODEL = "unknown"
"""Name of a model that no server has."""

PLENTY_BYTES = 1 << 20
"""A response cache of this size holds all responses of a run."""

SUM, NEW_SUM = "SUM", "NEW_SUM"
"""What an implicit state is called before and after an execution."""


class Fault(enum.Enum):
    """What goes wrong when a request is executed; the rest of its batch suffers as it would in earnest."""

    __hash__ = object.__hash__  # asked for at every request, and nothing depends on its value

    NONE = ""
    RAISE = "backend raises"
    FAIL = "backend fails one request"
    SILENCE = "backend leaves one request unanswered"
    TWICE = "backend answers twice"
    CRASH = "instance crashes"
    EXIT = "instance exits amid its answers"
    HANG = "instance hangs"
    SLOW = "instance is slow"
    MEMORY = "GPU has no memory"  # from here on, of models on GPUs only
    SICK = "GPU falls ill in silence"
    LATE = "batch fails when it has landed"
    SLOT = "slot dies"  # of stateful models only
    KILL = "process ends"


GPU_FAULTS = (Fault.MEMORY, Fault.SICK, Fault.LATE)
DEATHS = (Fault.SLOT, Fault.KILL)
"""Drawn apart, by `dying`."""


class Change(enum.Enum):
    """What the server is asked to do with a model while it serves."""

    RELOAD = "reload"  # it has changed, and is loaded again
    LOAD = "load"  # it has not changed, but may have been unloaded
    UNLOAD = "unload"
    RESIZE = "resize"  # it has another number of instances, and is loaded again
    BREAK = "break"  # it cannot be loaded any more until it is changed again, and is to be loaded
    UNLOAD_ALL = "unload with members"


RESIZED_TO = "resize to "


class Manner(enum.Enum):
    """How a client takes its answer."""

    __hash__ = object.__hash__  # as above

    LISTENS = "listens"  # by a callback, as a front end does
    WAITS = "waits"  # in a task of its own
    VANISHES = "vanishes"  # not at all


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """A model. A batch takes ``fixed_ns + per_row_ns * rows``, plus what its requests add.

    Attributes:
        inputs: how many inputs it has, all of one shape.
        preferred: preferred batch sizes; empty for the largest alone.
        demands, priority: what an instance needs of the server's resources, and how urgently (1 is first).
        decoupled: it answers a request any number of times.
        heeds: of a decoupled one, it looks whether anybody still wants its answers.
        failing_starts: which attempts to start an instance fail, counted from 1 over all instances.
        steps: of an ensemble, which has nothing else but the next, a name and a max_batch_size; what no step takes is
            an output, that of the last step the first.
        max_inflight: of an ensemble, how many requests each step may have in flight; 0 for any number.
        gpus: the numbers of those that it is on, with so many instances on each; empty for none.
        credits: of such a model, batches that an instance may have in flight, where no resources are shared.
        shapes: what requests to it may differ in.
        cached: its answers are kept in the response cache.
        in_place: one in so many batches takes its time, and all others none, being executed in place; 0 for no such.
        ends: how it becomes known that a batch is over.
        objective_ms: within which its requests are to be executed; 0 for any time.
        checks_ns: about how long its instances take to say whether they are ready; 0 if they do not say that.
        reads_regions: large inputs in shared memory are left there for its instances to read.
    """

    name: str
    instances: int = 1
    max_batch_size: int = 8
    fixed_ns: int = 10_000_000
    per_row_ns: int = 0
    dynamic: bool = False
    preferred: tuple[int, ...] = ()
    delay_us: int = 0
    preserve_ordering: bool = False
    levels: int = 0
    default_level: int = 0
    policies: tuple[PolicyPlan, ...] = ()
    failing_starts: tuple[int, ...] = ()
    sequences: SequencesPlan | None = None
    demands: tuple[ResourcePlan, ...] = ()
    priority: int = 0
    inputs: int = 1
    steps: tuple[StepPlan, ...] = ()
    max_inflight: int = 0
    decoupled: bool = False
    heeds: bool = False
    gpus: tuple[int, ...] = ()
    credits: int = 2
    shapes: Shapes = Shapes.FIXED
    cached: bool = False
    in_place: int = 0
    ends: Ends = Ends.ALONE
    checks_ns: int = 0
    objective_ms: float = 0.0
    reads_regions: bool = False

    @property
    def iterative(self) -> bool:
        return self.sequences is not None and self.sequences.iterative

    @property
    def sinks(self) -> tuple[int, ...]:
        """Of an ensemble: the steps that make its outputs, in the order of these."""
        taken = {tensor for step in self.steps for tensor in step.takes}
        return tuple(number for number in range(len(self.steps), 0, -1) if number not in taken)

    def config(self) -> ModelConfig:
        if self.steps:
            return self._ensemble_config()
        config = ModelConfig(
            name=self.name,
            backend=BACKEND,
            max_batch_size=self.max_batch_size,
            input=tuple(ModelInput(f"INPUT{index}", FP32, (WIDTH,)) for index in range(self.inputs)),
            output=(ModelOutput("OUTPUT0", FP32, (WIDTH,)),),
            instance_group=(
                InstanceGroup(self.name, "KIND_GPU" if self.gpus else "KIND_CPU", self.instances, self.gpus),
            ),
            dynamic_batching=self.batching() if self.dynamic else None,
            response_cache=self.cached,
            parameters={PARAMETER: str(self.objective_ms)} if self.objective_ms else {},
        )
        message = ModelConfigMessage()
        limit = message.instance_group.add().rate_limiter
        limit.priority = self.priority
        for demand in self.demands:
            limit.resources.add(name=demand.name, count=demand.count)
        if self.sequences is not None:
            self._fill_in(message.sequence_batching, self.sequences)
        message.model_transaction_policy.decoupled = self.decoupled
        stateful = self.sequences is not None
        config = replace(config, has_sequence_batching=stateful, decoupled=self.decoupled, message=message)
        return with_shapes(config, self.shapes)

    def _ensemble_config(self) -> ModelConfig:
        message = ModelConfigMessage(name=self.name, platform="ensemble", max_batch_size=self.max_batch_size)
        message.input.add(name="INPUT0", data_type=FP32.number, dims=[4])
        tensors = [f"T{number}" for number in range(len(self.steps) + 1)]
        tensors[0] = "INPUT0"
        for index, sink in enumerate(self.sinks):
            tensors[sink] = f"OUTPUT{index}"
            message.output.add(name=tensors[sink], data_type=FP32.number, dims=[4])
        message.response_cache.enable = self.cached
        scheduling = message.ensemble_scheduling
        scheduling.max_inflight_requests = self.max_inflight
        for number, planned in enumerate(self.steps, start=1):
            step = scheduling.step.add(model_name=planned.model, model_version=LATEST)
            step.output_map["OUTPUT0"] = tensors[number]
            for index, taken in enumerate(planned.takes):
                step.input_map[f"INPUT{index}"] = tensors[taken]
        return model_config(message)

    def _fill_in(self, batching: Any, sequences: SequencesPlan) -> None:
        """What the sequence batcher reads of a configuration, with one control of each kind."""
        batching.max_sequence_idle_microseconds = sequences.idle_us
        batching.iterative_sequence = sequences.iterative
        if sequences.oldest:
            batching.oldest.max_candidate_sequences = sequences.candidates
            batching.oldest.max_queue_delay_microseconds = self.delay_us
            batching.oldest.preserve_ordering = self.preserve_ordering
            batching.oldest.preferred_batch_size.extend(self.preferred)
        else:
            batching.direct.max_queue_delay_microseconds = self.delay_us
            batching.direct.minimum_slot_utilization = sequences.utilization
        if sequences.sums:
            kept = BYTES if sequences.texts else FP32
            state = batching.state.add(input_name=SUM, output_name=NEW_SUM, data_type=kept.number, dims=[1])
            state.use_same_buffer_for_input_output = sequences.same_buffer
        for kind in ControlKind:
            control = batching.control_input.add(name=kind.name).control.add(kind=kind.value)
            if kind is ControlKind.CORRID:
                control.data_type = UINT64.number
            else:
                control.int32_false_true.extend((0, 1))

    def batching(self) -> DynamicBatching:
        policies = {each.level: each.policy() for each in self.policies}
        return DynamicBatching(
            preferred_batch_sizes=self.preferred,
            max_queue_delay_us=self.delay_us,
            preserve_ordering=self.preserve_ordering,
            priority_levels=self.levels,
            default_priority_level=self.default_level,
            default_queue_policy=policies.pop(0, QueuePolicy()),
            priority_queue_policy=policies,
        )


@record
class RequestPlan:
    """A request, and how it goes wrong.

    Attributes:
        number: its name, unique in the plan, from 1.
        at_ns: when it is sent, from the beginning; with `after`, from the answer to that request.
        after: number of the request whose answer its client waits for first; 0 for none.
        give_up_ns: how long its client waits for the answer; 0 for as long as it takes.
        fault_step: of a request to an ensemble, the execution among those that follow from it which the fault strikes.
        fault_after: how often it is executed, or how many answers are given, before the fault strikes.
        turns: how often an iterative model executes it.
        answers: how many answers a decoupled model gives at each execution.
        answer_ns: the time between two of them.
        apart: that there are no more answers is said after the last one, not with it.
        pause_ns: the time that its client takes over an answer of a decoupled model.
        width: the size of its rows, to a model that lets it vary.
        extra: what it gives as `EXTRA`, to a model that has such an input; see `shapes`.
        content: what it asks; requests of equal content and rows ask for the same. 0 for what no other asks.
        extra_ns: what it adds to the time of its batch, or of each of its steps'.
        sequence, start, end: correlation id (0 for none), and whether it begins or ends the sequence.
        entry: how it gets in; `arrival_ns` is the time that its body takes to arrive.
        region: its inputs are in shared memory.
    """

    number: int
    model: str
    at_ns: int
    after: int = 0
    rows: int = 1
    priority: int = 0
    timeout_us: int = 0
    give_up_ns: int = 0
    manner: Manner = Manner.LISTENS
    fault: Fault = Fault.NONE
    extra_ns: int = 0
    sequence: int | str = 0
    start: bool = False
    end: bool = False
    fault_step: int = 0
    fault_after: int = 0
    turns: int = 1
    answers: int = 1
    answer_ns: int = 0
    apart: bool = False
    pause_ns: int = 0
    width: int = WIDTH
    extra: int = 0
    content: int = 0
    entry: WayIn = WayIn.WHOLE
    arrival_ns: int = 0
    region: bool = False


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """That a model is changed, and when. `instances`: how many it is to have, for `Change.RESIZE`. `inside`: a model
    asks for it."""

    at_ns: int
    model: str
    change: Change = Change.RELOAD
    instances: int = 0
    inside: bool = False

    @property
    def text(self) -> str:
        """As it stands in histories."""
        return f"{RESIZED_TO}{self.instances}" if self.change is Change.RESIZE else self.change.value


class Asker(enum.Enum):
    """Who asks whether a model is ready, or all of them are."""

    CLIENT = "a client"
    MODEL = "a model"
    SERVER = "a client of all"


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """A question whether a model is ready, and when it is asked."""

    at_ns: int
    model: str
    asker: Asker = Asker.CLIENT


MANY_REQUESTS = 65_536
"""The server-wide limit of a run that is to have none."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A run.

    Attributes:
        seed: of the order in which tasks run.
        attending: what is sent at one instant is sent in one turn, as by front ends, and not before one.
        calm_ns: when faults stop (an instance can hang or crash no more), and the liveness phase begins.
        resources: what there is for instances to share; empty if they need not.
        stop_ns: when the server is stopped, whatever is in flight; 0 for when all is done.
        changes: of models, while the server is at work.
        held: requests that schedulers wait for, as the environment says: queued, and in the backlog of sequences; such
            a server is stopped, or what is held might wait for ever.
        load_retries: how often a load that has failed is tried again.
        load_ns: the time that each step of loading a model takes, once the server is up.
        window: answers of a decoupled model that wait for their client before the model is held back; at least 3.
        gpus: by their numbers.
        pinned_bytes: of the pool of pinned memory; 0 for plenty.
        cache_bytes: of the response cache; 0 for none.
        cache_ns, cache_fails: how long a call of it takes, 0 for one in memory; and whether some come to nothing.
        max_inflight_bytes: see `ServerOptions`; 0 for plenty.
        probes: questions whether models are ready.
        trace_rate, trace_count: of so many requests one is traced, and so many at most; rate 0 for none, count -1 for
            any number.
        views: what clients of front ends ask about the server.
        region_changes: of what they have registered; without any, who has inputs in shared memory comes to the server.
        offload_ns: what threads take for each request that they check, or read the inputs of.
        named, poll_ns, patience_s: see `control`; 0 for no polling, and for the usual patience.
        fails_to_start, first_failing: before it, the server is started in vain: of this model only so many instances
            less one can be made; see `failed_starts`.
        max_inflight_requests, hang_limit_s, restart_limit, restart_window_s, exit_timeout_s: see `ServerOptions`.
    """

    seed: int
    models: tuple[ModelPlan, ...]
    requests: tuple[RequestPlan, ...]
    calm_ns: int
    stop_ns: int = 0
    max_inflight_requests: int = MANY_REQUESTS
    hang_limit_s: float = 0.0
    restart_limit: int = 5
    restart_window_s: float = 60.0
    exit_timeout_s: float = 30.0
    attending: bool = False
    resources: tuple[ResourcePlan, ...] = ()
    window: int = 64
    changes: tuple[ChangePlan, ...] = ()
    load_ns: int = 0
    gpus: tuple[GpuPlan, ...] = ()
    pinned_bytes: int = 0
    cache_bytes: int = 0
    max_inflight_bytes: int = 0
    load_retries: int = 0
    held: tuple[int, ...] = ()
    cache_ns: int = 0
    cache_fails: bool = False
    probes: tuple[ProbePlan, ...] = ()
    offload_ns: int = 0
    named: bool = False
    poll_ns: int = 0
    patience_s: float = 0.0
    front_ends: FrontEndsPlan = NO_FRONT_ENDS
    trace_rate: int = 0
    trace_count: int = -1
    views: tuple[ViewPlan, ...] = ()
    region_changes: tuple[RegionChange, ...] = ()
    fails_to_start: str = ""
    first_failing: int = 0

    def at_once(self, model: ModelPlan) -> int:
        """How many batches each instance of a model may have in flight; see `actors.instance`."""
        return model.credits if model.gpus and not self.resources else 1

    def to_json(self) -> str:
        return json.dumps(plain(self), indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> Plan:
        """Read what `to_json` wrote.

        Raises:
            InvalidArgumentError: it is something else.
        """
        try:
            return read_plain(Plan, json.loads(text))
        except (ValueError, TypeError, AttributeError) as error:
            raise InvalidArgumentError(f"not a plan: {error}") from error

    def without_requests(self, numbers: frozenset[int]) -> Plan:
        """The plan less some requests. A request that waited for the answer to one of them waits for what that one
        waited for."""
        before = {request.number: request.after for request in self.requests}
        kept = []
        for request in self.requests:
            if request.number not in numbers:
                after = request.after
                while after in numbers:
                    after = before[after]
                kept.append(request if after == request.after else replace(request, after=after))
        return replace(self, requests=tuple(kept))
