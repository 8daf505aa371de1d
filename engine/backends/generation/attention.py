"""Attention over keys and values in blocks: what a network's own code calls for each of its layers.

A step is one row of tokens of several generations, without padding between them. Each layer puts the keys and values of
these tokens into its memory, and then lets each token see those before it of its own generation. Pieces of one token
are computed together, where their generations are about as long; a longer piece by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ...errors import UnsupportedError
from ...generation.blocks import Copy
from ...generation.iterations import Move, Piece, SwapOut

NAME = "trireme_blocks"
"""What transformers calls this kind of attention."""

_MOST_PADDING = 2
"""Pieces of one token are computed together if the longest generation is no longer than so many times the shortest."""

_UNSUPPORTED = ("softcap", "s_aux", "position_bias")
"""What some networks add to attention, and is not computed here."""


class _Part(NamedTuple):
    """Pieces that are computed together.

    Attributes:
        rows: int64 [pieces, tokens], of the step's row.
        places: int64 [pieces, context], in the memory; what is beyond a generation's end is its first place.
        at: int64 [pieces, tokens, 1], the place of a token in its generation.
    """

    rows: Any
    places: Any
    at: Any


class StepView:
    """What attention has to know of a step.

    Args:
        torch: the package.
        pieces: in the order of the step's row.

    Attributes:
        tokens, positions: int64 [1, tokens].
        drawn: int64, rows of the last tokens of pieces that draw.
    """

    def __init__(self, torch: Any, memory: KeyValueMemory, pieces: Sequence[Piece]) -> None:
        self._torch = torch
        self._memory = memory
        size, device = memory.size, memory.device
        tokens, positions, ends, self._places = [], [], [], []
        for piece in pieces:
            of = piece.generation
            assert of.table is not None, "it is running"
            tokens += of.tokens[piece.start : piece.end]
            positions += range(piece.start, piece.end)
            if piece.draws:
                ends.append(len(tokens) - 1)
            self._places.append([block * size + at for block in of.table.blocks for at in range(size)][: piece.end])
        self.tokens = torch.tensor([tokens], device=device)
        self.positions = torch.tensor([positions], device=device)
        self.drawn = torch.tensor(ends, device=device, dtype=torch.int64)
        written = [place for piece, places in zip(pieces, self._places, strict=True) for place in places[piece.start :]]
        self._written = torch.tensor(written, device=device)
        self._parts = list(self._parted(pieces))
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
        keys, values = self._memory.write(layer, self._written, key[0].transpose(0, 1), value[0].transpose(0, 1))
        scaled_dot_product = self._torch.nn.functional.scaled_dot_product_attention
        queries = query[0].transpose(0, 1)
        found = self._torch.empty((*queries.shape[:-1], value.shape[-1]), dtype=query.dtype, device=query.device)
        for number, part in enumerate(self._parts):
            result = scaled_dot_product(
                queries[part.rows].transpose(1, 2),
                keys[part.places].transpose(1, 2),
                values[part.places].transpose(1, 2),
                attn_mask=self._mask(number, window),
                scale=scaling,
                enable_gqa=query.shape[1] != key.shape[1],
            )
            found[part.rows] = result.transpose(1, 2)
        return found[None]

    def _mask(self, number: int, window: int | None) -> Any:
        """Bool [pieces, 1, tokens, context]: which token sees which."""
        mask = self._masks.get((number, window))
        if mask is None:
            part = self._parts[number]
            seen = self._torch.arange(part.places.shape[1], device=part.places.device)
            mask = seen <= part.at
            if window is not None:
                mask &= seen > part.at - window
            mask = self._masks[number, window] = mask[:, None]
        return mask

    def _parted(self, pieces: Sequence[Piece]) -> Iterator[_Part]:
        begins, single, row = [], [], 0
        for number, piece in enumerate(pieces):
            begins.append(row)
            row += piece.end - piece.start
            if piece.end - piece.start == 1:
                single.append(number)
            else:
                yield self._part(pieces, begins, [number])
        single.sort(key=lambda number: pieces[number].end)
        together: list[int] = []
        for number in single:
            if together and pieces[number].end > _MOST_PADDING * pieces[together[0]].end + self._memory.size:
                yield self._part(pieces, begins, together)
                together = []
            together.append(number)
        if together:
            yield self._part(pieces, begins, together)

    def _part(self, pieces: Sequence[Piece], begins: Sequence[int], numbers: Sequence[int]) -> _Part:
        torch, device = self._torch, self._memory.device
        longest = max(pieces[number].end for number in numbers)
        rows, places, at = [], [], []
        for number in numbers:
            piece, own = pieces[number], self._places[number]
            rows.append(range(begins[number], begins[number] + piece.end - piece.start))
            places.append(own + own[:1] * (longest - len(own)))
            at.append([[position] for position in range(piece.start, piece.end)])
        return _Part(*(torch.tensor([list(each) for each in those], device=device) for those in (rows, places, at)))


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

    @property
    def token_bytes(self) -> int:
        """What a token takes, of all layers that have computed something."""
        return sum(half[0].nbytes for both in self._layers.values() for half in both)

    def write(self, layer: int, places: Any, keys: Any, values: Any) -> tuple[Any, Any]:
        """Put the keys and values of tokens where they belong; all that the layer has.

        Args:
            places: int64 [tokens].
            keys, values: [tokens, heads, width].

        Returns:
            Keys and values [places, heads, width].
        """
        if layer not in self._layers:
            self._layers[layer] = self._made(self._blocks, keys, values, self.device)
            self._held[layer] = self._made(self._held_blocks, keys, values, "cpu")
        for memory, new in zip(self._layers[layer], (keys, values), strict=True):
            memory[places] = new
        return self._layers[layer]

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
    unknown = [name for name in _UNSUPPORTED if rest.get(name) is not None]
    if unknown:
        raise UnsupportedError(f"the network's attention has '{unknown[0]}', which the backend 'generation' lacks")
    step: StepView = rest["step"]
    return step.attend(module.layer_idx, query, key, value, scaling, rest.get("sliding_window")), None


def no_mask(**_arguments: Any) -> None:
    """What transformers calls for the mask of a batch: there is none, as each step has its own (`StepView`)."""
