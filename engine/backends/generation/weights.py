"""How the weights of a network lie in memory.

Rules:
 1. Those of a linear layer lie as they are multiplied with: one input after the other. Otherwise they are rearranged in
    each step with more than a few tokens. What an embedding is read from as well stays as it is.
 2. Layers that are given the same are one product: those that make queries, keys and values, and the two that a gated
    network begins with. Their weights lie side by side, and each layer has its part of what comes of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""What transformers calls layers of one module that are given the same."""


def lay_out(torch: Any, model: Any) -> None:
    """Lay the weights of a network out so."""
    embeddings = {id(each.weight) for each in model.modules() if isinstance(each, torch.nn.Embedding)}
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and id(module.weight) not in embeddings:
            module.weight.data = module.weight.data.t().contiguous().t()
    for module in model.modules():
        for names in _TOGETHER:
            layers = [getattr(module, name, None) for name in names]
            if all(type(layer) is torch.nn.Linear for layer in layers) and _are_alike(layers):
                _Product(torch, layers)


def _are_alike(layers: Sequence[Any]) -> bool:
    return len({(layer.in_features, layer.bias is None, layer.weight.dtype) for layer in layers}) == 1


class _Product:
    """Linear layers of one input, computed together when the first one is asked for its part."""

    def __init__(self, torch: Any, layers: Sequence[Any]) -> None:
        self._linear = torch.nn.functional.linear
        self._sizes = [layer.out_features for layer in layers]
        self._weight = torch.cat([layer.weight.detach().t() for layer in layers], 1).t()
        self._bias = None if layers[0].bias is None else torch.cat([layer.bias.detach() for layer in layers])
        self._given: Any = None
        self._made: Sequence[Any] = ()
        for number, (layer, weight) in enumerate(zip(layers, self._weight.split(self._sizes), strict=True)):
            layer.weight.data = weight
            layer.forward = partial(self._part, number)

    def _part(self, number: int, given: Any) -> Any:
        if given is not self._given:
            self._given = given
            self._made = self._linear(given, self._weight, self._bias).split(self._sizes, -1)
        made = self._made[number]
        if number == len(self._sizes) - 1:
            self._given, self._made = None, ()
        return made
