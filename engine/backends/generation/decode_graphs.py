"""Steps of one token of each text on a GPU: in fixed shapes, which are captured as CUDA graphs.

A GPU is faster with such a step than Python is with asking for it. So all of it is one graph, which is launched as a
whole; and nothing waits for the GPU before the logits are copied to the host.

Rules:
 1. A graph has fixed shapes. So a step has as many rows as the next power of two, or as many as may run if that is
    less, and as many blocks for each row as the next power of two, 8 at least, or as many as the network's context has.
 2. Rows without a text have a block that no text has (`KeyValueMemory.scratch`): there they write, and nothing else do
    they read. A row's blocks beyond its text's end are that text's first one; what is there is hidden.
 3. Attention copies the blocks of all rows together, by their table, and is one operation of torch for all rows. Steps
    whose copies would take more than 1 GiB are not computed here.
 4. The first step of some shapes is computed by the network's code, and then captured; later ones are launched. The
    latest 64 graphs are kept. They are launched one after the other, so they share their memory, and what goes in and
    comes out is in the same place for all of them.
 5. Only networks are captured whose operations do not depend on what a step contains (`compiled.steps_alike`). If a
    capture fails, the log says so, and there is no other: steps of other shapes are computed by the network's code.

Torch has attention that reads blocks where they are (`torch.nn.attention.varlen`, with a block table). It is not used:
it takes half precision only, and blocks of 256 tokens with FlashAttention 2, and it needs a GPU, so it could not be
compared with anything yet. Flexible attention (`flex_attention`) is compiled when it is first used, which takes seconds
and a compiler that has to be there.

This module imports torch; it is imported when a network on a GPU is made.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ...errors import TriremeError
from ...generation.iterations import Piece, Step
from ...gpu.device import Graph, SickDeviceError
from ...gpu.torch_device import TorchDevice, TorchStream
from .attention import KeyValueMemory, table_of

_log = logging.getLogger(__name__)

_LEAST_BLOCKS = 8
_MOST_GRAPHS = 64
_MOST_COPIED_BYTES = 1 << 30
"""Of the keys and values of one layer."""

_TABLES = 3
"""Numbers of a row that come before its blocks: its token, its position, and where that is written."""


class DecodeShape(NamedTuple):
    """Texts of a step, and blocks of each, as a graph has them."""

    rows: int
    blocks: int

    @property
    def numbers(self) -> int:
        """That are given to it."""
        return self.rows * (_TABLES + self.blocks)


def decode_shape(rows: int, blocks: int, most: DecodeShape) -> DecodeShape:
    """The shape for so many texts, the longest of which has so many blocks (rule 1)."""
    return DecodeShape(min(_power(rows), most.rows), min(max(_power(blocks), _LEAST_BLOCKS), most.blocks))


def _power(count: int) -> int:
    """The power of two that is no less."""
    return 1 << max(count - 1, 0).bit_length()


class _FixedView:
    """What attention has to know of a step; see `compiled.StepView`.

    Args:
        given: int64, the tokens of all rows, their positions, where these are written, and the blocks of each row.
        places: int64, 0 to the number of places that a row may see.
    """

    def __init__(self, memory: KeyValueMemory, shape: DecodeShape, given: Tensor, places: Tensor) -> None:
        rows = shape.rows
        self.tokens, self.positions, self._written = given[: _TABLES * rows].view(_TABLES, rows).unbind()
        self._blocks = given[_TABLES * rows :]
        self._memory = memory
        self._places = places[: shape.blocks * memory.size]
        self._masks: dict[int, Tensor] = {}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int
    ) -> Tensor:
        """Attention of one layer; see `compiled.attend`."""
        rows, heads, fewer = query.size(2), query.size(1), key.size(1)
        keys, values = self._memory.of(layer)
        keys.index_copy_(0, self._written, key[0].transpose(0, 1))
        values.index_copy_(0, self._written, value[0].transpose(0, 1))
        asking = query[0].transpose(0, 1).reshape(rows, fewer, heads // fewer, query.size(3))
        found = scaled_dot_product_attention(
            asking, self._copied(keys, rows), self._copied(values, rows), attn_mask=self._mask(window), scale=scaling
        )
        return found.reshape(1, rows, heads, value.size(3))

    def _copied(self, memory: Tensor, rows: int) -> Tensor:
        """[rows, heads, places, width]."""
        whole = memory.view(memory.size(0) // self._memory.size, -1)
        copied = whole.index_select(0, self._blocks)
        return copied.view(rows, -1, memory.size(1), memory.size(2)).transpose(1, 2)

    def _mask(self, window: int) -> Tensor:
        """Which places each row sees: bool [rows, 1, 1, places]."""
        if window not in self._masks:
            at = self.positions[:, None]
            seen = self._places <= at
            if window > 0:
                seen = seen & (self._places > at - window)
            self._masks[window] = seen[:, None, None]
        return self._masks[window]


@dataclass(eq=False)
class _Captured:
    graph: Graph


class DecodeGraphs:
    """Steps of one token of each text. Used by one thread at a time, with `stream` as torch's current one.

    Args:
        name: of the instance, for the log.
        model: the network, on the device.
        memory: whose layers have all computed something.
        stream: on which all steps of the network are computed.
        most: texts that a step may have, and blocks that one of them may have.
        vocabulary: of the network.
        captures: shapes are captured.

    Attributes:
        launched: how many steps were graphs.

    Raises:
        OutOfDeviceMemoryError, SickDeviceError: see `Device`.
    """

    def __init__(
        self,
        name: str,
        model: Any,
        memory: KeyValueMemory,
        gpu: TorchDevice,
        stream: TorchStream,
        most: DecodeShape,
        vocabulary: int,
        *,
        captures: bool,
    ) -> None:
        self.launched = 0
        self._name = name
        self._model = model
        self._memory = memory
        self._gpu = gpu
        self._stream = stream
        self._most = most
        self._captures = captures
        self._graphs: OrderedDict[DecodeShape, _Captured] = OrderedDict()
        self._block_bytes = memory.size * max(
            sum(half.nbytes // len(half) for half in memory.of(layer)) for layer in memory.layers
        )
        self._given = gpu.empty((most.numbers,), np.dtype(np.int64))
        self._places = self._uploaded(np.arange(most.blocks * memory.size))
        self._no_mask = self._uploaded(np.zeros((1, 1, 1, 1), np.int64))
        self._logits = gpu.empty((most.rows, vocabulary), np.dtype(np.float32))

    def _uploaded(self, numbers: np.ndarray) -> Any:
        host = self._gpu.pinned(numbers.shape, numbers.dtype)
        host[:] = numbers
        array = self._stream.upload(host)
        self._stream.drain()  # until when `host` has to be there
        return array

    @property
    def captured(self) -> Sequence[DecodeShape]:
        """What there are graphs for, the latest last."""
        return list(self._graphs)

    def shape_of(self, step: Step) -> DecodeShape | None:
        """The shape in which a step is computed here; None if it is not."""
        pieces = step.pieces
        if not pieces or len(pieces) > self._most.rows or any(piece.end - piece.start > 1 for piece in pieces):
            return None
        blocks = max(-(-piece.end // self._memory.size) for piece in pieces)
        shape = decode_shape(len(pieces), blocks, self._most)
        fits = blocks <= shape.blocks and shape.rows * shape.blocks * self._block_bytes <= _MOST_COPIED_BYTES
        return shape if fits else None

    def run(self, step: Step, shape: DecodeShape) -> np.ndarray:
        """Carry out a step, whose memory has moved.

        Returns:
            Logits, float32 [pieces that draw, vocabulary].

        Raises:
            RuntimeError: what torch raises.
        """
        host = self._gpu.pinned((shape.numbers,), np.dtype(np.int64))
        self._fill(host, step, shape)
        given = self._stream.upload(host)
        self._stream.copy(given, self._given[: shape.numbers])
        captured = self._graphs.get(shape)
        if captured is None:
            self._compute(shape)
        else:
            captured.graph.launch(self._stream)
            self._graphs.move_to_end(shape)
            self.launched += 1
        logits = self._stream.download(self._logits[: len(step.pieces)])
        self._stream.drain()
        if captured is None and self._captures:
            self._capture(shape)
        draws = [piece.draws for piece in step.pieces]
        return logits if all(draws) else logits[draws]

    def _fill(self, host: np.ndarray, step: Step, shape: DecodeShape) -> None:
        """What a step is told (rule 2)."""
        rows, size, scratch = shape.rows, self._memory.size, self._memory.scratch
        tokens, positions, written = host[: _TABLES * rows].reshape(_TABLES, rows)
        tables = host[_TABLES * rows :].reshape(rows, shape.blocks)
        tokens[:] = positions[:] = 0
        written[:] = scratch * size
        tables[:] = scratch
        for row, piece in enumerate(step.pieces):
            blocks = _blocks(piece, size)
            (tokens[row],) = step.tokens_of(piece, piece.start)
            positions[row] = piece.start
            written[row] = blocks[-1] * size + piece.start % size
            tables[row, : len(blocks)] = blocks
            tables[row, len(blocks) :] = blocks[0]

    def _compute(self, shape: DecodeShape) -> None:
        """Enqueue a step by the network's code."""
        view = _FixedView(self._memory, shape, self._given[: shape.numbers], self._places)
        answer = self._model(
            input_ids=view.tokens[None],
            position_ids=view.positions[None],
            attention_mask=self._no_mask,  # without one, transformers would look for texts in the positions
            use_cache=False,
            step=view,
        )
        self._logits[: shape.rows].copy_(answer.logits[0])

    def _capture(self, shape: DecodeShape) -> None:
        """Rules 4 and 5."""
        while len(self._graphs) >= _MOST_GRAPHS:
            self._graphs.popitem(last=False)
        try:
            self._graphs[shape] = self._gpu.load(partial(self._captured_graph, shape))
        except SickDeviceError:
            raise
        except TriremeError as error:
            self._captures = False
            _log.warning(
                "instance '%s': no CUDA graph for %d texts of up to %d tokens, nor any further ones: %s",
                self._name,
                shape.rows,
                shape.blocks * self._memory.size,
                error,
            )

    def _captured_graph(self, shape: DecodeShape) -> _Captured:
        return _Captured(self._gpu.capture(self._stream, partial(self._compute, shape)))


def _blocks(piece: Piece, size: int) -> Sequence[int]:
    """Those of a piece's generation up to its end."""
    return table_of(piece)[: -(-piece.end // size)]
