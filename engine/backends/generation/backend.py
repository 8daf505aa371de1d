"""The backend ``generation``: models that generate text, in the layout of Hugging Face
(docs/generation.md)."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from ...config.adapters import find_adapters
from ...config.model import ModelConfig, ModelInput, ModelOutput
from ...config.platforms import GENERATION
from ...errors import InvalidArgumentError, UnavailableError
from ...generation.blocks import BlockMemory
from ...generation.iterations import IterationLimits
from ...host_policies import usable_cores
from ...metrics.statistics import GenerationStatistics
from ..hugging_face import CONFIG, check_tensors, read_object
from ..interface import Backend, Completion, InstanceSpec, LoadedModel, ModelFiles, ModelInstance
from ..torch_threads import step_threads
from .asked import INPUTS, OUTPUTS
from .encoding import EncoderModel, EncoderNetwork, encoder_completion, read_layout
from .first_steps import compute, warm_up
from .gpu_network import GpuNetwork
from .instance import GenerationInstance
from .network import Network
from .settings import GenerationSettings
from .tokenizer import Tokenizer


class GenerationBackend(Backend):
    """Runs networks that generate text, and encoders (`encoding`)."""

    name = GENERATION
    network_class: ClassVar[type[Network]] = Network
    gpu_network_class: ClassVar[type[GpuNetwork]] = GpuNetwork
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
        return GenerationModel(self, config, files)


class GenerationModel(LoadedModel):
    """A model whose configuration is one that this backend can serve.

    Raises:
        TriremeError: it is not, or a file is missing.
    """

    def __init__(self, backend: GenerationBackend, config: ModelConfig, files: ModelFiles) -> None:
        _check_batching(config)
        if not config.decoupled:
            raise InvalidArgumentError(
                f"unable to load model '{config.name}': model_transaction_policy.decoupled is false; expected true"
            )
        check_tensors(config, INPUTS, OUTPUTS)
        self._directory = files.version_directory
        self._name = config.name
        self._backend = backend
        self._settings = GenerationSettings(config)
        self._warms_up = self._settings.warms_up and not (config.message is not None and config.message.model_warmup)
        self._ends = _ends(self._directory)
        self.generated = GenerationStatistics()
        read_object(self._directory / CONFIG)
        self._adapters = find_adapters(self._directory)
        self.adapters = tuple(self._adapters)
        # One core is left to the event loop, which answers meanwhile: where a thread is missing, all wait for it.
        self._threads = step_threads(config, usable_cores() - 1)

    def instance_class(self, spec: InstanceSpec) -> type[ModelInstance]:
        return GenerationInstance

    def create_instance(self, spec: InstanceSpec) -> GenerationInstance:
        settings, size = self._settings, self._settings.block_tokens
        text = read_object(self._directory / CONFIG)
        blocks = settings.blocks(int(text.get("max_position_embeddings") or text.get("n_positions") or 0))
        first = (2, size, 0) if settings.kv_bytes else (blocks, size, settings.held)
        if spec.gpu is None:
            network = self._backend.network_class(self._directory, *first, "cpu", self._adapters, settings.dtype)
        else:
            network = self._on_gpu(spec, first)
        network.threads = self._threads
        if settings.packs:
            network.pack()
        limits = settings.limits(network.context)
        if settings.kv_bytes:
            blocks = self._blocks_for(network, limits)
        memory = BlockMemory(blocks, size, shares=settings.shares)
        tokenizer = Tokenizer(self._directory)
        instance = GenerationInstance(spec.name, network, tokenizer, limits, memory, self._ends, self.generated)
        if self._warms_up:
            warm_up(network, limits, blocks, size)
            instance.constraints.prepare()
        return instance

    def _on_gpu(self, spec: InstanceSpec, memory: tuple[int, int, int]) -> Network:
        try:
            gpu = self._backend.services.torch_gpus.get(spec.device_id)
        except UnavailableError as error:
            raise InvalidArgumentError(
                f"unable to load model '{self._name}', instance '{spec.name}' is to run on a GPU: {error}"
            ) from error
        make = self._backend.gpu_network_class
        settings = self._settings
        about = {"gpu": gpu, "name": spec.name, "most_running": settings.most_running, "graphs": settings.graphs}
        return gpu.load(lambda: make(self._directory, *memory, self._adapters, settings.dtype, **about))

    def _blocks_for(self, network: Network, limits: IterationLimits) -> int:
        """Give the network as many bytes for keys and values as the settings say; how many blocks that is.

        Raises:
            InvalidArgumentError: it is less than one.
        """
        size = self._settings.block_tokens
        compute(network, limits, 2, size, 1, 1)
        blocks = self._settings.blocks_of_bytes(network.token_bytes)
        network.keep(blocks, size, self._settings.held)
        return blocks


def _check_batching(config: ModelConfig) -> None:
    if config.max_batch_size > 0:
        raise InvalidArgumentError(
            f"unable to load model '{config.name}': max_batch_size is {config.max_batch_size}; expected 0, as a step "
            "has all requests in it whatever that says"
        )


def _ends(directory: Path) -> frozenset[int]:
    """The tokens that end a text: what ``generation_config.json`` says, else ``config.json``."""
    for file in ("generation_config.json", CONFIG):
        path = directory / file
        found = read_object(path).get("eos_token_id") if path.is_file() else None
        if found is not None:
            return frozenset(found if isinstance(found, list) else [found])
    return frozenset()
