"""Attention over keys and values in blocks: what it is told of a step, and its memory.

A step is one row of tokens of several generations, without padding between them. Each layer puts the keys and values of
these tokens into its memory, and then lets each token see those before it of its own generation:

 1. Pieces of one token come first in the row, by the lengths of their generations. They are computed together, where
    these are about as long, and so many at a time that the copies of their blocks stay in the processor's cache: these
    are copied together, as whole blocks. Heads that have their keys in common are one query of several tokens, so that
    these are read once.
 2. A longer piece is computed by itself; if it begins its generation, with the keys and values that it has brought.

What a step needs to know for that is computed once, and not for each layer. What torch does with it is in `compiled`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ...generation.blocks import Copy
from ...generation.iterations import Move, Piece, Step, SwapOut
from ...generation.requests import Generation

_MOST_PADDING = 2
"""Pieces of one token are computed together if the longest generation is no longer than so many times the shortest."""

_MOST_COPIED_BYTES = 2 << 20
"""Of the keys and values of one layer, for pieces of one token that are computed together."""


class StepTensors(NamedTuple):
    """What torch is told of a step. A part of it is pieces that are computed together: all of one token, or one piece.

    Attributes:
        tokens, positions: int64 [1, tokens].
        drawn: int64, rows of the last tokens of pieces that draw, in the order in which the step has these.
        written: int64 [tokens], the place of each in memory.
        layout: int64 [parts, 3], on the host: pieces, tokens of each, and blocks of each; 0 blocks if all that is seen
            is in the step's row.
        blocks: int64, of the pieces in the order of the parts; what is beyond a generation's end is its first one.
    """

    tokens: Any
    positions: Any
    drawn: Any
    written: Any
    layout: Any
    blocks: Any

    @property
    def copied(self) -> int:
        """Most blocks of a part."""
        return max(pieces * blocks for pieces, _, blocks in self.layout.tolist())


def in_row(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces of a step in the order of its row: those of one token come first, the shorter generations before the
    longer ones."""
    return sorted(pieces, key=_place_in_row)


def _place_in_row(piece: Piece) -> tuple[bool, int]:
    alone = piece.end - piece.start > 1
    return alone, 0 if alone else piece.end


def step_tensors(torch: Any, row: Sequence[Piece], step: Step, memory: KeyValueMemory) -> StepTensors:
    """What torch is told of a step.

    Args:
        torch: the package.
        row: its pieces as they stand in its row.
    """
    size, device = memory.size, memory.device
    tokens: list[int] = []
    positions: list[int] = []
    written: list[int] = []
    ends: dict[Generation, int] = {}
    for piece in row:
        blocks = table_of(piece)
        tokens += step.tokens_of(piece, piece.start)
        positions += range(piece.start, piece.end)
        written += [blocks[at // size] * size + at % size for at in range(piece.start, piece.end)]
        ends[piece.generation] = len(tokens) - 1
    layout: list[tuple[int, int, int]] = []
    seen: list[int] = []
    for part in _parts(row, size, memory.most_copied):
        count = 0 if len(part) == 1 and not part[0].start else -(-part[-1].end // size)
        layout.append((len(part), part[0].end - part[0].start, count))
        for piece in part if count else ():
            own = table_of(piece)[: -(-piece.end // size)]
            seen += own + own[:1] * (count - len(own))

    def tensor(numbers: Sequence[Any]) -> Any:
        return torch.tensor(numbers, dtype=torch.int64, device=device)

    return StepTensors(
        tokens=tensor([tokens]),
        positions=tensor([positions]),
        drawn=tensor([ends[piece.generation] for piece in step.pieces if piece.draws]),
        written=tensor(written),
        layout=torch.tensor(layout),
        blocks=tensor(seen),
    )


def table_of(piece: Piece) -> list[int]:
    """The blocks of its generation."""
    assert piece.generation.table is not None, "it is running"
    return piece.generation.table.blocks


def _parts(row: Sequence[Piece], size: int, most_blocks: int) -> Iterator[Sequence[Piece]]:
    together: list[Piece] = []
    for piece in row:
        alone = piece.end - piece.start > 1
        padded = bool(together) and piece.end > _MOST_PADDING * together[0].end + size
        full = (len(together) + 1) * -(-piece.end // size) > most_blocks
        if together and (alone or padded or full):
            yield together
            together = []
        if alone:
            yield [piece]
        else:
            together.append(piece)
    if together:
        yield together


Memories = Callable[[int, Any, Any], tuple[Any, Any, Any, Any]]
"""For a layer, and keys and values of it [tokens, heads, width]: the memory of both, and room for copies of both."""


class KeyValueMemory:
    """The keys and values of all layers, in blocks, and those of generations that are swapped out, on the host.

    Args:
        torch: the package.
        blocks: of the device.
        size: tokens of a block.
        held: blocks of the host.
        scratch: further blocks of the device, which no generation has.

    Attributes:
        size, device: as given.
        scratch: the number of the first of these.
    """

    def __init__(self, torch: Any, blocks: int, size: int, held: int, device: Any, scratch: int = 0) -> None:
        self.size = size
        self.device = device
        self.scratch = blocks
        self._torch = torch
        self._blocks = blocks + scratch
        self._held_blocks = held
        self._layers: dict[int, tuple[Any, Any]] = {}
        self._held: dict[int, tuple[Any, Any]] = {}
        self._width = 0  # of a token's keys or values, heads and all: the most of any layer
        self._copies: list[Any] = []

    @property
    def token_bytes(self) -> int:
        """What a token takes, of all layers that have computed something."""
        return sum(half.nbytes // len(half) for both in self._layers.values() for half in both)

    @property
    def most_copied(self) -> int:
        """Blocks of pieces of one token that are computed together; one piece may have more."""
        token_bytes = max((half.nbytes // len(half) for both in self._layers.values() for half in both), default=1)
        return max(_MOST_COPIED_BYTES // (2 * self.size * token_bytes), 1)

    @property
    def layers(self) -> Sequence[int]:
        """Those that have computed something, in their order."""
        return sorted(self._layers)

    def of(self, layer: int) -> tuple[Any, Any]:
        """The keys and values of a layer that has computed something: [places, heads, width]."""
        return self._layers[layer]

    def places(self, blocks: int, layer: int, keys: Any, values: Any) -> tuple[Any, Any, Any, Any]:
        """See `Memories`; there is room for copies of so many blocks."""
        if layer not in self._layers:
            self._layers[layer] = self._made(self._blocks, keys, values, self.device)
            self._held[layer] = self._made(self._held_blocks, keys, values, "cpu")
            self._width = max(self._width, keys[0].numel(), values[0].numel())
        return *self._layers[layer], *self.copies(blocks)

    def copies(self, blocks: int) -> Sequence[Any]:
        """Room for copies of so many blocks of keys, and of values, of any layer. It is used again and again: memory
        that the system has just given out is slower to write to."""
        if not self._copies or len(self._copies[0]) < blocks * self.size * self._width:
            like, _ = next(iter(self._layers.values()))
            count = (1 << max(blocks - 1, 0).bit_length()) * self.size * self._width
            self._copies = [like.new_empty(count), like.new_empty(count)]
        return self._copies

    def move(self, moves: Sequence[Move]) -> None:
        """Carry out moves, one after the other."""
        for move in moves:
            for layer, memories in self._layers.items():
                for memory, held in zip(memories, self._held[layer], strict=True):
                    match move:
                        case Copy(source, target):
                            memory[self._block(target)] = memory[self._block(source)]
                        case SwapOut(block, place):
                            held[self._block(place)] = memory[self._block(block)].to(held.device)
                        case (place, block):
                            memory[self._block(block)] = held[self._block(place)].to(memory.device)

    def _block(self, number: int) -> slice:
        return slice(number * self.size, (number + 1) * self.size)

    def _made(self, blocks: int, keys: Any, values: Any, device: Any) -> tuple[Any, Any]:
        return tuple(
            self._torch.zeros((blocks * self.size, *each.shape[1:]), dtype=each.dtype, device=device)
            for each in (keys, values)
        )
