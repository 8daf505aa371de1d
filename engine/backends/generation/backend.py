"""The backend ``generation``: models that generate text, in the layout of Hugging Face
(docs/generation.md)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar

from ...config.adapters import find_adapters
from ...config.model import ModelConfig, ModelInput, ModelOutput
from ...errors import InvalidArgumentError
from ...generation.blocks import BlockMemory
from ...generation.iterations import IterationLimits
from ...metrics.statistics import GenerationStatistics
from ..hugging_face import CONFIG, check_tensors, integer_setting, read_object
from ..interface import Backend, Completion, InstanceSpec, LoadedModel, ModelFiles, ModelInstance
from .asked import INPUTS, OUTPUTS
from .encoding import EncoderModel, EncoderNetwork, encoder_completion, read_layout
from .first_steps import compute, warm_up
from .instance import GenerationInstance
from .network import Network
from .tokenizer import Tokenizer

_DEFAULTS = {
    "block_tokens": 16,
    "kv_tokens": 0,
    "max_tokens_per_step": 512,
    "max_running": 64,
    "spare_blocks": 0,
    "swap_tokens": 0,
    "prefix_sharing": 1,
    "warm_up": 1,
}
"""Parameters of a model, and what they are if it has none; 0 ``kv_tokens`` are as many as `_MOST_DEFAULT_TOKENS`, or
what all that run may take if that is less."""

_KV_BYTES = "kv_bytes"
_BYTES = re.compile(r"([1-9][0-9]{0,17})([kmgt]?)", re.IGNORECASE)

_MOST_DEFAULT_TOKENS = 32_768


class GenerationBackend(Backend):
    """Runs networks that generate text, and encoders (`encoding`)."""

    name = "generation"
    network_class: ClassVar[type[Network]] = Network
    encoder_class: ClassVar[type[EncoderNetwork]] = EncoderNetwork

    def auto_complete(self, config: ModelConfig, files: ModelFiles) -> Completion | None:
        layout = read_layout(files.version_directory, config.parameters)
        if layout is not None:
            return encoder_completion(config, layout)
        _check_batching(config)
        read_object(files.version_directory / CONFIG)
        inputs = [ModelInput(name, *about, optional=True) for name, about in INPUTS.items()]
        outputs = [ModelOutput(name, *about) for name, about in OUTPUTS.items()]
        return Completion(0, tuple(inputs), tuple(outputs), decoupled=True)

    def load(self, config: ModelConfig, files: ModelFiles) -> GenerationModel | EncoderModel:
        layout = read_layout(files.version_directory, config.parameters)
        if layout is not None:
            return EncoderModel(config, files, layout, self.encoder_class)
        return GenerationModel(config, files, self.network_class)


class GenerationModel(LoadedModel):
    """A model whose configuration is one that this backend can serve.

    Raises:
        TriremeError: it is not, or a file is missing.
    """

    def __init__(self, config: ModelConfig, files: ModelFiles, network_class: type[Network]) -> None:
        _check_batching(config)
        if not config.decoupled:
            raise InvalidArgumentError(
                f"unable to load model '{config.name}': model_transaction_policy.decoupled is false; expected true"
            )
        check_tensors(config, INPUTS, OUTPUTS)
        self._directory = files.version_directory
        self._network_class = network_class
        self._settings = {name: integer_setting(config, name, usual) for name, usual in _DEFAULTS.items()}
        self._kv_bytes = _kv_bytes(config)
        if config.message is not None and config.message.model_warmup:
            self._settings["warm_up"] = 0
        self._ends = _ends(self._directory)
        self.generated = GenerationStatistics()
        read_object(self._directory / CONFIG)
        self._adapters = find_adapters(self._directory)
        self.adapters = tuple(self._adapters)

    def instance_class(self, spec: InstanceSpec) -> type[ModelInstance]:
        return GenerationInstance

    def create_instance(self, spec: InstanceSpec) -> GenerationInstance:
        settings = self._settings
        device = "cpu" if spec.gpu is None else f"cuda:{spec.gpu}"
        size, running = settings["block_tokens"], settings["max_running"]
        text = read_object(self._directory / CONFIG)
        context = int(text.get("max_position_embeddings") or text.get("n_positions") or 0)
        tokens = settings["kv_tokens"] or min(running * context or _MOST_DEFAULT_TOKENS, _MOST_DEFAULT_TOKENS)
        blocks, held = max(tokens // size, 1), settings["swap_tokens"] // size
        first = (2, size, 0) if self._kv_bytes else (blocks, size, held)
        network = self._network_class(self._directory, *first, device, self._adapters)
        limits = IterationLimits(
            context=network.context,
            most_tokens=settings["max_tokens_per_step"],
            most_running=running,
            most_pending=2 * running * running,  # all choices of as many requests as it is given
            spare=settings["spare_blocks"],
            held=held,
        )
        if self._kv_bytes:
            blocks = self._blocks_for(self._kv_bytes, network, limits, held)
        memory = BlockMemory(blocks, size, shares=bool(settings["prefix_sharing"]))
        tokenizer = Tokenizer(self._directory)
        instance = GenerationInstance(spec.name, network, tokenizer, limits, memory, self._ends, self.generated)
        if settings["warm_up"]:
            warm_up(network, limits, blocks, size)
            instance.constraints.prepare()
        return instance

    def _blocks_for(self, nbytes: int, network: Network, limits: IterationLimits, held: int) -> int:
        """Give the network so many bytes for keys and values; how many blocks that is.

        Raises:
            InvalidArgumentError: it is less than one.
        """
        size = self._settings["block_tokens"]
        compute(network, limits, 2, size, 1, 1)
        block = size * network.token_bytes
        if nbytes < block:
            raise InvalidArgumentError(
                f"parameter '{_KV_BYTES}' is {nbytes} bytes, and a block of {size} tokens takes {block}; expected at "
                "least one block"
            )
        network.keep(nbytes // block, size, held)
        return nbytes // block


def _check_batching(config: ModelConfig) -> None:
    if config.max_batch_size > 0:
        raise InvalidArgumentError(
            f"unable to load model '{config.name}': max_batch_size is {config.max_batch_size}; expected 0, as a step "
            "has all requests in it whatever that says"
        )


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


def _ends(directory: Path) -> frozenset[int]:
    """The tokens that end a text: what ``generation_config.json`` says, else ``config.json``."""
    for file in ("generation_config.json", CONFIG):
        path = directory / file
        found = read_object(path).get("eos_token_id") if path.is_file() else None
        if found is not None:
            return frozenset(found if isinstance(found, list) else [found])
    return frozenset()
