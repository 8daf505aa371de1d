"""What torch carries out of a step without Python: attention, and whole steps of networks that are known.

A step of few tokens takes torch little time for each operation, and Python as much again to ask for it; and with each
one the thread gives up the interpreter's lock and has to get it back from the event loop. So attention is compiled by
torch (TorchScript), and the code that `transformers` has for a network is followed once, for one step: which operations
it asks for is carried out for all others. That is right only if these do not depend on what a step contains. It is so
for the architectures below, whose texts are compared with those of transformers; others are computed by their own code
each time.

This module imports torch; it is imported when a network is made.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, List, Optional  # noqa: UP035 - what TorchScript reads

import torch
from torch import Tensor
from torch.jit._fuser import optimized_execution
from torch.nn.functional import scaled_dot_product_attention

from ..hugging_face import check_attention
from .attention import KeyValueMemory, Memories, StepTensors
from .compiling import COMPILES, compiled

ATTENTION = "trireme_blocks"
"""What transformers calls this kind of attention."""

_ARCHITECTURES = frozenset({"gpt2", "llama", "mistral", "qwen2", "qwen3"})
_PLAIN_ROTATIONS = frozenset({"default", "linear", "llama3", "yarn"})
"""Ways to turn queries and keys that do not depend on how long a text is."""


_HALVES = (
    """
    graph(%of, %dimension, %by : Tensor):
        %size : int = aten::size(%of, %dimension)
        %tensor : Tensor = prim::NumToTensor(%size)
        %part : Tensor = aten::floor_divide(%tensor, %by)
        %found : int = aten::Int(%part)
        return (%found)
    """,
    """
    graph(%of, %dimension, %by : Tensor):
        %size : int = aten::size(%of, %dimension)
        %number : int = aten::Int(%by)
        %found : int = aten::floordiv(%size, %number)
        return (%found)
    """,
)
"""A size that a network's code divides is followed as a tensor is. What to have in its place: the same with integers,
which takes less time."""


@compiled
def masks(layout: Tensor, positions: Tensor, like: Tensor, size: int, window: int) -> Tensor:
    """Which tokens those of a step see.

    Args:
        layout: see `StepTensors`; as for `positions`.
        like: has the type and the device of the answer.
        size: tokens of a block.
        window: a token sees so many, itself included; 0 for all.

    Returns:
        For each part [pieces, tokens, context], one after the other in one row: 0 where a token sees another one, else
        less than any number.
    """
    found: List[Tensor] = []  # noqa: UP006
    parts: List[List[int]] = layout.tolist()  # noqa: UP006
    row = 0
    for part in parts:
        pieces, tokens, blocks = part[0], part[1], part[2]
        at = positions[0, row : row + pieces * tokens].view(-1, 1)
        seen = torch.arange(blocks * size if blocks > 0 else tokens, device=at.device)
        hidden = seen > at
        if window > 0:
            hidden = hidden | (seen <= at - window)
        mask = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device)
        found.append(mask.masked_fill_(hidden, -float("inf")).flatten())
        row += pieces * tokens
    return torch.cat(found)


@compiled
def gathered(memory: Tensor, copy: Tensor, blocks: Tensor, pieces: int, size: int) -> Tensor:
    """A copy of the keys, or values, of so many generations, which lasts until the next one: [pieces, heads, places,
    width].

    Args:
        memory: [places, heads, width].
        copy: where the copy goes.
        blocks: int64 [pieces * blocks of each].
    """
    whole = memory.view(memory.size(0) // size, -1)
    made = copy[: blocks.size(0) * whole.size(1)].view(blocks.size(0), whole.size(1))
    torch.index_select(whole, 0, blocks, out=made)
    return made.view(pieces, -1, memory.size(1), memory.size(2)).transpose(1, 2)


@compiled
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keys: Tensor,
    values: Tensor,
    key_copy: Tensor,
    value_copy: Tensor,
    written: Tensor,
    layout: Tensor,
    blocks: Tensor,
    mask: Tensor,
    size: int,
    scaling: Optional[float],  # noqa: UP045
) -> Tensor:
    """Attention of one layer.

    Args:
        query: [1, heads, tokens, width].
        key, value: [1, fewer heads, tokens, width].
        keys, values: the layer's memory, [places, fewer heads, width].
        key_copy, value_copy: see `gathered`.
        written, layout, blocks: see `StepTensors`.
        mask: see `masks`.

    Returns:
        [1, tokens, heads, width].
    """
    keys.index_copy_(0, written, key[0].transpose(0, 1))
    values.index_copy_(0, written, value[0].transpose(0, 1))
    heads, fewer = query.size(1), key.size(1)
    found: List[Tensor] = []  # noqa: UP006
    parts: List[List[int]] = layout.tolist()  # noqa: UP006
    row, block, place = 0, 0, 0
    for part in parts:
        pieces, tokens, count = part[0], part[1], part[2]
        end = row + pieces * tokens
        asking = query[0, :, row:end]
        if count > 0:
            chosen = blocks[block : block + pieces * count]
            seen_keys = gathered(keys, key_copy, chosen, pieces, size)
            seen_values = gathered(values, value_copy, chosen, pieces, size)
        else:
            seen_keys, seen_values = key[:, :, row:end], value[:, :, row:end]
        context = seen_keys.size(2)
        hidden = mask[place : place + pieces * tokens * context].view(pieces, 1, tokens, context)
        if tokens == 1:
            asking = asking.transpose(0, 1).reshape(pieces, fewer, heads // fewer, query.size(3))
        else:
            asking = asking[None]
        attended = scaled_dot_product_attention(
            asking, seen_keys, seen_values, attn_mask=hidden, scale=scaling, enable_gqa=asking.size(1) != fewer
        )
        if tokens == 1:
            found.append(attended.reshape(pieces, heads, value.size(3)))
        else:
            found.append(attended[0].transpose(0, 1))
        row, block, place = end, block + pieces * count, place + pieces * tokens * context
    return (found[0] if len(found) == 1 else torch.cat(found))[None]


class StepView:
    """What attention has to know of a step.

    Args:
        size: tokens of a block.
    """

    def __init__(self, tensors: StepTensors, memories: Memories, size: int) -> None:
        self._tensors = tensors
        self._memories = memories
        self._size = size
        self._masks: dict[int, Tensor] = {}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int
    ) -> Tensor:
        """See `attend` and `masks`."""
        of = self._tensors
        if window not in self._masks:
            self._masks[window] = masks(of.layout, of.positions, query, self._size, window)
        memories = self._memories(layer, key[0].transpose(0, 1), value[0].transpose(0, 1))
        mask = self._masks[window]
        return attend(query, key, value, *memories, of.written, of.layout, of.blocks, mask, self._size, scaling)


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """What transformers calls for each layer; see `AttentionInterface` there.

    Raises:
        UnsupportedError: the network has something in its attention that is not computed here.
    """
    del attention_mask
    check_attention(rest)
    step: StepView = rest["step"]
    return step.attend(module.layer_idx, query, key, value, scaling, rest.get("sliding_window") or 0), None


def computed(model: Any, tensors: StepTensors, memories: Memories, size: int) -> Tensor:
    """A step by a network's own code.

    Returns:
        Logits [drawn, vocabulary].
    """
    answer = model(
        input_ids=tensors.tokens,
        position_ids=tensors.positions,
        use_cache=False,
        logits_to_keep=tensors.drawn,
        step=StepView(tensors, memories, size),
    )
    return answer.logits[0]


def steps_alike(model: Any) -> bool:
    """Whether a network is one whose operations do not depend on what a step contains."""
    config = model.config.get_text_config()
    rotation = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    return config.model_type in _ARCHITECTURES and rotation in _PLAIN_ROTATIONS


class _Step(torch.nn.Module):
    """A step of a network as a function of tensors alone: `StepTensors`, room for copies of keys and of values, and the
    memory of keys and of values of each layer."""

    def __init__(self, model: Any, layers: Sequence[int], size: int) -> None:
        super().__init__()
        self.model = model
        self._at = {layer: number for number, layer in enumerate(layers)}
        self._size = size

    def forward(self, *given: Tensor) -> Tensor:
        count = len(StepTensors._fields)
        copies, both = given[count : count + 2], given[count + 2 :]

        def memories(layer: int, _keys: Tensor, _values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            at = 2 * self._at[layer]
            return both[at], both[at + 1], copies[0], copies[1]

        return computed(self.model, StepTensors(*given[:count]), memories, self._size)


class FollowedNetwork:
    """The operations that a network's code asks for in a step; see above.

    Args:
        tensors: of a step whose parts have all been computed once; it is computed again.
        memory: all of its layers have computed something.
    """

    def __init__(self, model: Any, tensors: StepTensors, memory: KeyValueMemory, packed: Sequence[Tensor]) -> None:
        self._memory = memory
        self._packed = packed
        self._memories = [half for layer in memory.layers for half in memory.of(layer)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of what might depend on a step
            step = _Step(model, memory.layers, memory.size).eval()
            made: Any = torch.jit.trace(step, self._given(tensors), check_trace=False)
            self._step = torch.jit.freeze(made, optimize_numerics=False)
        torch._C._jit_pass_custom_pattern_based_rewrite_graph(*_HALVES, self._step.graph)
        torch._C._jit_pass_constant_propagation(self._step.graph)

    @staticmethod
    def follows(model: Any) -> bool:
        """Whether a network can be followed."""
        return COMPILES and steps_alike(model) and model.device.type == "cpu"

    def computed(self, tensors: StepTensors) -> Tensor:
        """A step: logits [drawn, vocabulary]."""
        with optimized_execution(False):  # else torch looks at the first steps for a second, and gains nothing
            return self._step(*self._given(tensors))

    def _given(self, tensors: StepTensors) -> tuple[Tensor, ...]:
        return *tensors, *self._memory.copies(tensors.copied), *self._memories, *self._packed
