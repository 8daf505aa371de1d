"""A network that generates text: a directory in the layout of Hugging Face, and its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ...errors import InternalError, TriremeError, UnavailableError
from ...generation.iterations import Step
from ...plugins import import_package
from ..hugging_face import CONFIG, check_weights, first_line, import_transformers, no_mask
from ..torch_threads import use_threads
from .adapters import Adapters
from .attention import KeyValueMemory, StepTensors, in_row, step_tensors

_USER = "the backend 'generation' needs"
_EXTRA = "generate"


class Network:
    """A network on its device, and the memory of its generations. Used by one thread at a time.

    Args:
        directory: with ``config.json`` and safetensors.
        blocks, size, held: see `KeyValueMemory`.
        adapters: their folders, by name.
        dtype: torch's name of the type that it is computed in; ``auto`` for that of its files.

    Attributes:
        adapters: their names.
        vocabulary: of how many tokens the next one is drawn.
        context: tokens that a generation may have.
        threads: that a step has (`use_threads`).

    Raises:
        UnavailableError: a file or a package is missing.
        InternalError: the network cannot be made of it.
    """

    threads: int = 0
    _scratch: ClassVar[int] = 0
    """Blocks of memory that no generation has."""

    def __init__(
        self,
        directory: Path,
        blocks: int,
        size: int,
        held: int = 0,
        device: str = "cpu",
        adapters: Mapping[str, Path] | None = None,
        dtype: str = "auto",
    ) -> None:
        if not (directory / CONFIG).is_file():
            raise UnavailableError(f"unable to find '{directory / CONFIG}'; expected a model in Hugging Face's layout")
        torch = import_package("torch", _USER, _EXTRA)
        transformers = import_transformers(_USER, _EXTRA)
        broken = import_package("safetensors", _USER, _EXTRA).SafetensorError
        self._compiled = compiled = import_module(".compiled", __package__)
        transformers.AttentionInterface.register(compiled.ATTENTION, compiled.attention)
        transformers.AttentionMaskInterface.register(compiled.ATTENTION, no_mask)
        try:
            model, about = transformers.AutoModelForCausalLM.from_pretrained(
                directory,
                local_files_only=True,
                attn_implementation=compiled.ATTENTION,
                dtype=dtype,
                use_safetensors=True,
                output_loading_info=True,
            )
        except (OSError, ValueError, KeyError, RuntimeError, broken) as error:
            raise InternalError(f"unable to load the network in '{directory}': {first_line(error)}") from error
        check_weights(directory, about["missing_keys"])
        self._torch = torch
        self._device = torch.device(device)
        self._model = model.to(self._device).eval()
        self._packed: Sequence[Any] = ()
        self._weights = import_module(".weights", __package__).LinearWeights(self._model) if device == "cpu" else None
        self.adapters = tuple(adapters or ())
        self._adapters = Adapters(torch, transformers, self._model, adapters or {})
        self.keep(blocks, size, held)
        text = model.config.get_text_config()
        self.vocabulary: int = text.vocab_size
        self.context: int = text.max_position_embeddings

    def keep(self, blocks: int, size: int, held: int) -> None:
        """Have a memory of this size for keys and values, in place of the one before; see `KeyValueMemory`."""
        self._memory = KeyValueMemory(self._torch, blocks, size, held, self._device, self._scratch)
        self._followed: Any = None

    def pack(self) -> None:
        """Keep weights a second time, which makes steps of few tokens faster; before the first step."""
        if self._weights is not None:
            self._packed = self._weights.pack()

    def close(self) -> None:
        """It is not used any more. On a CPU its memory goes with it."""

    @property
    def token_bytes(self) -> int:
        """Memory that a token of a generation takes; 0 before the first step."""
        return self._memory.token_bytes

    def run(self, step: Step) -> np.ndarray:
        """Carry out a step.

        Returns:
            Logits, float32 [pieces that draw, vocabulary], in the order of the pieces.

        Raises:
            TriremeError: it failed.
        """
        use_threads(self._torch, self.threads)
        with self._torch.inference_mode():
            try:
                return self._carried_out(step)
            except TriremeError:
                raise
            except (RuntimeError, IndexError) as error:
                raise InternalError(f"a step of {step.tokens} tokens failed: {first_line(error)}") from error

    def _carried_out(self, step: Step) -> np.ndarray:
        self._memory.move(step.moves)
        row = in_row(step.pieces)
        tensors = step_tensors(self._torch, row, step, self._memory)
        adapted = self._adapters.begin(row, tensors.drawn)
        return self._computed(tensors, adapted).float().cpu().numpy()

    def _computed(self, tensors: StepTensors, adapted: bool) -> Any:
        """Logits. What adapters add is in no step that is followed; nor is what the first step makes."""
        if self._followed is not None and not adapted:
            return self._followed.computed(tensors)
        memory, first = self._memory, not self._memory.layers
        places = partial(memory.places, tensors.copied)
        logits = self._compiled.computed(self._model, tensors, places, memory.size)
        if not first and not adapted and self._compiled.FollowedNetwork.follows(self._model):
            self._followed = self._compiled.FollowedNetwork(self._model, tensors, memory, self._packed)
        return logits
