"""Attention in a row of several texts: what a network's own code calls for each of its layers.

A step is one row of tokens, text after text, without padding between them. Each token sees those of its own text. Texts
of one length stand side by side and are computed together.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...hugging_face import check_attention

NAME = "trireme_texts"
"""What transformers calls this kind of attention."""


class TokenRow(NamedTuple):
    """A text in tokens, or a pair of texts.

    Attributes:
        types: for each token, which of a pair it belongs to; empty if all belong to the first.
    """

    ids: Sequence[int]
    types: Sequence[int] = ()


class _Group(NamedTuple):
    """Texts of one length, side by side: where they begin, how many there are, and their length."""

    start: int
    texts: int
    length: int


class PackedTexts:
    """The texts of a step as one row.

    Args:
        torch: the package.
        first: the position of a text's first token, as the network counts.

    Attributes:
        tokens, types, positions: int64 [1, tokens].
        places: int64 [texts], where in the order of the row the texts are that were given.
        starts, lengths: int64 [texts], in the order of the row.
    """

    def __init__(self, torch: Any, texts: Sequence[TokenRow], device: Any, first: int = 0) -> None:
        self._torch = torch
        order = sorted(range(len(texts)), key=lambda number: len(texts[number].ids))
        lengths = [len(texts[number].ids) for number in order]
        starts = list(itertools.accumulate(lengths, initial=0))
        self._groups: list[_Group] = []
        at = 0
        for length, same in itertools.groupby(lengths):
            count = len(list(same))
            self._groups.append(_Group(at, count, length))
            at += count * length

        def row(numbers: Sequence[int]) -> Any:
            return torch.tensor(numbers, dtype=torch.int64, device=device)

        rows = [texts[number] for number in order]
        self.tokens = row([token for each in rows for token in each.ids])[None]
        self.types = row([kind for each in rows for kind in each.types or [0] * len(each.ids)])[None]
        self.positions = row([first + at for length in lengths for at in range(length)])[None]
        self.places = row(sorted(range(len(order)), key=order.__getitem__))
        self.starts, self.lengths = row(starts[:-1]), row(lengths)
        self._masks: dict[tuple[int, int, bool], Any] = {}

    def attend(self, query: Any, key: Any, value: Any, scaling: float | None, window: int | None, causal: bool) -> Any:
        """Attention of one layer.

        Args:
            query: [1, heads, tokens, width].
            key, value: [1, heads or fewer, tokens, width].
            window: a token sees those that are less than so many away; None for all.
            causal: it sees only those before it, and itself.

        Returns:
            [1, tokens, heads, width].
        """
        _, heads, tokens, _ = query.shape
        found = self._torch.empty((tokens, heads, value.shape[-1]), dtype=query.dtype, device=query.device)
        for group in self._groups:
            start, count, length = group
            end = start + count * length
            mask = None if window is None or window >= length else self._mask(length, window, causal)
            result = self._torch.nn.functional.scaled_dot_product_attention(
                *(each[0, :, start:end].unflatten(1, (count, length)).transpose(0, 1) for each in (query, key, value)),
                attn_mask=mask,
                is_causal=causal and mask is None,
                scale=scaling,
                enable_gqa=heads != key.shape[1],
            )
            found[start:end] = result.transpose(1, 2).flatten(0, 1)
        return found[None]

    def _mask(self, length: int, window: int, causal: bool) -> Any:
        """Bool [length, length]: which token sees which."""
        known = (length, window, causal)
        if known not in self._masks:
            at = self._torch.arange(length, device=self.tokens.device)
            away = at[:, None] - at[None]
            self._masks[known] = (away < window) & (away >= 0 if causal else away > -window)
        return self._masks[known]

    def pool(self, states: Any, poolings: Sequence[str]) -> Any:
        """A vector of each text, [texts, width], in the order of the row.

        Args:
            states: of the tokens, [tokens, width].
            poolings: see `layout.POOLINGS`; several stand one after the other in the vector.
        """
        torch, found = self._torch, []
        for pooling in poolings:
            match pooling:
                case "cls":
                    found.append(states[self.starts])
                case "last":
                    found.append(states[self.starts + self.lengths - 1])
                case _:
                    found.append(torch.segment_reduce(states, pooling, lengths=self.lengths, axis=0))
        return torch.cat(found, dim=-1)


def packed_attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float | None = None, **rest: Any
) -> tuple[Any, None]:
    """What transformers calls for each layer; see `AttentionInterface` there.

    Raises:
        UnsupportedError: the network has something in its attention that is not computed here.
    """
    del attention_mask
    check_attention(rest)
    texts: PackedTexts = rest["texts"]
    causal = bool(rest.get("is_causal", getattr(module, "is_causal", False)))
    return texts.attend(query, key, value, scaling, rest.get("sliding_window"), causal), None
