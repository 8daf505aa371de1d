"""What the backends of frameworks share: libraries and options, models with their tensors, and instances, those that
execute a batch on their thread and those that enqueue it on a GPU."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..config.model import ModelConfig
from ..config.sequence import SequenceBatching, sequence_batching
from ..datatypes import BYTES
from ..errors import InternalError, UnavailableError
from ..gpu.device import DeviceArray
from ..gpu.pipeline import Compute, Flight, GpuPipeline
from ..instances.orders import all_on_cpu, first_instance
from ..job import INFER_START, OUTPUT_START, ExecutionBatch, Job
from ..memory.tensors import PlacedOutput
from ..scheduling.batch import BatchLayout
from ..scheduling.batch_regions import RegionBatch, names_regions
from ..scheduling.sequence.state import keep_arrays
from .interface import Backend, Completion, InstanceSpec, LoadedModel, ModelFiles, ModelInstance, StreamInstance
from .parameters import parse_int
from .signature import Signature, complete, fed_types, needs_completion

_PRIORITY_MAX = 1

P = TypeVar("P")


class FrameworkBackend(Backend):
    """A backend with a library that is imported when a model needs it, never before."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._library_lock = threading.Lock()
        self._library: Any = None

    @abstractmethod
    def import_library(self) -> Any:
        """The library, ready for use; called once.

        Raises:
            TriremeError: it is not installed, is broken, or does not like the options.
        """

    @property
    def library(self) -> Any:
        with self._library_lock:
            if self._library is None:
                self._library = self.import_library()
            return self._library


class GraphBackend(FrameworkBackend):
    """One whose models say themselves what goes in and comes out.

    Options: ``default-max-batch-size`` (4).
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._default_max_batch_size = max(parse_int(options.get("default-max-batch-size", "4")), 0)

    @abstractmethod
    def signature(self, config: ModelConfig, files: ModelFiles) -> Signature:
        """What a model file says about itself.

        Raises:
            TriremeError: it cannot be read.
        """

    def auto_complete(self, config: ModelConfig, files: ModelFiles) -> Completion | None:
        if not needs_completion(config):
            return None
        return complete(config, self.signature(config, files), self._default_max_batch_size)


class ModelTensors:
    """The tensors of a model by its configuration, and how batches are made of them. Shared by its instances.

    Attributes:
        inputs: element types, by name, of all that the model is given (`fed_types`).
        outputs: those of what it makes: the configuration's outputs, then states that are not among them.
        sequences: what the configuration says about sequences; empty if it says nothing.
        scalars: inputs that configurations call [1] and the graph a scalar; to be set when that is known.
    """

    def __init__(self, config: ModelConfig, *, text: bool = False) -> None:
        self.sequences = sequence_batching(config) or SequenceBatching()
        self.inputs = fed_types(config, self.sequences)
        self.layout = BatchLayout(config, text=text and BYTES in self.inputs.values())
        self.outputs = {output.name: output.datatype for output in config.output}
        for state in self.sequences.states:
            self.outputs.setdefault(state.output_name, state.datatype)
        self.max_rows = max(config.max_batch_size, 1)
        self.batching = config.max_batch_size > 0
        self.scalars: frozenset[str] = frozenset()
        self._of_clients = len(config.output)
        names = list(self.outputs)
        self._states = [(state, names.index(state.output_name)) for state in self.sequences.states]

    @property
    def has_strings(self) -> bool:
        return BYTES in self.inputs.values() or BYTES in self.outputs.values()

    def answer(self, jobs: Sequence[Job], arrays: Sequence[Any], regions: RegionBatch | None = None) -> None:
        """Answer the jobs of a batch.

        Args:
            arrays: for each of `outputs`, in their order: see `BatchLayout.split`.
            regions: the same batch, if it has tensors in shared memory.
        """
        layout, states = self.layout, self._states
        shares = layout.split(jobs, arrays[: self._of_clients] if states else arrays)
        if regions is not None:
            shares = regions.settle(shares)
        if states:  # what a batch leaves behind is kept only once nothing can go wrong with it any more
            keep_arrays(jobs, [(state, arrays[at]) for state, at in states], self.batching)
        layout.answer(shares)


class FrameworkModel(LoadedModel, Generic[P]):
    """A model whose configuration fits its file.

    To find that out takes a program (a session, a module, an engine), and making one can take long; so it is made for
    the first instance, and the first one of its kind and device takes it over.

    Args:
        text: strings are `str` for the framework (`BatchLayout`).
        share: most instances of one kind and device that use the same program; it is then used by several threads.
    """

    def __init__(self, config: ModelConfig, files: ModelFiles, *, text: bool = False, share: float = 1) -> None:
        self.config = config
        self.files = files
        self.tensors = ModelTensors(config, text=text)
        self._share = share
        self._lock = threading.Lock()
        self._made: dict[tuple[str, int, str], tuple[P, int]] = {}

    @abstractmethod
    def make(self, spec: InstanceSpec) -> P:
        """A program for an instance. On any thread; one at a time if programs are shared."""

    def first_program(self) -> P:
        """The program of the first instance that the configuration asks for, kept for it."""
        spec = first_instance(self.config)
        program = self.make(spec)
        self._made[spec.kind, spec.device_id, spec.host_policy] = program, 0
        return program

    def program(self, spec: InstanceSpec) -> P:
        """The program of an instance."""
        key = (spec.kind, spec.device_id, spec.host_policy)  # its threads run where it was made
        with self._lock:
            program, users = self._made.pop(key, (None, 0))
            if program is None and self._share > 1:
                program = self.make(spec)
            if program is not None and users + 1 < self._share:
                self._made[key] = program, users + 1
        if users:
            self.reused()
        return self.make(spec) if program is None else program

    @property
    def reads_regions(self) -> bool:
        return all_on_cpu(self.config)

    def reused(self) -> None:
        """Called when an instance uses the program of another one."""

    def close(self) -> None:
        self._made.clear()


def find_file(
    config: ModelConfig,
    files: ModelFiles,
    spec: InstanceSpec,
    default: str,
    *,
    directory: bool = False,
    name: str = "",
) -> Path:
    """The file that an instance is made from: see `ModelFiles.model_path`.

    Args:
        directory: it may also be one.
        name: whose it is, for the error; the model's, unless said otherwise.

    Raises:
        UnavailableError: it is not there.
    """
    path = files.model_path(config, spec, default)
    if not (path.exists() if directory else path.is_file()):
        raise UnavailableError(f"unable to find '{path}' for model instance '{name or config.name}'")
    return path


def check_rows(rows: int, most: int, instance: str) -> None:
    """A batch must not be larger than the configuration says. Raises `InternalError`: it is."""
    if rows > most:
        raise InternalError(f"batch size {rows} for '{instance}', max allowed is {most}")


class ThreadInstance(ModelInstance):
    """An instance that executes a batch from beginning to end; `execute` and `close` on one thread at a time.

    This is the path of every request; what can be known before is.

    Args:
        run: executes the model; gives its outputs in the order of `ModelTensors.outputs`, or what `_fetch` takes.
        errors: what that raises; `_failure` makes them ours.

    Attributes:
        in_place: see `RegionBatch`.
    """

    in_place = False

    def __init__(
        self,
        name: str,
        tensors: ModelTensors,
        run: Callable[[dict[str, Any]], Any],
        errors: tuple[type[Exception], ...],
    ) -> None:
        self._name = name
        self._tensors = tensors
        self._layout = tensors.layout
        self._max_rows = tensors.max_rows
        self._run = run
        self._errors = errors
        self._converts = bool(tensors.scalars)
        self._fetches = False

    def execute(self, batch: ExecutionBatch) -> None:
        if batch.rows > self._max_rows:
            check_rows(batch.rows, self._max_rows, self._name)
        regions = None
        if batch.aside and names_regions(batch.jobs):
            regions = RegionBatch(self._layout, batch.jobs, in_place=self.in_place)
            jobs, inputs = regions.gather()
        else:
            jobs, inputs = self._layout.gather(batch.jobs)
        if not jobs:
            return
        if self._converts:
            inputs = self._convert(inputs, batch.rows, len(jobs))
        batch.mark(INFER_START)
        try:
            outputs = self._run(inputs) if regions is None else self._run_in_regions(inputs, regions)
        except self._errors as error:
            raise self._failure(error) from None
        batch.mark(OUTPUT_START)
        if self._fetches:
            outputs = self._fetch(outputs)
        self._tensors.answer(jobs, outputs, regions)

    def _run_in_regions(self, inputs: dict[str, Any], regions: RegionBatch) -> Any:
        """The same as `run`, of a batch that has tensors in shared memory; in the place of outputs that it has written
        to where they are to be (`RegionBatch.lend_places`) it gives `PlacedOutput`."""
        return self._run(inputs)

    def _convert(self, inputs: dict[str, Any], rows: int, jobs: int) -> dict[str, Any]:
        """What the framework takes, where `_converts`: arrays by name, of so many jobs with so many rows."""
        for name in self._tensors.scalars:
            if name in inputs:
                inputs[name] = inputs[name].reshape(())
        return inputs

    @abstractmethod
    def _failure(self, error: Exception) -> InternalError:
        """What the framework has raised, in plain words."""

    def _fetch(self, outputs: Any) -> Any:
        """The outputs as `ModelTensors.answer` wants them, where `_fetches`."""
        return outputs

    def close(self) -> None:
        del self._run


def stream_priority(config: ModelConfig) -> int:
    """Of the streams of a model's instances: see `Device.stream`."""
    return -1 if config.message.optimization.priority == _PRIORITY_MAX else 0


@dataclass(slots=True)
class DeviceBatch:
    """A batch of a GPU instance, as its computation sees it.

    Attributes:
        names: of the inputs on the device, in the order in which they go there.
        host_inputs: arrays by name, of the inputs that the framework takes on the host.
        outputs: names of the results on the device, once that is known, in their order.
        host_outputs: the others: what the framework writes to on the host.
        held: whatever else must live until the batch has landed.
    """

    jobs: Sequence[Job]
    rows: int
    names: Sequence[str] = ()
    host_inputs: dict[str, Any] = field(default_factory=dict)
    outputs: Sequence[str] = ()
    host_outputs: dict[str, Any] = field(default_factory=dict)
    held: list[object] = field(default_factory=list)


class PipelineInstance(StreamInstance):
    """An instance on a GPU, whose batches go over a `GpuPipeline`; see `StreamInstance` for who calls what.

    Inputs are gathered into pinned memory, and the answers are views on the pinned memory that the outputs were copied
    to; that goes back to its pool when the last of them has been sent.

    A model with implicit state has one batch at a time: what a sequence remembers is there when a batch has been
    collected, and a second batch in flight could only be made of other sequences.

    Attributes:
        shares_inputs, shares_outputs: batches take what clients have put into this GPU's memory from there, and leave
            there what they want there.
    """

    shares_inputs = True
    shares_outputs = True

    def __init__(self, name: str, tensors: ModelTensors, pipeline: GpuPipeline) -> None:
        if tensors.sequences.states:
            self.credits = 1
        self._name = name
        self._tensors = tensors
        self._layout = tensors.layout
        self._pipeline = pipeline

    def launch(self, batch: ExecutionBatch, on_landed: Callable[[], None]) -> tuple[DeviceBatch, Flight]:
        check_rows(batch.rows, self._tensors.max_rows, self._name)
        device = self._pipeline.device
        jobs, inputs = self._layout.gather(batch.jobs, device.pinned, device.index if self.shares_inputs else None)
        for name in self._tensors.scalars:
            if name in inputs:
                inputs[name] = inputs[name].reshape(())
        run = DeviceBatch(jobs, batch.rows)
        compute = self._prepare(run, inputs)
        run.names = tuple(inputs)
        place = partial(self._place, run) if self.shares_outputs and self._layout.wants_place(jobs) else None
        with device.active():
            return run, self._pipeline.launch(list(inputs.values()), compute, on_landed, place)

    @abstractmethod
    def _prepare(self, run: DeviceBatch, inputs: dict[str, Any]) -> Compute:
        """What computes a batch.

        Args:
            inputs: by name; what stays in it is copied to the device.
        """

    def _place(self, run: DeviceBatch, results: Sequence[DeviceArray]) -> list[PlacedOutput | None]:
        """See `pipeline.Place`."""
        shapes = {name: tuple(result.shape) for name, result in zip(run.outputs, results, strict=True)}
        return self._layout.place(run.jobs, self._pipeline.device.index, shapes)

    def collect(self, batch: ExecutionBatch, launched: tuple[DeviceBatch, Flight]) -> None:
        run, flight = launched
        arrays = {**run.host_outputs, **dict(zip(run.outputs, flight.collect(batch), strict=True))}
        self._finish(run, arrays)
        self._tensors.answer(run.jobs, [arrays[name] for name in self._tensors.outputs])

    def _finish(self, run: DeviceBatch, arrays: dict[str, Any]) -> None:
        """Put the final arrays in place of those that are not, now that the batch has landed."""

    def healthy(self, launched: tuple[DeviceBatch, Flight]) -> None:
        _, flight = launched
        flight.reached()
