"""The interface between Trireme and a framework: public, and complete from the first day.

A backend is a class found by name through the entry-point group ``trireme.backends``, so a custom one is a
pip-installable package. Everything here is plain synchronous Python; the actors decide on which thread it runs:

* `Backend` objects live as long as the server; there is one a backend name.
* `Backend.auto_complete` and `Backend.load` run on a loader thread, possibly several models at once.
* `LoadedModel.create_instance`, `ModelInstance.execute` and `ModelInstance.close` of one instance never run two at a
  time. They run on one thread, the instance's own; only an instance that is not `thread_bound` may have short batches
  executed elsewhere (`engine.instances.executing`).

Whatever these raise is shown to people: a `TriremeError` as it stands, anything else as an internal error with its
text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ..cancellation import Cancellation
from ..config.files import path_within
from ..config.model import ModelConfig, ModelInput, ModelOutput
from ..errors import InternalError, InvalidArgumentError, TriremeError
from ..job import ExecutionBatch, Job
from ..metrics.statistics import EncodingStatistics, GenerationStatistics, MemoryUsage
from .services import Services


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where one version of a model is on disk.

    Attributes:
        capabilities: compute capabilities, such as ``8.0``, of the GPUs that instances may be on, by number.
        cancellation: of the load. What a backend waits for that it can end, it should end when the load is cancelled.
    """

    model_directory: Path
    version: int
    capabilities: Mapping[int, str] = field(default_factory=dict, compare=False)
    cancellation: Cancellation = field(default_factory=Cancellation, compare=False, repr=False)

    @property
    def version_directory(self) -> Path:
        return self.model_directory / str(self.version)

    def model_path(self, config: ModelConfig, spec: InstanceSpec, default: str) -> Path:
        """The file that an instance is made from: the one for its GPU's compute capability (``cc_model_filenames``),
        else the one that the configuration names, else `default`. It need not be there.

        Raises:
            InvalidArgumentError: it is not below the model's directory.
        """
        special = None
        if spec.gpu is not None:
            special = config.cc_model_filenames.get(self.capabilities.get(spec.gpu, ""))
        name = special or config.default_model_filename or default
        path = path_within(self.model_directory, str(self.version), name)
        if path is None:
            raise InvalidArgumentError(f"model file '{name}' of model '{config.name}' is outside the model's directory")
        return path


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """Which instance to make: its name (``digits_0``), its kind (``KIND_CPU`` …), its device, and the host policy that
    its group names."""

    name: str
    kind: str = "KIND_CPU"
    device_id: int = 0
    host_policy: str = ""

    @property
    def gpu(self) -> int | None:
        """The GPU that it executes on; None for an instance of another kind."""
        return self.device_id if self.kind == "KIND_GPU" else None

    @property
    def policy_name(self) -> str:
        """Of its host policy, which need not be set (`engine.host_policies`, rule 1)."""
        if self.host_policy:
            return self.host_policy
        return f"gpu_{self.device_id}" if self.kind == "KIND_GPU" else self.kind.removeprefix("KIND_").lower()


@dataclass(frozen=True, slots=True)
class Completion:
    """What a backend found out about a model whose configuration is incomplete
    (docs/reference/model-configuration.md#completion-by-backends).

    Only what the configuration left open is taken from it: inputs when it lists none, outputs likewise.

    Attributes:
        max_batch_size: the value to use from now on.
        input, output: as the model declares them, without the batch dimension; empty for no opinion.
        dynamic_batching: add an empty ``dynamic_batching`` if no scheduler was chosen.
        decoupled: value for the transaction policy; None for no opinion.
        rewritten: instead of all that, the whole configuration in JSON, of which what a model may decide is taken.
    """

    max_batch_size: int
    input: tuple[ModelInput, ...] = ()
    output: tuple[ModelOutput, ...] = ()
    dynamic_batching: bool = False
    decoupled: bool | None = None
    rewritten: str = ""


class ModelInstance(ABC):
    """One executable copy of a model.

    Attributes:
        credits: most batches that it may have at once; known when it has been made, or, of a process, when that has
            started. A blocking instance executes one at a time.
        checks_itself: the model says of itself whether it is ready; known at the same time.
        on_ready: called on the event loop with why it is not, or None, once `ask_ready` has been called.
    """

    credits: int = 1
    checks_itself: bool = False
    on_ready: Callable[[TriremeError | None], None]
    thread_bound: bool = True
    """Whether `execute` must always run on the instance's own thread. Only where neither the thread matters nor the
    time depends on more than the amount of data may this be False."""

    @abstractmethod
    def execute(self, batch: ExecutionBatch) -> None:
        """Answer every job of the batch (`Job.respond`, `Job.fail`), marking phases on the way.

        Raising answers all unanswered jobs with that error; the instance stays in use. The jobs' inputs are already
        checked against the configuration; BYTES contents are not checked to be text.
        """

    def ask_ready(self) -> None:
        """Ask the model whether it is ready, whatever it executes; only where `checks_itself`, and once at a time."""

    def close(self) -> None:
        """Give back what the instance holds. Called once, on the instance's thread."""


class ProcessLostError(InternalError):
    """The process of an instance has ended: which of its requests caused that is unknown."""


class ProcessInstance(ModelInstance):
    """An instance in a process of its own: no thread waits for it.

    All methods are called on the event loop, and none may block, but for `prepare` and `close`, which may be called on
    some other thread. The process is not up yet when an instance has been made; `started` tells.

    Attributes:
        ended: a descriptor that can be read when the process has ended.
        killable: it ends when it is killed. False if it is a thread, which can only be let go.
        up: the process has said something.
        launch_limit_s: most seconds until then.
        started: batches may be given to it.
        on_finished: called with a batch that is over: ``batch.finish`` has been called.
        on_congestion: called when something waits for the process to take it; `flush` must be called when `fileno` can
            be written.
        on_returned: called, in any thread, when `give_back` is due.
        busy: more messages waited than one turn may take.
        later: calls back after so many seconds.
        aside: does work on a thread, and calls back with its result.
    """

    ended: int
    killable: bool = True
    up: bool = False
    launch_limit_s: float = 30.0
    started: bool = False
    on_finished: Callable[[ExecutionBatch], None]
    on_congestion: Callable[[], None]
    on_returned: Callable[[], None]
    busy: bool = False
    now_s: Callable[[], float]
    later: Callable[[float, Callable[[], None]], object]
    aside: Callable[[Callable[[], Any], Callable[[Any], None]], object]

    def execute(self, batch: ExecutionBatch) -> None:
        self.begin(batch, self.prepare(batch))

    def open_jobs(self) -> Iterable[Job]:
        """Those that it has been given and that have no final answer; also of batches that are over."""
        return ()

    @abstractmethod
    def prepare(self, batch: ExecutionBatch) -> Any:
        """Put the inputs of a batch where the process can see them; on a thread if they are large.

        Raises:
            TriremeError: they cannot be put there.
        """

    @abstractmethod
    def begin(self, batch: ExecutionBatch, prepared: Any) -> None:
        """Give a batch to the process. Raises like what `sources` says."""

    @abstractmethod
    def sources(self) -> Mapping[int, Callable[[], bool]]:
        """What the process says: descriptors, each with what to call when it can be read, which returns whether to go
        on watching it, and raises `TriremeError` when the process is lost."""

    @abstractmethod
    def outputs(self) -> Mapping[int, Callable[[float], float | None]]:
        """What the process prints: descriptors, each with what to call, with the time, when it can be read, which
        returns how many seconds to wait before the next call; None at its end."""

    @abstractmethod
    def give_back(self) -> None:
        """Tell the process which memory it may use again."""

    @abstractmethod
    def fileno(self) -> int:
        """The descriptor that batches go to."""

    @abstractmethod
    def flush(self) -> bool:
        """Give the process what waits for it; whether nothing waits any more. Raises as `sources` says."""

    @abstractmethod
    def ask_to_end(self) -> None:
        """Tell the process that it is not needed any more; `close` then ends it."""

    @abstractmethod
    def kill(self) -> None:
        """End the process now."""

    @abstractmethod
    def abandon(self, error: TriremeError) -> None:
        """The process is gone: answer with `error` what it has not answered, and give everything back."""


class StreamInstance(ModelInstance):
    """An instance on a GPU: it enqueues a batch, and the device says when it is over. No thread waits for it.

    `launch`, like `close`, is called on the instance's own thread, `collect` and `healthy` on the event loop.

    Attributes:
        credits: two, so that the copies of one batch go on while another one is computed.
    """

    credits = 2

    def execute(self, batch: ExecutionBatch) -> None:
        raise InternalError("a batch of a GPU instance is launched, not executed")

    @abstractmethod
    def launch(self, batch: ExecutionBatch, on_landed: Callable[[], None]) -> Any:
        """Enqueue a batch.

        Args:
            on_landed: to be called, from any thread, when the device has done everything and the results are there.

        Returns:
            What `collect` needs.

        Raises:
            SickDeviceError: the device has failed; so has the instance.
            Exception: why the batch cannot be executed; the instance stays in use.
        """

    @abstractmethod
    def collect(self, batch: ExecutionBatch, launched: Any) -> None:
        """Answer the batch, which has landed, and mark its phases. Takes no longer than making views takes.

        Raises:
            SickDeviceError, Exception: as `launch` does.
        """

    @abstractmethod
    def healthy(self, launched: Any) -> None:
        """Look whether a batch that has not landed still may.

        Raises:
            SickDeviceError: it never will.
        """


class SteppedInstance(ModelInstance):
    """An instance that computes all batches that it has together, in steps; each batch ends by itself. No thread waits
    for one.

    `compute` and `follow`, like `close`, are called on the instance's own thread, the rest on the event loop.

    Attributes:
        aside: does work that would hold up the steps on another thread, one piece after the other, and calls back with
            its result on the event loop, where `begin_step` is asked then; the work must not raise. It is there when a
            batch has been admitted.
    """

    aside: Callable[[Callable[[], Any], Callable[[Any], object]], None]

    def execute(self, batch: ExecutionBatch) -> None:
        raise InternalError("a batch of an instance that goes by steps is admitted, not executed")

    @abstractmethod
    def admit(self, batch: ExecutionBatch, over: Callable[[], None]) -> None:
        """Take a batch in.

        Args:
            over: to be called, on the event loop, when all its requests are answered.

        Raises:
            Exception: why it cannot be taken in; the instance stays in use.
        """

    @abstractmethod
    def begin_step(self, now_s: float) -> Any:
        """What `compute` is to do now; None if there is nothing to do. Asked when no step is under way: after each
        step that none has followed, and when a batch was taken in."""

    @abstractmethod
    def compute(self, step: Any) -> Any:
        """Carry out a step.

        Raises:
            SickDeviceError: the device has failed; so has the instance.
            Exception: why all requests in it fail; the instance stays in use.
        """

    def follow(self, step: Any, result: Any) -> Any:
        """The step that the thread goes on with, now that it has carried out this one, without asking the event loop;
        None if there is none. Must not raise. `end_step` is called for this one all the same, perhaps later than
        the next one is over."""

    @abstractmethod
    def end_step(self, step: Any, result: Any) -> None:
        """A step was carried out: take in what has come of it."""

    def answer(self) -> None:
        """Answer what can be answered since the last step. Called after `end_step`, when the next step is under way, if
        there is one: clients are served while it is computed."""

    @abstractmethod
    def fail_step(self, step: Any, error: TriremeError) -> None:
        """A step has failed: its requests are answered with that."""


class LoadedModel(ABC):
    """One version of a model, read and checked, from which instances are made.

    Attributes:
        memory_usage: the memory that it takes, for the statistics; may be replaced at any time, from any thread.
        adapters: names that requests can choose by ``lora_name`` in their ``sampling_parameters``.
        generated: what its instances count, if they generate text.
        encoded: the same, if they are encoders.
    """

    memory_usage: tuple[MemoryUsage, ...] = ()
    adapters: tuple[str, ...] = ()
    generated: GenerationStatistics | None = None
    encoded: EncodingStatistics | None = None

    @property
    def input_gpu(self) -> int | None:
        """The GPU on which all instances are, if they take inputs that are in its memory as they are; None, as here, to
        have all inputs in the machine's memory."""
        return None

    @property
    def reads_regions(self) -> bool:
        """Whether large inputs in the machine's shared memory are left there (`RegionTensor`) for its instances to read
        when they execute them, on their own threads, or prepare them for a process, on a thread."""
        return False

    def instance_class(self, spec: InstanceSpec) -> type[ModelInstance]:
        """What kind of instance `create_instance` makes for this: a `ProcessInstance`, a `StreamInstance`, a
        `SteppedInstance`, or, as here, one that executes batches on its thread."""
        return ModelInstance

    def process_bytes(self) -> int:
        """Memory of the processes that its instances run in, as it is now; 0, as here, if there are none. Must not take
        long."""
        return 0

    @abstractmethod
    def create_instance(self, spec: InstanceSpec) -> ModelInstance:
        """Make an instance.

        Raises:
            TriremeError: it cannot be made; the load fails with this text.
        """

    def close(self) -> None:
        """Give back what the instances share. Called once, after the last instance was closed."""


class Backend(ABC):
    """A framework.

    Args:
        options: ``--backend-config`` settings: the global ones, overlaid by those for this backend.

    Attributes:
        services: what the server offers; there once the backend has been made, not while it is.
        runtime: replaces the configuration's ``runtime``; empty to leave it.
        settling_runs: how often an instance on a GPU must execute a batch of a size before that is as fast as it will
            be, because its library searches for the fastest way, or compiles, for each size that it meets.
        shares_threads: its library has threads that work for all instances. These are bound to no host policy.
    """

    name: ClassVar[str]
    runtime: str = ""
    settling_runs: ClassVar[int] = 0
    shares_threads: bool = False

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)
        self.services = Services()

    def auto_complete(self, config: ModelConfig, files: ModelFiles) -> Completion | None:
        """What the model file says about itself; None if there is nothing to add.

        Raises:
            TriremeError: the file cannot be read, or contradicts the configuration.
        """
        return None

    def uses_gpus(self) -> bool:
        """Whether instances that may be anywhere (``KIND_AUTO``) are to be on GPUs. Asked where there is one.

        Raises:
            TriremeError: unknown, because the library is not installed.
        """
        return False

    @abstractmethod
    def load(self, config: ModelConfig, files: ModelFiles) -> LoadedModel:
        """Check the files against the (complete, valid) configuration.

        Raises:
            TriremeError: what is wrong, in words that say what to do.
        """
