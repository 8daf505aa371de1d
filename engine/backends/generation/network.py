"""A network that generates text: a directory in the layout of Hugging Face, and its steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InternalError, TriremeError, UnavailableError
from ...generation.iterations import Step
from ...plugins import import_package
from ..hugging_face import CONFIG, first_line, no_mask
from .adapters import Adapters
from .attention import NAME, KeyValueMemory, StepView, attention

_USER = "the backend 'generation' needs"
_EXTRA = "generate"


class Network:
    """A network on its device, and the memory of its generations. Used by one thread at a time.

    Args:
        directory: with ``config.json`` and safetensors.
        blocks, size, held: see `KeyValueMemory`.
        adapters: their folders, by name.

    Attributes:
        adapters: their names.
        vocabulary: of how many tokens the next one is drawn.
        context: tokens that a generation may have.

    Raises:
        UnavailableError: a file or a package is missing.
        InternalError: the network cannot be made of it.
    """

    def __init__(
        self,
        directory: Path,
        blocks: int,
        size: int,
        held: int = 0,
        device: str = "cpu",
        adapters: Mapping[str, Path] | None = None,
    ) -> None:
        if not (directory / CONFIG).is_file():
            raise UnavailableError(f"unable to find '{directory / CONFIG}'; expected a model in Hugging Face's layout")
        torch = import_package("torch", _USER, _EXTRA)
        transformers = import_package("transformers", _USER, _EXTRA)
        broken = import_package("safetensors", _USER, _EXTRA).SafetensorError
        transformers.utils.logging.disable_progress_bar()
        transformers.AttentionInterface.register(NAME, attention)
        transformers.AttentionMaskInterface.register(NAME, no_mask)
        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(
                directory, local_files_only=True, attn_implementation=NAME, dtype="auto", use_safetensors=True
            )
        except (OSError, ValueError, KeyError, RuntimeError, broken) as error:
            raise InternalError(f"unable to load the network in '{directory}': {first_line(error)}") from error
        self._torch = torch
        self._model = model.to(device).eval()
        if device == "cpu":
            _lay_out(torch, self._model)
        self.adapters = tuple(adapters or ())
        self._adapters = Adapters(torch, transformers, self._model, adapters or {})
        self._device = torch.device(device)
        self.keep(blocks, size, held)
        text = model.config.get_text_config()
        self.vocabulary: int = text.vocab_size
        self.context: int = text.max_position_embeddings

    def keep(self, blocks: int, size: int, held: int) -> None:
        """Have a memory of this size for keys and values, in place of the one before; see `KeyValueMemory`."""
        self._memory = KeyValueMemory(self._torch, blocks, size, held, self._device)

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
        torch = self._torch
        with torch.inference_mode():
            try:
                self._memory.move(step.moves)
                view = StepView(torch, self._memory, step.pieces)
                self._adapters.begin(view.pieces, view.drawn)
                answer = self._model(
                    input_ids=view.tokens,
                    position_ids=view.positions,
                    use_cache=False,
                    logits_to_keep=view.drawn,
                    step=view,
                )
            except TriremeError:
                raise
            except (RuntimeError, IndexError) as error:
                raise InternalError(f"a step of {step.tokens} tokens failed: {first_line(error)}") from error
            return answer.logits[0].float().cpu().numpy()


def _lay_out(torch: Any, model: Any) -> None:
    """Lay the weights of linear layers out as they are multiplied with: one input after the other. Otherwise they are
    rearranged in each step with more than a few tokens. What an embedding is read from as well stays as it is."""
    embeddings = {id(each.weight) for each in model.modules() if isinstance(each, torch.nn.Embedding)}
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear) and id(layer.weight) not in embeddings:
            layer.weight.data = layer.weight.data.t().contiguous().t()
