"""What the parameters of a generating model's configuration say of its steps and its memory (docs/generation.md)."""

from __future__ import annotations

import re

from ...config.model import ModelConfig
from ...errors import InvalidArgumentError
from ...generation.iterations import IterationLimits
from ..hugging_face import dtype_setting, integer_setting

_DEFAULTS = {
    "block_tokens": 16,
    "kv_tokens": 0,
    "max_tokens_per_step": 512,
    "max_running": 64,
    "spare_blocks": 0,
    "swap_tokens": 0,
    "prefix_sharing": 1,
    "packed_weights": 1,
    "cuda_graphs": 1,
    "warm_up": 1,
}
"""Parameters of a model, and what they are if it has none; 0 ``kv_tokens`` are as many as `_MOST_DEFAULT_TOKENS`, or
what all that run may take if that is less."""

_KV_BYTES = "kv_bytes"
_BYTES = re.compile(r"([1-9][0-9]{0,17})([kmgt]?)", re.IGNORECASE)

_MOST_DEFAULT_TOKENS = 32_768


class GenerationSettings:
    """Of one model.

    Attributes:
        block_tokens: of a block of memory.
        dtype: torch's name of the type that the network is computed in; ``auto`` for that of its files.
        kv_bytes: of memory for keys and values; 0 if that is said in tokens.
        shares: beginnings are shared.
        packs: weights are kept a second time, for steps of few tokens.
        most_running: texts in a step.
        graphs: steps are captured as CUDA graphs, on a GPU.
        warms_up: steps are computed before the model is ready.

    Raises:
        InvalidArgumentError: a parameter is none of its values.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._values = {name: integer_setting(config, name, usual) for name, usual in _DEFAULTS.items()}
        self.dtype = dtype_setting(config)
        self.kv_bytes = _kv_bytes(config)
        self.block_tokens = self._values["block_tokens"]
        self.shares = bool(self._values["prefix_sharing"])
        self.packs = bool(self._values["packed_weights"])
        self.most_running = self._values["max_running"]
        self.graphs = bool(self._values["cuda_graphs"])
        self.warms_up = bool(self._values["warm_up"])

    @property
    def held(self) -> int:
        """Blocks of the host's memory."""
        return self._values["swap_tokens"] // self.block_tokens

    def limits(self, context: int) -> IterationLimits:
        """Of a network with this context."""
        values, running = self._values, self.most_running
        return IterationLimits(
            context=context,
            most_tokens=values["max_tokens_per_step"],
            most_running=running,
            most_pending=2 * running * running,  # all choices of as many requests as it is given
            spare=values["spare_blocks"],
            held=self.held,
        )

    def blocks(self, context: int) -> int:
        """How many there are, unless that is said in bytes."""
        most = min(self.most_running * context or _MOST_DEFAULT_TOKENS, _MOST_DEFAULT_TOKENS)
        return max((self._values["kv_tokens"] or most) // self.block_tokens, 1)

    def blocks_of_bytes(self, token_bytes: int) -> int:
        """How many `kv_bytes` are, of which each token takes so many.

        Raises:
            InvalidArgumentError: it is less than one.
        """
        block = self.block_tokens * token_bytes
        if self.kv_bytes < block:
            raise InvalidArgumentError(
                f"parameter '{_KV_BYTES}' is {self.kv_bytes} bytes, and a block of {self.block_tokens} tokens takes "
                f"{block}; expected at least one block"
            )
        return self.kv_bytes // block


def _kv_bytes(config: ModelConfig) -> int:
    """What is said of the memory of keys and values in bytes; 0 if nothing is."""
    text = config.parameters.get(_KV_BYTES)
    if text is None:
        return 0
    found = _BYTES.fullmatch(text.strip())
    if found is None:
        raise InvalidArgumentError(
            f"unable to load model '{config.name}': parameter '{_KV_BYTES}' is {text}; expected a number of bytes "
            "above 0, with k, m, g or t of KiB, MiB, GiB or TiB"
        )
    if "kv_tokens" in config.parameters:
        raise InvalidArgumentError(
            f"unable to load model '{config.name}': parameters 'kv_tokens' and '{_KV_BYTES}' are given; expected one"
        )
    return int(found[1]) << 10 * " kmgt".index(found[2].lower() or " ")
