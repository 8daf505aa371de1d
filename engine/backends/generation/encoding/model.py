"""A model that is an encoder, as the backend ``generation`` serves it (docs/encoders.md)."""

from __future__ import annotations

from functools import partial

from ....config.model import ModelConfig, ModelInput, ModelOutput
from ....errors import InvalidArgumentError
from ....host_policies import usable_cores
from ....metrics.statistics import EncodingStatistics
from ...hugging_face import check_tensors, dtype_setting, integer_setting
from ...interface import Completion, InstanceSpec, LoadedModel, ModelFiles, ModelInstance
from ...parameters import parse_bool
from ...torch_threads import step_threads
from ..tokenizer import Tokenizer
from .asked import INPUTS, TRUNCATE, outputs_of
from .instance import EncoderInstance
from .layout import EncoderLayout
from .network import EncoderNetwork

_DEFAULTS = {"max_tokens_per_step": 2048, "max_running": 64}
"""Parameters of a model, and what they are if it has none."""

_MOST_ROWS = 128
"""Of a request, if the configuration does not say."""


def encoder_completion(config: ModelConfig, layout: EncoderLayout) -> Completion:
    """What an encoder's configuration is, where that leaves it open."""
    inputs = [ModelInput(name, *about, optional=True) for name, about in INPUTS.items()]
    outputs = [ModelOutput(name, *about) for name, about in outputs_of(layout).items()]
    rows = config.max_batch_size if config.max_batch_size or config.input else _MOST_ROWS
    return Completion(rows, tuple(inputs), tuple(outputs))


class EncoderModel(LoadedModel):
    """A model whose configuration is one that can be served.

    Raises:
        TriremeError: it is not.
    """

    def __init__(
        self, config: ModelConfig, files: ModelFiles, layout: EncoderLayout, network_class: type[EncoderNetwork]
    ) -> None:
        if config.decoupled:
            raise InvalidArgumentError(
                f"unable to load model '{config.name}': model_transaction_policy.decoupled is true; expected false, as "
                "an encoder answers once"
            )
        check_tensors(config, INPUTS, outputs_of(layout))
        self._layout = layout
        self._network_class = network_class
        self._threads = step_threads(config, usable_cores())
        self._tokens, self._requests = (integer_setting(config, name, usual) for name, usual in _DEFAULTS.items())
        self._dtype = dtype_setting(config)
        self._truncates = parse_bool(config.parameters.get(TRUNCATE, "false"))
        self._batched = config.max_batch_size > 0
        warmed = config.message is not None and config.message.model_warmup
        self._warm_up = 0 if warmed else integer_setting(config, "warm_up", 1)
        self.encoded = self._counted = EncodingStatistics()

    def instance_class(self, spec: InstanceSpec) -> type[ModelInstance]:
        return EncoderInstance

    def create_instance(self, spec: InstanceSpec) -> EncoderInstance:
        layout = self._layout
        network = self._network_class(layout, "cpu" if spec.gpu is None else f"cuda:{spec.gpu}", self._dtype)
        network.threads = self._threads
        tokenizer = partial(Tokenizer, layout.directory)
        if self._warm_up:
            network.warm_up(self._tokens)
        about = layout, self._tokens, self._requests, self._truncates, self._batched
        return EncoderInstance(spec.name, network, tokenizer, *about, self._counted)
