"""Encoders behind a server in this process, for tests, and requests to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from small_encoders import random_network, write_encoder

from trireme.actors import InferenceServer
from trireme.engine.backends.generation import GenerationBackend
from trireme.engine.backends.generation.encoding.layout import EncoderLayout
from trireme.engine.backends.generation.encoding.network import EncoderNetwork
from trireme.engine.backends.generation.encoding.packed import TokenRow
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.datatypes import BYTES, INT64
from trireme.engine.options import ServerOptions
from trireme.engine.request import InferenceRequest, InferenceResponse
from trireme.engine.tensor import Tensor


class LookedAtNetwork(EncoderNetwork):
    """A network whose steps are noted, and may be held up, in the thread that computes them; those before the model is
    ready by themselves."""

    dtype: str = ""
    first_steps: Sequence[Sequence[TokenRow]] = ()
    steps: Sequence[Sequence[TokenRow]] = ()
    before: Callable[[Sequence[TokenRow]], object] = staticmethod(lambda _texts: None)

    def __init__(self, layout: EncoderLayout, device: str, dtype: str) -> None:
        type(self).dtype = dtype
        super().__init__(layout, device, dtype)

    def run(self, texts: Sequence[TokenRow]) -> np.ndarray:
        type(self).steps = [*type(self).steps, texts]
        type(self).before(texts)
        return super().run(texts)


class LookedAtBackend(GenerationBackend):
    encoder_class = LookedAtNetwork


@asynccontextmanager
async def open_encoders(repository: Path, **options: Any) -> AsyncIterator[InferenceServer]:
    LookedAtNetwork.steps, LookedAtNetwork.before = (), staticmethod(lambda _texts: None)
    backends = BackendRegistry(lambda _name: {}, {"generation": LookedAtBackend})
    async with InferenceServer(ServerOptions(model_repository=(repository,), **options), backends=backends) as server:
        LookedAtNetwork.first_steps, LookedAtNetwork.steps = LookedAtNetwork.steps, ()
        yield server


def write_model(repository: Path, make: Callable[..., Any], config: str = "", **network: Any) -> Any:
    """A model "letters", without a configuration if there is nothing to say; its network."""
    made = random_network(make, **network)
    write_encoder(repository / "letters" / "1", made)
    if config:
        (repository / "letters" / "config.pbtxt").write_text(f'backend: "generation"\n{config}\n')
    return made


def parameter(name: str, value: object) -> str:
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}'


def asks(*texts: str, pairs: Sequence[str] = (), batched: bool = True, **more: Any) -> InferenceRequest:
    """A request with these texts."""
    inputs = []
    for name, of in (("text_input", texts), ("text_pair", pairs)):
        if of:
            array = np.array([each.encode() for each in of], object)
            shape = (len(of), 1) if batched else (1,)
            inputs.append(Tensor(name, BYTES, shape, array=array.reshape(shape)))
    return InferenceRequest("letters", inputs=inputs, **more)


def asks_tokens(**tensors: list[Any]) -> InferenceRequest:
    arrays = {name: np.array(rows, np.int64) for name, rows in tensors.items()}
    return InferenceRequest(
        "letters", inputs=[Tensor(name, INT64, array.shape, array=array) for name, array in arrays.items()]
    )


async def answer(server: InferenceServer, request: InferenceRequest) -> InferenceResponse:
    return await server.infer(request)


def values(response: InferenceResponse, name: str = "embedding") -> np.ndarray:
    return response.output(name).array
