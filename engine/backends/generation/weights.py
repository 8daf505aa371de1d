"""How the weights of a network's linear layers lie in memory, and how they are multiplied with.

Rules:
 1. They lie as they are multiplied with: one input after the other. Otherwise they are rearranged in each step with
    more than a few tokens. What an embedding is read from as well stays as it is.
 2. Layers that are given the same are one product: those that make queries, keys and values, and the two that a gated
    network begins with. Their weights lie side by side, and each layer has its part of what comes of them.
 3. With a few rows even these are rearranged: torch reads them once, writes them and reads them again. So they may be
    kept a second time (`pack`), as oneDNN multiplies with a few rows. It takes longer than the first way with one row,
    or with many.
 4. All weights of a network lie in one stretch of memory, for which the system is asked for its large pages. With the
    usual ones a core that reads all weights in each step spends a tenth of that time on looking up where they are.

This module imports torch; it is imported when a network is made.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Optional

import torch
from torch import Tensor
from torch.nn.functional import linear

from .compiling import compiled

_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""What transformers calls layers of one module that are given the same."""

_MOST_PACKED_BYTES = 1 << 30
_ALIGNED_BYTES = 64


@compiled
def product(given: Tensor, weights: Tensor, packed: Optional[Tensor], bias: Optional[Tensor]) -> Tensor:  # noqa: UP045
    """What linear layers make of their input (rule 3).

    Args:
        given: [..., inputs].
        weights: [outputs, inputs].
        packed: the same, as oneDNN has them; None if they are not kept so.

    Returns:
        [..., outputs].
    """
    if packed is not None:
        rows = given.numel() // given.size(-1)
        if 1 < rows <= 40:
            return torch.ops.mkldnn._linear_pointwise(given, packed, bias, "none", [], "")
    return linear(given, weights, bias)


class LinearWeights:
    """Those of the linear layers of a network on a CPU, laid out so.

    Args:
        model: the network. Its layers have these weights from then on, and are computed with them.
    """

    def __init__(self, model: Any) -> None:
        embeddings = {id(each.weight) for each in model.modules() if isinstance(each, torch.nn.Embedding)}
        layers = [each for each in model.modules() if type(each) is torch.nn.Linear]
        layers = [layer for layer in layers if id(layer.weight) not in embeddings]
        groups = [group for group in _groups(model) if all(layer in layers for layer in group)]
        together = {layer for group in groups for layer in group}
        alone = [[layer] for layer in layers if layer not in together]
        room = _Room(sum(each.nbytes + _ALIGNED_BYTES for each in model.parameters()))
        self._products = [_Product(group, room) for group in (*groups, *alone)]
        multiplied = {layer.weight for layer in layers}
        for parameter in model.parameters():
            if parameter not in multiplied:
                parameter.data = room.tensor(parameter.data)

    def pack(self) -> Sequence[Tensor]:
        """Keep them a second time (rule 3), if they are of float32 and take no more than 1 GiB; what is kept."""
        if sum(each.packable_bytes for each in self._products) > _MOST_PACKED_BYTES:
            return ()
        return [packed for each in self._products if (packed := each.pack()) is not None]


def _groups(model: Any) -> Iterator[Sequence[Any]]:
    for module in model.modules():
        for names in _TOGETHER:
            layers = [getattr(module, name, None) for name in names]
            alike = {layer and (layer.in_features, layer.bias is None, layer.weight.dtype) for layer in layers}
            if None not in layers and len(alike) == 1:
                yield layers


class _Room:
    """Memory for the weights of a network (rule 4)."""

    def __init__(self, nbytes: int) -> None:
        pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(AttributeError, OSError):  # a system that has none
            pages.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = torch.frombuffer(pages, dtype=torch.uint8)
        self._used = 0

    def tensor(self, of: Tensor) -> Tensor:
        """The same numbers in this memory, one row after the other."""
        made = self._bytes[self._used : self._used + of.nbytes].view(of.dtype).view(of.shape)
        self._used += -(-of.nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
        return made.copy_(of)


class _Product:
    """Linear layers of one input, computed together when the first one is asked for its part."""

    def __init__(self, layers: Sequence[Any], room: _Room) -> None:
        self._sizes = [layer.out_features for layer in layers]
        self._weights = room.tensor(torch.cat([layer.weight.detach() for layer in layers]).t()).t()
        self._bias = None if layers[0].bias is None else torch.cat([layer.bias.detach() for layer in layers])
        self._packed: Tensor | None = None
        self._given: Tensor | None = None
        self._made: Sequence[Tensor] = ()
        for number, (layer, weights) in enumerate(zip(layers, self._weights.split(self._sizes), strict=True)):
            layer.weight.data = weights
            layer.forward = partial(self._part, number)

    @property
    def packable_bytes(self) -> int:
        return self._weights.nbytes if self._weights.dtype is torch.float32 else 0

    def pack(self) -> Tensor | None:
        if self.packable_bytes and torch.backends.mkldnn.is_available():
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self._weights.contiguous(), 8)
        return self._packed

    def _part(self, number: int, given: Tensor) -> Tensor:
        if len(self._sizes) == 1:
            return product(given, self._weights, self._packed, self._bias)
        if given is not self._given:
            self._given = given
            self._made = product(given, self._weights, self._packed, self._bias).split(self._sizes, -1)
        made = self._made[number]
        if number == len(self._sizes) - 1:
            self._given, self._made = None, ()
        return made
