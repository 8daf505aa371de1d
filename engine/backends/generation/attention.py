"""Attention over keys and values in blocks: what a network's own code calls for each of its layers.

A step is one row of tokens of several generations, without padding between them. Each layer puts the keys and values of
these tokens into its memory, and then lets each token see those before it of its own generation:

 1. Pieces of one token come first in the row, by the lengths of their generations. They are computed together, where
    these are about as long: their blocks are copied together, as whole blocks. Heads that have their keys in common are
    one query of several tokens, so that these are read once.
 2. A longer piece is computed by itself; if it begins its generation, with the keys and values that it has brought.

What a step needs to know for that is computed once, and not for each layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...generation.blocks import Copy
from ...generation.iterations import Move, Piece, SwapOut
from ..hugging_face import check_attention

NAME = "trireme_blocks"
"""What transformers calls this kind of attention."""

_MOST_PADDING = 2
"""Pieces of one token are computed together if the longest generation is no longer than so many times the shortest."""


class _Part(NamedTuple):
    """Pieces that are computed together: all of one token, or one piece.

    Attributes:
        rows: of the step's row.
        tokens: of a piece.
        blocks: int64 [pieces * blocks of the longest], each piece's in their order; what is beyond a generation's end
            is its first one. None if all that is seen is in the step's row.
        at: int64 [pieces, tokens, 1], the place of a token in its generation.
    """

    rows: slice
    tokens: int
    blocks: Any
    at: Any


class StepView:
    """What attention has to know of a step.

    Args:
        torch: the package.
        pieces: of the step.

    Attributes:
        pieces: in the order of the step's row.
        tokens, positions: int64 [1, tokens].
        drawn: int64, rows of the last tokens of pieces that draw, in the order in which the step has these.
    """

    def __init__(self, torch: Any, memory: KeyValueMemory, pieces: Sequence[Piece]) -> None:
        self._torch = torch
        self._memory = memory
        self.pieces = sorted(pieces, key=_place_in_row)
        size, device = memory.size, memory.device
        tokens, positions, written, ends, row = [], [], [], {}, 0
        for piece in self.pieces:
            of = piece.generation
            assert of.table is not None, "it is running"
            at, blocks = np.arange(piece.start, piece.end), of.table.blocks
            tokens += of.tokens[piece.start : piece.end]
            positions.append(at)
            written.append(np.array(blocks[piece.start // size :])[at // size - piece.start // size] * size + at % size)
            row += piece.end - piece.start
            ends[of] = row - 1
        self.tokens = torch.tensor([tokens], device=device)
        self.positions = self._tensor(np.concatenate(positions))[None]
        self.drawn = torch.tensor([ends[piece.generation] for piece in pieces if piece.draws], dtype=torch.int64).to(
            device
        )
        self._written = self._tensor(np.concatenate(written))
        self._parts = list(self._parted())
        self._masks: dict[tuple[int, int | None], Any] = {}

    def attend(self, layer: int, query: Any, key: Any, value: Any, scaling: float | None, window: int | None) -> Any:
        """Attention of one layer.

        Args:
            query: [1, heads, tokens, width].
            key, value: [1, fewer heads, tokens, width].
            window: a token sees so many, itself included; None for all.

        Returns:
            [1, tokens, heads, width].
        """
        self._memory.write(layer, self._written, key[0].transpose(0, 1), value[0].transpose(0, 1))
        found = [
            self._attended(layer, number, query, key, value, scaling, window) for number in range(len(self._parts))
        ]
        return (found[0] if len(found) == 1 else self._torch.cat(found))[None]

    def _attended(
        self, layer: int, number: int, query: Any, key: Any, value: Any, scaling: float | None, window: int | None
    ) -> Any:
        """What the tokens of a part see: [tokens, heads, width]."""
        part, heads, width = self._parts[number], query.shape[1], query.shape[3]
        query = query[0, :, part.rows]
        if part.blocks is None:
            key, value = key[:, :, part.rows], value[:, :, part.rows]
        else:
            key, value = (each.transpose(1, 2) for each in self._memory.read(layer, part.blocks, part.at.shape[0]))
        mask = self._mask(number, window, key.shape[2], query.dtype)
        if part.tokens == 1:
            query = query.transpose(0, 1).reshape(-1, key.shape[1], heads // key.shape[1], width)
        else:
            query = query[None]
        attended = self._torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
        )
        return attended.reshape(-1, heads, value.shape[3]) if part.tokens == 1 else attended[0].transpose(0, 1)

    def _mask(self, number: int, window: int | None, context: int, dtype: Any) -> Any:
        """[pieces, 1, tokens, context]: 0 where a token sees another one, else less than any number."""
        mask = self._masks.get((number, window))
        if mask is None:
            at = self._parts[number].at
            seen = self._torch.arange(context, device=at.device)
            hidden = seen > at
            if window is not None:
                hidden |= seen <= at - window
            mask = self._torch.zeros(hidden.shape, dtype=dtype, device=at.device).masked_fill_(hidden, -np.inf)[:, None]
            self._masks[number, window] = mask
        return mask

    def _parted(self) -> Iterator[_Part]:
        together: list[Piece] = []
        row = 0
        for piece in self.pieces:
            alone = piece.end - piece.start > 1
            if together and (alone or piece.end > _MOST_PADDING * together[0].end + self._memory.size):
                yield self._part(row - len(together), together)
                together = []
            row += piece.end - piece.start
            if alone:
                yield self._part(row - piece.end + piece.start, [piece])
            else:
                together.append(piece)
        if together:
            yield self._part(row - len(together), together)

    def _part(self, row: int, pieces: Sequence[Piece]) -> _Part:
        tokens, longest = pieces[0].end - pieces[0].start, pieces[-1].end
        at = self._tensor(np.array([np.arange(piece.start, piece.end) for piece in pieces]))[..., None]
        rows = slice(row, row + len(pieces) * tokens)
        if len(pieces) == 1 and not pieces[0].start:
            return _Part(rows, tokens, None, at)
        count = -(-longest // self._memory.size)
        blocks = np.zeros((len(pieces), count), np.int64)
        for number, piece in enumerate(pieces):
            assert piece.generation.table is not None, "it is running"
            own = piece.generation.table.blocks[: -(-piece.end // self._memory.size)]
            blocks[number] = own[0]
            blocks[number, : len(own)] = own
        return _Part(rows, tokens, self._tensor(blocks.ravel()), at)

    def _tensor(self, numbers: np.ndarray) -> Any:
        return self._torch.from_numpy(numbers).to(self._memory.device)


def _place_in_row(piece: Piece) -> tuple[bool, int]:
    """Pieces of one token come first, the shorter generations before the longer ones."""
    alone = piece.end - piece.start > 1
    return alone, 0 if alone else piece.end


class KeyValueMemory:
    """The keys and values of all layers, in blocks, and those of generations that are swapped out, on the host.

    Args:
        torch: the package.
        blocks: of the device.
        size: tokens of a block.
        held: blocks of the host.

    Attributes:
        size, device: as given.
    """

    def __init__(self, torch: Any, blocks: int, size: int, held: int, device: Any) -> None:
        self.size = size
        self.device = device
        self._torch = torch
        self._blocks = blocks
        self._held_blocks = held
        self._layers: dict[int, tuple[Any, Any]] = {}
        self._held: dict[int, tuple[Any, Any]] = {}
        self._copies: dict[tuple[int, int], Any] = {}

    @property
    def token_bytes(self) -> int:
        """What a token takes, of all layers that have computed something."""
        return sum(half[0].nbytes for both in self._layers.values() for half in both)

    def write(self, layer: int, places: Any, keys: Any, values: Any) -> None:
        """Put the keys and values of tokens where they belong.

        Args:
            places: int64 [tokens].
            keys, values: [tokens, heads, width].
        """
        if layer not in self._layers:
            self._layers[layer] = self._made(self._blocks, keys, values, self.device)
            self._held[layer] = self._made(self._held_blocks, keys, values, "cpu")
        for memory, new in zip(self._layers[layer], (keys, values), strict=True):
            memory.index_copy_(0, places, new)

    def read(self, layer: int, blocks: Any, count: int) -> tuple[Any, Any]:
        """A copy of the keys and values of so many generations, until the next one is made.

        Args:
            blocks: int64 [count * blocks of each].

        Returns:
            Keys and values [count, places, heads, width].
        """
        found = []
        for number, memory in enumerate(self._layers[layer]):
            whole = memory.view(self._blocks, -1)
            copy = self._copies.get((number, whole.shape[1]))
            if copy is None or len(copy) < len(blocks):
                # It is used again: memory that the system has just given out is slower to write to.
                copy = whole.new_empty((1 << (len(blocks) - 1).bit_length(), whole.shape[1]))
                self._copies[number, whole.shape[1]] = copy
            self._torch.index_select(whole, 0, blocks, out=copy[: len(blocks)])
            found.append(copy[: len(blocks)].view(count, -1, *memory.shape[1:]))
        return found[0], found[1]

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


def attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float | None = None, **rest: Any
) -> tuple[Any, None]:
    """What transformers calls for each layer; see `AttentionInterface` there.

    Raises:
        UnsupportedError: the network has something in its attention that is not computed here.
    """
    del attention_mask
    check_attention(rest)
    step: StepView = rest["step"]
    return step.attend(module.layer_idx, query, key, value, scaling, rest.get("sliding_window")), None
