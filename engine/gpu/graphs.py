"""For which shapes a model's work is captured as CUDA graphs, and which graph serves a batch
(docs/reference/backends.md#tensorrt).

What capturing and launching mean, a framework knows.

Rules:
 1. ``optimization.cuda.graphs`` turns them on. Without a ``graph_spec`` they are captured for batches of 1, of the
    preferred sizes and of ``max_batch_size``; where nothing gathers batches (no dynamic batching, no sequences by the
    oldest strategy) for 1, 2, 3, 4, 6, 8, 12, 16 and ``max_batch_size``; for a model that does not batch once.
    Otherwise for each ``graph_spec``.
 2. A graph has fixed shapes. An input whose configured dimensions are not all fixed needs them from the ``graph_spec``;
    a specification that leaves one open is passed over. So are models whose inputs have no shape of their own (ragged,
    or made from the batch).
 3. A batch of exactly these shapes is served by its graph. Any other is served by the nearest larger one, by batch size
    first, whose ``graph_lower_bound`` it reaches in every dimension; it is padded. If there is none, it is executed
    without a graph. Without a lower bound only exact shapes fit.
 4. What cannot be captured, be it for lack of memory, is executed without a graph, as in Triton, and the log says why.
    Only a sick device is no place for it. Large ones are captured first: smaller ones fit into their memory.
 5. A graph reads and writes the same memory every time. So a batch's inputs are copied there, and its results from
    there, on the stream that it is launched in: the batch before is computed by then, and the one after it not yet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..config.model import Dims, ModelConfig
from ..config.sequence import OldestStrategy, sequence_batching
from ..errors import InvalidArgumentError, TriremeError
from .device import DeviceArray, Graph, SickDeviceError

_log = logging.getLogger(__name__)

_UNGATHERED_SIZES = (1, 2, 3, 4, 6, 8, 12, 16)

InputShapes = Mapping[str, Dims]
"""By input name, without the batch dimension."""


@dataclass(frozen=True, slots=True)
class GraphShape:
    """The shapes for which one graph is captured.

    Attributes:
        rows: batch size; 0 for a model that does not batch.
        lower_rows, lower_shapes: the smallest that it serves; the same where only exact shapes fit.
    """

    rows: int
    shapes: InputShapes
    lower_rows: int
    lower_shapes: InputShapes

    def shape(self, name: str) -> Dims:
        """An input's whole shape, with the batch dimension if the model has one."""
        return (self.rows, *self.shapes[name]) if self.rows else self.shapes[name]

    def serves(self, rows: int, shapes: InputShapes) -> bool:
        """Whether a batch fits, padded where it is smaller (rule 3)."""
        return self.lower_rows <= rows <= self.rows and all(
            len(shape) == len(most)
            and all(low <= dim <= high for low, dim, high in zip(self.lower_shapes[name], shape, most, strict=True))
            for name, shape in shapes.items()
            for most in [self.shapes[name]]
        )


@dataclass(frozen=True, slots=True)
class CapturedGraph(GraphShape):
    """A graph, and the memory that it reads and writes, by name."""

    graph: Graph
    inputs: Mapping[str, DeviceArray]
    outputs: Mapping[str, DeviceArray]


G = TypeVar("G", bound=GraphShape)


class GraphChoice(Generic[G]):
    """Chooses among the graphs that were captured.

    Args:
        graphs: all with the same inputs.

    Attributes:
        graphs: the same, the smallest batch first.
    """

    def __init__(self, graphs: Sequence[G]) -> None:
        self.graphs = sorted(graphs, key=_key)

    def fitting(self, rows: int, arrays: Mapping[str, Any]) -> G | None:
        """`find`, for arrays with the batch dimension, if the model has one."""
        if not self.graphs:
            return None
        skip = 1 if self.graphs[0].rows else 0
        return self.find(rows * skip, {name: tuple(array.shape[skip:]) for name, array in arrays.items()})

    def find(self, rows: int, shapes: InputShapes) -> G | None:
        """The graph that serves a batch; None if it is to be executed without one.

        Args:
            rows: 0 for a model that does not batch.
            shapes: of all its inputs, and no others.
        """
        fitting = [graph for graph in self.graphs if shapes.keys() == graph.shapes.keys()]
        exact = next((graph for graph in fitting if graph.rows == rows and dict(graph.shapes) == dict(shapes)), None)
        return exact or next((graph for graph in fitting if graph.serves(rows, shapes)), None)


def capture_each(
    shapes: Sequence[GraphShape],
    capture: Callable[[GraphShape], CapturedGraph],
    refused: Callable[[GraphShape, TriremeError], None],
) -> GraphChoice[CapturedGraph]:
    """Capture graphs (rule 4).

    Args:
        refused: called for each that cannot be captured, with why.

    Raises:
        SickDeviceError: rule 4.
    """
    captured = []
    for shape in sorted(shapes, key=_key, reverse=True):
        try:
            captured.append(capture(shape))
        except SickDeviceError:
            raise
        except TriremeError as error:
            refused(shape, error)
    return GraphChoice(captured)


def graph_shapes(config: ModelConfig, inputs: InputShapes) -> tuple[GraphShape, ...]:
    """What is to be captured (rules 1 and 2), each shape once.

    Args:
        inputs: all that the framework is fed with, -1 for dimensions that the configuration leaves open.

    Raises:
        InvalidArgumentError: a ``graph_spec`` contradicts the configuration.
    """
    cuda = config.message.optimization.cuda
    if not cuda.graphs:
        return ()
    if cuda.graph_spec:
        wanted = [_specified(spec, config.max_batch_size, inputs) for spec in cuda.graph_spec]
    else:
        wanted = [GraphShape(rows, inputs, rows, inputs) for rows in _default_sizes(config)]
    if config.batch_input or any(tensor.allow_ragged_batch for tensor in config.input):
        _log.warning("model '%s' has inputs without a shape of their own: no CUDA graphs", config.name)
        return ()
    fixed: dict[tuple[int, ...], GraphShape] = {}
    for graph in wanted:
        if any(dim < 0 for shape in graph.shapes.values() for dim in shape):
            _log.warning(
                "model '%s': no CUDA graph for batch size %d: not all shapes are fixed; a graph_spec can fix them",
                config.name,
                graph.rows,
            )
        else:
            fixed.setdefault(_key(graph), graph)
    return tuple(fixed.values())


def input_shapes(config: ModelConfig) -> InputShapes:
    """What a model is fed with, as the framework sees it: inputs, controls and states of sequences."""
    shapes = {tensor.name: tensor.inner_dims for tensor in config.input}
    sequences = sequence_batching(config)
    if sequences is not None:
        shapes |= {control.name: (1,) for control in sequences.controls}
        shapes |= {state.input_name: state.dims for state in sequences.states}
    return shapes


def _default_sizes(config: ModelConfig) -> list[int]:
    most = config.max_batch_size
    if most == 0:
        return [0]
    sequences = sequence_batching(config)
    if config.dynamic_batching is not None:
        sizes = {1, *config.dynamic_batching.preferred_batch_sizes}
    elif sequences is not None and isinstance(sequences.strategy, OldestStrategy):
        sizes = {1, *sequences.strategy.preferred_batch_sizes}
    else:
        sizes = set(_UNGATHERED_SIZES)
    return sorted(size for size in {*sizes, most} if size <= most)


def _specified(spec: Any, most_rows: int, inputs: InputShapes) -> GraphShape:
    """A ``graph_spec``, checked as Triton checks it and completed from the configuration."""
    shapes = {name: tuple(shape.dim) for name, shape in spec.input.items()}
    lower_rows, lower_shapes = spec.batch_size, shapes
    if spec.HasField("graph_lower_bound"):
        lower_rows = spec.graph_lower_bound.batch_size
        lower_shapes = {name: tuple(shape.dim) for name, shape in spec.graph_lower_bound.input.items()}
    if most_rows == 0:
        if spec.batch_size or lower_rows:
            raise InvalidArgumentError("graph spec expects 'batch_size' to be 0 if 'max_batch_size' is 0")
    elif not (1 <= spec.batch_size <= most_rows and 1 <= lower_rows <= most_rows):
        raise InvalidArgumentError(f"graph spec expects 'batch_size' to be >= 1 and <= {most_rows}")
    if lower_rows > spec.batch_size:
        raise InvalidArgumentError("graph lower bound spec expects 'batch_size' to be <= graph spec 'batch_size'")
    for name, shape in shapes.items():
        _check_lower(name, shape, lower_shapes.get(name))
        _check_known(name, shape, inputs)
    return GraphShape(
        spec.batch_size,
        {name: shapes.get(name, shape) for name, shape in inputs.items()},
        lower_rows,
        {name: lower_shapes[name] if name in shapes else shape for name, shape in inputs.items()},
    )


def _check_lower(name: str, shape: Dims, lower: Dims | None) -> None:
    if lower is None:
        raise InvalidArgumentError(f"graph lower bound spec expects shape for input '{name}'")
    if len(lower) != len(shape):
        raise InvalidArgumentError(
            f"graph lower bound spec expects to have '{len(shape)}' dimensions, got {len(lower)}"
        )
    for least, dim in zip(lower, shape, strict=True):
        if least < 0 or dim < 0:
            raise InvalidArgumentError(f"graph spec expects input '{name}' to have dimension >= 0")
        if least > dim:
            raise InvalidArgumentError(f"graph lower bound spec expects input '{name}' to have dimension <= {dim}")


def _check_known(name: str, shape: Dims, inputs: InputShapes) -> None:
    if name not in inputs:
        raise InvalidArgumentError(
            f"graph spec names the input '{name}', but the inputs are {', '.join(inputs) or 'none'}"
        )
    configured = inputs[name]
    if len(shape) != len(configured) or any(
        dim not in (-1, given) for given, dim in zip(shape, configured, strict=True)
    ):
        raise InvalidArgumentError(
            f"graph spec gives input '{name}' the shape {list(shape)}, but the configuration says {list(configured)}"
        )


def _key(graph: GraphShape) -> tuple[int, ...]:
    return (graph.rows, *(dim for shape in graph.shapes.values() for dim in shape))
