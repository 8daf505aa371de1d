"""An encoder: a directory in the layout of Hugging Face, and its steps.

Rules:
 1. The network is computed by transformers' own code. Its texts are one row, without padding (`packed`).
 2. A head that classifies expects a row of tokens for each text. It gets what its pooling would take: one vector for
    each.
 3. When it is loaded, two short texts are computed as one row, and each by itself with the attention of transformers.
    A network that does not give the same is refused: there is something in it that the row does not heed.
 4. Weights that are missing would be random numbers: the network is refused, unless nothing depends on them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import InternalError, TriremeError, UnsupportedError
from ....plugins import import_package
from ...hugging_face import check_weights, first_line, import_transformers, no_mask
from ...torch_threads import use_threads
from .dense import load_dense
from .layout import EncoderKind, EncoderLayout
from .packed import NAME, PackedTexts, TokenRow, packed_attention

_USER = "the backend 'generation' needs"
_EXTRA = "generate"
_UNUSED = ("pooler.", "lm_head.", "cls.", "position_ids")
"""Of names of weights: what embeddings do not depend on."""


class EncoderNetwork:
    """A network on its device. Used by one thread at a time.

    Args:
        dtype: torch's name of the type that it is computed in; ``auto`` for that of its files.

    Attributes:
        vocabulary: tokens that there are.
        context: tokens that a text may have.
        threads: that a step has (`use_threads`).

    Raises:
        UnavailableError: a package is missing.
        UnsupportedError: it cannot be computed without padding (rule 3).
        InternalError: the network cannot be made of the directory.
    """

    threads: int = 0

    def __init__(self, layout: EncoderLayout, device: str = "cpu", dtype: str = "auto") -> None:
        torch = self._torch = import_package("torch", _USER, _EXTRA)
        transformers = import_transformers(_USER, _EXTRA)
        broken = import_package("safetensors", _USER, _EXTRA).SafetensorError
        transformers.AttentionInterface.register(NAME, packed_attention)
        transformers.AttentionMaskInterface.register(NAME, no_mask)
        self._layout = layout
        self._device = torch.device(device)
        embeds = layout.kind is EncoderKind.EMBEDDING
        loader = transformers.AutoModel if embeds else transformers.AutoModelForSequenceClassification
        try:
            model, about = loader.from_pretrained(
                layout.directory, local_files_only=True, dtype=dtype, use_safetensors=True, output_loading_info=True
            )
        except (OSError, ValueError, KeyError, RuntimeError, broken) as error:
            raise InternalError(f"unable to load the network in '{layout.directory}': {first_line(error)}") from error
        check_weights(layout.directory, _needed(about["missing_keys"], embeds))
        self._denses = [load_dense(torch, each, self._device) for each in layout.denses]
        self._model = model.to(device).eval()
        base = model if embeds else getattr(model, model.base_model_prefix)
        config = model.config.get_text_config()
        self._first = _first_position(base)
        self._typed = getattr(config, "type_vocab_size", 0) > 1 and _takes_types(base)
        self.vocabulary: int = config.vocab_size
        read = getattr(config, "max_position_embeddings", 0) - self._first
        self.context: int = min(each for each in (read, layout.longest) if each is not None and each > 0)
        self._check_packing(base, layout.directory)
        if not embeds:
            pooling = getattr(config, "classifier_pooling", "cls")
            setattr(model, model.base_model_prefix, _pooled(torch, base, pooling))

    def run(self, texts: Sequence[TokenRow]) -> np.ndarray:
        """Carry out a step.

        Returns:
            Float32 [texts, width]: vectors, or scores of labels.

        Raises:
            TriremeError: it failed.
        """
        layout, torch = self._layout, self._torch
        use_threads(torch, self.threads)
        row = PackedTexts(torch, texts, self._device, self._first)
        with torch.inference_mode():
            try:
                answer = self._answer(self._model, row)
                if layout.kind is EncoderKind.EMBEDDING:
                    found = row.pool(answer.last_hidden_state[0], layout.poolings).float()
                    for dense in self._denses:
                        found = dense(found)
                    if layout.normalizes:
                        found = torch.nn.functional.normalize(found, dim=-1)
                else:
                    found = self._scores(answer.logits.float())
                return found[row.places].cpu().numpy()
            except TriremeError:
                raise
            except (RuntimeError, IndexError) as error:
                count = sum(len(text.ids) for text in texts)
                raise InternalError(f"a step of {count} tokens failed: {first_line(error)}") from error

    def warm_up(self, most_tokens: int) -> None:
        """Compute a step as large as they may be, of texts that are as long as they may be: it is known then that there
        is memory for it.

        Raises:
            TriremeError: it failed.
        """
        longest = min(self.context, most_tokens)
        self.run([TokenRow([self._usable[0]] * longest)] * max(most_tokens // longest, 1))

    def _scores(self, logits: Any) -> Any:
        match self._layout.activation:
            case "softmax":
                return logits.softmax(dim=-1)
            case "sigmoid":
                return logits.sigmoid()
            case _:
                return logits

    def _answer(self, network: Any, row: PackedTexts) -> Any:
        more = {"token_type_ids": row.types} if self._typed else {}
        return network(input_ids=row.tokens, position_ids=row.positions, texts=row, **more)

    def _check_packing(self, base: Any, directory: Path) -> None:
        """Rule 3."""
        torch = self._torch
        end = getattr(base.config.get_text_config(), "pad_token_id", None)
        usable = self._usable = [token for token in range(min(self.vocabulary, 16)) if token != end]
        lengths = (min(5, self.context), min(8, self.context))
        texts = [TokenRow([usable[(3 * at + length) % len(usable)] for at in range(length)]) for length in lengths]
        row = PackedTexts(torch, texts, self._device, self._first)
        with torch.inference_mode():
            base.set_attn_implementation("eager")
            apart = [base(input_ids=torch.tensor([text.ids], device=self._device)) for text in texts]
            expected = torch.cat([each.last_hidden_state[0] for each in apart]).float()
            try:
                base.set_attn_implementation(NAME)
                found = self._answer(base, row).last_hidden_state[0].float()
            except (ValueError, TypeError, RuntimeError, KeyError) as error:
                raise self._unsupported(directory, first_line(error)) from error
            off = ((found - expected).abs().max() / expected.abs().max()).item()
        if base.config.get_text_config()._attn_implementation != NAME:
            raise self._unsupported(directory, "its attention does not go by transformers' interface for it")
        if not off < (1e-3 if base.dtype == torch.float32 else 5e-2):
            raise self._unsupported(directory, "its results are not those of texts by themselves")

    def _unsupported(self, directory: Path, why: str) -> UnsupportedError:
        kind = type(self._model).__name__
        return UnsupportedError(f"unable to serve '{directory}': {kind} cannot be computed without padding: {why}")


def _needed(names: Iterable[str], embeds: bool) -> list[str]:
    """Of weights those that something depends on (rule 4)."""
    return [name for name in names if not (embeds and any(part in name for part in _UNUSED))]


def _first_position(base: Any) -> int:
    """Networks of RoBERTa's kind count from behind the place of padding, which their embedding of positions has."""
    for name, module in base.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return module.padding_idx + 1
    return 0


def _takes_types(base: Any) -> bool:
    return "token_type_ids" in inspect.signature(base.forward).parameters


def _pooled(torch: Any, base: Any, pooling: str) -> Any:
    """A network for a head (rule 2)."""
    outputs = import_package("transformers.modeling_outputs", _USER, _EXTRA)

    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = base

        def forward(self, input_ids: Any, texts: PackedTexts, **rest: Any) -> Any:
            answer = self.base(input_ids=input_ids, texts=texts, **rest)
            states = texts.pool(answer.last_hidden_state[0], (pooling,))[:, None]
            pooler = getattr(self.base, "pooler", None)
            return outputs.BaseModelOutputWithPooling(
                last_hidden_state=states, pooler_output=None if pooler is None else pooler(states)
            )

    return Pooled()
