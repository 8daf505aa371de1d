"""A generating model without a network: each token is followed by the next letter of the alphabet."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from trireme.actors import InferenceServer
from trireme.engine.backends.generation import GenerationBackend
from trireme.engine.backends.generation.network import Network
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.datatypes import BOOL, BYTES, INT64
from trireme.engine.errors import InvalidArgumentError, TriremeError
from trireme.engine.generation.iterations import Step
from trireme.engine.options import ServerOptions
from trireme.engine.request import InferenceRequest, InferenceResponse
from trireme.engine.tensor import Tensor

CONTEXT, ALPHABET = 64, sorted(pre_tokenizers.ByteLevel.alphabet())
END = ALPHABET.index("z")


def write_tokenizer(directory: Path) -> None:
    """One token for each byte."""
    tokenizer = Tokenizer(models.BPE(vocab={letter: token for token, letter in enumerate(ALPHABET)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))


def write_model(repository: Path, name: str = "letters", tokenizer: bool = True, **parameters: int | str) -> Path:
    """A model whose texts end with "z", and which computes nothing before it is ready; its directory."""
    parameters = {"warm_up": 0, **parameters}
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    settings = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in parameters.items()
    )
    (repository / name / "config.pbtxt").write_text(f'backend: "generation"\n{settings}')
    about = {"vocab_size": len(ALPHABET), "max_position_embeddings": CONTEXT, "eos_token_id": END}
    (directory / "config.json").write_text(json.dumps(about))
    if tokenizer:
        write_tokenizer(directory)
    return directory


class CountingNetwork(Network):
    """What a network is to an instance.

    Attributes:
        widths: how many pieces each step had.
        dtype: as given.
        before: called, on the instance's thread, with each step.
    """

    latest: CountingNetwork
    before: Callable[[Step], object] = staticmethod(lambda _step: None)

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
        self.adapters = tuple(adapters or ())
        self.vocabulary, self.context = len(ALPHABET), CONTEXT
        self.widths: list[int] = []
        self.dtype = dtype
        CountingNetwork.latest = self

    def pack(self) -> None:
        """It has no weights."""

    @property
    def token_bytes(self) -> int:
        return 6 if self.widths else 0

    def keep(self, blocks: int, size: int, held: int) -> None:
        """It keeps nothing."""

    def run(self, step: Step) -> np.ndarray:
        self.before(step)
        self.widths.append(len(step.pieces))
        drawing = [step.tokens_of(piece, piece.start) for piece in step.pieces if piece.draws]
        logits = np.zeros((len(drawing), self.vocabulary), np.float32)
        for row, tokens in enumerate(drawing):
            logits[row, (tokens[-1] + 1) % self.vocabulary] = 100.0
        return logits


class Gate:
    """Holds up steps until it is opened; `entered` says that one is held up."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, _step: Step) -> None:
        self.entered.set()
        assert self.opened.wait(60)


class CountingBackend(GenerationBackend):
    network_class = CountingNetwork


@asynccontextmanager
async def open_letters(repository: Path, **options: Any) -> AsyncIterator[InferenceServer]:
    """A server without sockets, on models that count."""
    backends = BackendRegistry(lambda _name: {}, {"generation": CountingBackend})
    async with InferenceServer(ServerOptions(model_repository=(repository,), **options), backends=backends) as server:
        yield server


def asks(
    text: str | None = None,
    *,
    model: str = "letters",
    stream: bool = False,
    tokens: list[int] | None = None,
    flags: tuple[str, ...] = (),
    parameters: str | None = None,
    **sampling: Any,
) -> InferenceRequest:
    """A request; greedy unless it says otherwise."""
    inputs = []
    if text is not None:
        inputs.append(Tensor("text_input", BYTES, (1,), array=np.array([text.encode()], object)))
    if tokens is not None:
        inputs.append(Tensor("input_ids", INT64, (len(tokens),), array=np.array(tokens, np.int64)))
    given = json.dumps({"temperature": 0, **sampling}) if parameters is None else parameters
    inputs.append(Tensor("sampling_parameters", BYTES, (1,), array=np.array([given.encode()], object)))
    wanted = (*flags, "stream") if stream else flags
    inputs += [Tensor(flag, BOOL, (1,), array=np.array([True])) for flag in wanted]
    return InferenceRequest(model, inputs=inputs)


def said(response: InferenceResponse, name: str = "text_output") -> list[Any]:
    """The elements of an output."""
    (tensor,) = [tensor for tensor in response.outputs if tensor.name == name]
    elements = tensor.array.ravel().tolist()
    return [element.decode() if isinstance(element, bytes) else element for element in elements]


async def whole(server: InferenceServer, request: InferenceRequest) -> list[InferenceResponse]:
    """All responses to a request."""
    reply = await server.admit(request)
    return [response async for response in reply.responses()]


async def refused(server: InferenceServer, request: InferenceRequest) -> str:
    with pytest.raises(TriremeError) as caught:
        await whole(server, request)
    assert isinstance(caught.value, InvalidArgumentError)
    return caught.value.message
