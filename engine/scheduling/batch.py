"""Jobs of a batch into whole-batch arrays, and whole-batch arrays back into answers. No framework is known here.

Rules:
 1. Models that batch: the jobs' tensors are joined on dim 0 in batch order, and outputs are cut by the jobs' batch
    sizes. Models that do not: there is exactly one job, and its tensors go through as they are.
 2. Nothing is copied but what joining needs. The inputs of a batch of one job are views on the received bytes
    (read-only; copied only if the bytes start at an address that is odd for their type); outputs are views on the
    framework's arrays.
 3. Ragged inputs become one flat array, in order (docs/reference/model-configuration.md#ragged-and-batch-inputs).
 4. ``Job.inputs`` have ``reshape`` of the inputs applied already: request validation does that, so shapes here are as
    the framework sees them. The inverse, ``reshape`` of the outputs, is applied here: clients see ``dims``.
 5. What is wrong with one job's data fails that job alone and drops it from the batch; the others go on. Where a row
    is the slot of a sequence (the direct strategy), the job stays, failed, with empty strings for what was wrong, so
    that the others keep their rows.
 6. Shape tensors have no batch dimension, and the same content in all jobs: that of the first one goes in.
 7. A job's response holds the outputs that it asked for, in the order of the configuration.
 8. An output stays in a GPU's memory, or is written straight to a region (`BatchLayout.place`), if only clients read
    it (no cache, sequence state or trace), all jobs want it there, it fits, and no job is cancelled, whose client may
    use its memory for something else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..config.model import BatchOutput, Dims, ModelConfig, ModelOutput
from ..config.sequence import DirectStrategy, sequence_batching
from ..datatypes import BYTES
from ..errors import InternalError, InvalidArgumentError, UnsupportedError, request_prefix
from ..job import Job
from ..memory.tensors import DevicePieces, PlacedOutput, RegionTensor
from ..tensor import Tensor, wire_bytes
from ..tensor_limits import bounded_product

Inputs = dict[str, Any]  # by name: numpy's arrays; `DevicePieces` where they are asked for
Allocate = Callable[[Sequence[int], np.dtype], np.ndarray]  # makes an array of a shape and dtype, with anything in it
Jobs = Sequence[Job]
Shares = Sequence[tuple[Job, Sequence[Tensor]]]  # jobs, each with its part of every output


class BatchLayout:
    """How the batches of one model are put together and taken apart. One object serves all instances, on any thread.

    Args:
        config: complete and valid.
        text: there are BYTES inputs, and the framework's strings are text: elements of these become `str`, decoded as
            strict UTF-8 (rule 5 for what is not). Otherwise they stay `bytes`.

    Raises:
        InvalidArgumentError: a ``batch_output`` does not fit its source input.
    """

    def __init__(self, config: ModelConfig, *, text: bool = False) -> None:
        self._text = text
        self._ragged = frozenset(tensor.name for tensor in config.input if tensor.allow_ragged_batch)
        self._joins = {tensor.name: _join_flat for tensor in config.input if tensor.allow_ragged_batch}
        self._joins |= {tensor.name: _join_equal for tensor in config.input if tensor.is_shape_tensor}
        self._batch_inputs = tuple((spec, _BATCH_INPUT_KINDS[spec.kind]) for spec in config.batch_input)
        scatters = {name: spec for spec in config.batch_output for name in spec.target_names}
        self._names = tuple(output.name for output in config.output)
        batching = self._batching = config.max_batch_size > 0
        sequences = sequence_batching(config)
        self._rows_are_slots = sequences is not None and isinstance(sequences.strategy, DirectStrategy)
        self._outputs = tuple(
            _ScatterLayout(output, scatters[output.name], config)
            if output.name in scatters
            else _RowsLayout(output)
            if batching
            else _WholeLayout(output)
            for output in config.output
        )
        others_read = config.response_cache or (sequences is not None and sequences.states)
        self._places = {} if others_read else {layout.output.name: layout for layout in self._outputs}

    def gather(self, jobs: Jobs, allocate: Allocate | None = None, gpu: int | None = None) -> tuple[Jobs, Inputs]:
        """The arrays of a batch.

        Args:
            jobs: at least one; all have inputs of the same names, types and (but for ragged ones and dim 0) shapes.
            allocate: where the arrays are to be, BYTES excepted: then every tensor is copied there, once (rule 2 is for
                memory of our own choice). What it raises is raised here.
            gpu: inputs that are in this GPU's memory, those of all jobs, are not copied: they are `DevicePieces`.

        Returns:
            The jobs that are left, possibly none (then there are no arrays), failed ones among them where rows are
            slots (rule 5); and by input name the array of the whole batch, dtype `DataType.storage`, batch inputs
            included. The arrays may be read-only.

        Raises:
            InternalError: the jobs' shapes do not go together.
        """
        texts: dict[str, list[np.ndarray]] = {}
        if self._text:
            names = [name for name, tensor in jobs[0].inputs.items() if tensor.datatype is BYTES]
            if names:
                jobs, texts = _decode_texts(jobs, names, self._rows_are_slots)
                if all(job.answered for job in jobs):
                    return [], {}
        inputs: Inputs = {}
        for name, tensor in jobs[0].inputs.items():
            if name in texts:
                inputs[name] = _join_arrays(texts[name], name in self._ragged)
                continue
            join = self._joins.get(name, _join_rows)
            tensors = [tensor] if len(jobs) == 1 else [job.inputs[name] for job in jobs]
            pieces = None if gpu is None or join is not _join_rows else _pieces_on(gpu, tensors)
            inputs[name] = join(tensors, allocate) if pieces is None else pieces
        for spec, make in self._batch_inputs:
            source = spec.source_inputs[0]
            array = make([job.inputs[source] for job in jobs]).astype(spec.datatype.storage, copy=False)
            if allocate is not None:
                array, made = allocate(array.shape, array.dtype), array
                array[...] = made
            for name in spec.target_names:
                inputs[name] = array
        return jobs, inputs

    def wants_place(self, jobs: Jobs) -> bool:
        """Whether to ask `place`."""
        return jobs[0].request.output_places is not None and bool(self._places)

    def may_place(self, jobs: Jobs) -> bool:
        """Whether only clients read the outputs of these jobs, and still wait for them (rule 8)."""
        return bool(self._places) and not any(job.cancelled or job.request.trace is not None for job in jobs)

    def place(self, jobs: Jobs, gpu: int | None, shapes: Mapping[str, Dims]) -> list[PlacedOutput | None]:
        """Where the outputs of a batch go (rule 8).

        Args:
            jobs: those that `gather` left.
            gpu: in whose memory they are; None for the machine's.
            shapes: of the outputs as the model makes them, by name; those of the whole batch.

        Returns:
            For each of `shapes` where its data goes; None if the host is to have it.

        Raises:
            InternalError: an output has not the shape that the configuration promises.
        """
        layouts = self._places if self.may_place(jobs) else {}
        return [layouts[name].place(shape, jobs, gpu) if name in layouts else None for name, shape in shapes.items()]

    def split(self, jobs: Jobs, outputs: Sequence[np.ndarray | PlacedOutput]) -> Shares:
        """Cut the outputs up. Jobs for which an output has not enough rows are failed, and have no share.

        Args:
            jobs: those that `gather` left.
            outputs: for each output of the configuration, in its order, the array of the whole batch, dtype
                `DataType.storage`; of BYTES, an object array of `bytes`. Or where it went.

        Raises:
            InternalError: an output has not the shape that the configuration promises.
        """
        if len(outputs) != len(self._outputs):
            raise InternalError(f"the model made {len(outputs)} outputs, expected {len(self._outputs)}")
        while True:
            try:
                columns: list[Sequence[Tensor]] = []
                for array, layout in zip(outputs, self._outputs, strict=True):
                    placed = isinstance(array, PlacedOutput)
                    columns.append(array.tensors[: len(jobs)] if placed else layout.split(array, jobs))
                break
            except _TooFewRowsError as short:
                jobs = _fail_beyond(jobs, short.output_name, short.available)
        rows = zip(*columns) if columns else [()] * len(jobs)  # noqa: B905  each layout gives a tensor a job, and
        return list(zip(jobs, rows))  # noqa: B905  `strict` would double what this takes

    def answer(self, shares: Shares) -> None:
        """Answer jobs with what each asked for of its share."""
        for job, tensors in shares:
            wanted = job.request.requested_outputs
            if wanted and wanted != self._names:
                tensors = [tensor for tensor in tensors if tensor.name in wanted]
            job.respond(job.response(tensors))


def encode_text(array: np.ndarray) -> np.ndarray:
    """An array of `str`, of any shape, as the object array of `bytes` (UTF-8) that `BatchLayout.split` takes."""
    return _object_array([element.encode() for element in array.ravel().tolist()]).reshape(array.shape)


# Gathering


def _join_rows(tensors: list[Tensor], allocate: Allocate | None) -> np.ndarray:
    first = tensors[0]
    placed = allocate is not None and first.datatype is not BYTES
    if len(tensors) == 1 and not placed:
        return _aligned(first.array)
    shape = _joined_shape(tensors)
    if allocate is not None and placed:
        return _copied(tensors, allocate(shape, first.datatype.storage))
    if first.has_array or first.datatype is BYTES:
        return np.concatenate([tensor.array for tensor in tensors])
    joined = b"".join([tensor.buffer for tensor in tensors])  # three times as fast as to concatenate arrays
    return np.frombuffer(joined, first.datatype.storage).reshape(shape)


def _joined_shape(tensors: list[Tensor]) -> Dims:
    tail = tensors[0].shape[1:]
    rows = 0
    for tensor in tensors:
        if tensor.shape[1:] != tail:
            raise InternalError(
                f"input '{tensor.name}' has shapes {list(tensors[0].shape)} and {list(tensor.shape)} in one batch; "
                "only the first dimension may differ"
            )
        rows += tensor.shape[0]
    return (rows, *tail)


def _pieces_on(gpu: int, tensors: list[Tensor]) -> DevicePieces | None:
    """What is joined on a GPU; None if not all of it is there."""
    places = [tensor.place for tensor in tensors if isinstance(tensor, RegionTensor) and tensor.place.gpu == gpu]
    if len(places) < len(tensors):
        return None
    shape = tensors[0].shape if len(tensors) == 1 else _joined_shape(tensors)
    return DevicePieces(shape, tensors[0].datatype.storage, tuple(places))


def _join_flat(tensors: list[Tensor], allocate: Allocate | None) -> np.ndarray:
    first = tensors[0]
    if allocate is not None and first.datatype is not BYTES:
        count = sum([tensor.element_count for tensor in tensors])
        return _copied(tensors, allocate((count,), first.datatype.storage))
    if len(tensors) == 1:
        return _aligned(first.array.reshape(-1))
    if first.has_array or first.datatype is BYTES:
        return np.concatenate([tensor.array.reshape(-1) for tensor in tensors])
    return np.frombuffer(b"".join([tensor.buffer for tensor in tensors]), first.datatype.storage)


def _join_equal(tensors: list[Tensor], allocate: Allocate | None) -> np.ndarray:
    if allocate is None:
        return _aligned(tensors[0].array)
    return _copied(tensors[:1], allocate(tensors[0].shape, tensors[0].datatype.storage))


def _copied(tensors: list[Tensor], target: np.ndarray) -> np.ndarray:
    """`target`, with all elements of all tensors, in order."""
    flat = target.reshape(-1)
    start = 0
    for tensor in tensors:
        end = start + tensor.element_count
        if tensor.has_array:
            flat[start:end].reshape(tensor.shape)[...] = tensor.array
        else:
            # Not by a memoryview, which holds the interpreter's lock while it copies.
            flat[start:end].view(np.uint8)[...] = np.frombuffer(tensor.buffer, np.uint8)
        start = end
    return target


def _join_arrays(arrays: list[np.ndarray], flat: bool) -> np.ndarray:
    if flat:
        arrays = [array.reshape(-1) for array in arrays]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _aligned(array: np.ndarray) -> np.ndarray:
    # A view into a request body can start anywhere; compiled kernels may take natural alignment for granted.
    return array if array.flags.aligned else array.copy()


def _decode_texts(jobs: Jobs, names: list[str], stay: bool) -> tuple[Jobs, dict[str, list[np.ndarray]]]:
    """Rule 5; `stay` says whether failed jobs stay in the batch."""
    kept: list[Job] = []
    arrays: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for job in jobs:
        try:
            decoded = [_decode_text(job.inputs[name], job.id) for name in names]
        except InvalidArgumentError as error:
            job.fail(error)
            if not stay:
                continue
            decoded = [np.full(job.inputs[name].shape, "", object) for name in names]
        kept.append(job)
        for name, array in zip(names, decoded, strict=True):
            arrays[name].append(array)
    return kept, arrays


def _decode_text(tensor: Tensor, request_id: str) -> np.ndarray:
    elements = tensor.array.ravel().tolist()
    texts: list[str] = []
    try:
        for element in elements:
            texts.append(element.decode())  # noqa: PERF401  their number tells which element is bad
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            f"{request_prefix(request_id)}input '{tensor.name}' must hold UTF-8 text, but its element {len(texts)} "
            f"is not: {error.reason} at byte {error.start}"
        ) from None
    return _object_array(texts).reshape(tensor.shape)


def _object_array(elements: list) -> np.ndarray:
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array


def _element_counts(sources: list[Tensor]) -> np.ndarray:
    return np.array([source.element_count for source in sources])


def _item_shapes(sources: list[Tensor]) -> np.ndarray:
    shapes = np.array([source.shape[1:] for source in sources])
    return np.repeat(shapes, [source.shape[0] for source in sources], axis=0)


_BATCH_INPUT_KINDS: dict[str, Callable[[list[Tensor]], np.ndarray]] = {
    "BATCH_ELEMENT_COUNT": _element_counts,
    "BATCH_ACCUMULATED_ELEMENT_COUNT": lambda sources: np.cumsum(_element_counts(sources)),
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": lambda sources: np.cumsum([0, *_element_counts(sources)]),
    # Only the shape matters; zeros, because unset memory could hold other clients' data.
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": lambda sources: np.zeros(_element_counts(sources).max()),
    "BATCH_ITEM_SHAPE": _item_shapes,
    "BATCH_ITEM_SHAPE_FLATTEN": lambda sources: _item_shapes(sources).reshape(-1),
}


# Scattering


class _TooFewRowsError(Exception):
    """An output has not enough rows for its jobs."""

    def __init__(self, output_name: str, available: int) -> None:
        super().__init__(f"output '{output_name}' has {available} rows")
        self.output_name = output_name
        self.available = available


def _fail_beyond(jobs: Jobs, output_name: str, available: int) -> Jobs:
    """Fail the jobs that need more than the `available` rows of an output; return the others."""
    end = 0
    kept: list[Job] = []
    for job in jobs:
        end += job.rows
        if end <= available:
            kept.append(job)
            continue
        job.fail(
            UnsupportedError(
                f"{request_prefix(job.id)}failed to split the output tensor '{output_name}' in responses: expected "
                f"batch size of atleast {end} in model output, got {available}"
            )
        )
    return kept


def client_shape(output: ModelOutput, shape: Dims) -> Dims:
    """``reshape`` undone: an output's shape as the model makes it, without a batch dimension, as the client sees it.

    Variable dimensions map in order.

    Raises:
        InternalError: it is not the shape that the configuration promises.
    """
    if output.reshape is None:
        return shape
    variable = [size for size, dim in zip(shape, output.reshape, strict=False) if dim == -1]
    dims = tuple(variable.pop(0) if dim == -1 and variable else dim for dim in output.dims)
    if bounded_product(dims) != bounded_product(shape):
        raise InternalError(
            f"output '{output.name}' has shape {list(shape)}, but the model configuration promises the shape "
            f"{list(output.reshape)} of its 'reshape'"
        )
    return dims


class _OutputLayout(ABC):
    """How one output's array becomes the jobs' tensors."""

    def __init__(self, output: ModelOutput) -> None:
        self.output = output

    @abstractmethod
    def split(self, array: np.ndarray, jobs: Jobs) -> list[Tensor]:
        """One tensor a job.

        Raises:
            _TooFewRowsError: the last jobs get none.
        """

    def place(self, shape: Dims, jobs: Jobs, gpu: int | None) -> PlacedOutput | None:
        """See `BatchLayout.place`."""
        return None

    def in_places(self, shapes: list[Dims], jobs: Jobs, gpu: int | None) -> PlacedOutput | None:
        """Tensors of these shapes where the jobs want them; None if one of them has no such place."""
        name, datatype = self.output.name, self.output.datatype
        tensors: list[RegionTensor] = []
        for job, shape in zip(jobs, shapes, strict=True):
            place = (job.request.output_places or {}).get(name)
            nbytes = bounded_product(shape) * datatype.size
            if place is None or place.gpu != gpu or not 0 < nbytes <= place.byte_size:
                return None
            tensors.append(RegionTensor(name, datatype, shape, place.first(nbytes)))
        return PlacedOutput(tuple(tensors))

    def cut(self, array: np.ndarray, pieces: Sequence[tuple[Dims, int]]) -> list[Tensor]:
        """Consecutive pieces of an array, with these shapes, which have so many elements."""
        name, datatype = self.output.name, self.output.datatype
        tensors: list[Tensor] = []
        start = 0
        if datatype is BYTES:
            flat = array.reshape(-1)
            for shape, count in pieces:
                end = start + count
                tensors.append(Tensor(name, datatype, shape, array=flat[start:end].reshape(shape)))
                start = end
            return tensors
        # Slices of one memoryview: the wire form of every piece for a tenth of what slicing the array costs.
        view = wire_bytes(array)
        size = datatype.size
        for shape, count in pieces:
            end = start + count * size
            tensors.append(Tensor(name, datatype, shape, view[start:end]))
            start = end
        return tensors


class _RowsLayout(_OutputLayout):
    """Dim 0 is the batch: each job gets as many rows as it brought."""

    _latest: tuple[Dims | None, Dims, int] = None, (), 1  # a row of the latest batch: shape, that of clients, elements

    def place(self, shape: Dims, jobs: Jobs, gpu: int | None) -> PlacedOutput | None:
        if not shape or shape[0] < sum([job.rows for job in jobs]):
            return None
        tail = client_shape(self.output, shape[1:])
        return self.in_places([(job.rows, *tail) for job in jobs], jobs, gpu)

    def split(self, array: np.ndarray, jobs: Jobs) -> list[Tensor]:
        rows = jobs[0].rows if len(jobs) == 1 else sum([job.rows for job in jobs])
        shape = array.shape
        available = shape[0] if shape else 0
        if available < rows:
            raise _TooFewRowsError(self.output.name, available)
        known, tail, row = self._latest
        if known != (shape := shape[1:]):
            tail = client_shape(self.output, shape)
            row = bounded_product(tail)
            self._latest = shape, tail, row
        return self.cut(array, [((job.rows, *tail), job.rows * row) for job in jobs])


class _WholeLayout(_OutputLayout):
    """No batch dimension: the one job gets it all."""

    def place(self, shape: Dims, jobs: Jobs, gpu: int | None) -> PlacedOutput | None:
        return self.in_places([self._whole_shape(shape)], jobs, gpu)

    def _whole_shape(self, shape: Dims) -> Dims:
        # A scalar has a shape only in the configuration, where every dimension of it is 1.
        return client_shape(self.output, shape) if shape else (1,) * len(self.output.dims)

    def split(self, array: np.ndarray, jobs: Jobs) -> list[Tensor]:
        shape = self._whole_shape(array.shape)
        return [Tensor(self.output.name, self.output.datatype, shape, array=array.reshape(shape)) for _ in jobs]


class _ScatterLayout(_OutputLayout):
    """BATCH_SCATTER_WITH_INPUT_SHAPE: flat; a job's piece has the sizes of its source input where the output's vary."""

    def __init__(self, output: ModelOutput, spec: BatchOutput, config: ModelConfig) -> None:
        super().__init__(output)
        source = config.find_input(spec.source_inputs[0])
        assert source is not None, "validation knows the source inputs"
        self._source = source.name
        self._batching = config.max_batch_size > 0
        dims = output.inner_dims
        if any(dim == -1 for dim in dims[len(source.inner_dims) :]):
            raise InvalidArgumentError(
                f"batch output '{output.name}' of model '{config.name}' has a variable dimension that its source input "
                f"'{source.name}' has no dimension for: {list(dims)}"
            )
        self._dims = (-1, *dims) if self._batching else dims

    def split(self, array: np.ndarray, jobs: Jobs) -> list[Tensor]:
        shapes: list[Dims] = []
        for job in jobs:
            source = job.inputs[self._source].shape
            shapes.append(tuple(source[at] if dim == -1 else dim for at, dim in enumerate(self._dims)))
        counts = [bounded_product(shape) for shape in shapes]
        if array.size < sum(counts):
            raise InternalError(
                f"output '{self.output.name}' has {array.size} elements, but the shapes of input "
                f"'{self._source}' in this batch need {sum(counts)}"
            )
        rows = 1 if self._batching else 0  # dimensions of the batch
        inverse = [shape[:rows] + client_shape(self.output, shape[rows:]) for shape in shapes]
        return self.cut(array, list(zip(inverse, counts, strict=True)))
