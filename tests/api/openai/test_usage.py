"""What tokens an answer has taken, by what its model tells."""

from __future__ import annotations

import numpy as np

from trireme.api.openai.answers import usage_of
from trireme.api.openai.inference import new_choice, take_response
from trireme.api.openai.models import text_model
from trireme.api.openai.requests import AskedSampling
from trireme.engine.config.model import ModelConfig, ModelInput, ModelOutput
from trireme.engine.datatypes import BYTES, UINT32
from trireme.engine.description import ModelDescription
from trireme.engine.request import InferenceResponse
from trireme.engine.tensor import Tensor

CONFIG = ModelConfig(
    "m",
    backend="python",
    input=(ModelInput("IN", BYTES, (1,)),),
    output=(ModelOutput("OUT", BYTES, (1,)),),
    parameters={"openai_text_input": "IN", "openai_text_output": "OUT"},
)


def response(text: str, **counts: int) -> InferenceResponse:
    outputs = [Tensor("OUT", BYTES, (1,), array=np.array([text.encode()], object))]
    outputs += [Tensor(name, UINT32, (1,), array=np.array([count], np.uint32)) for name, count in counts.items()]
    return InferenceResponse("m", 1, "", outputs)


def used(*responses: InferenceResponse) -> tuple[int, int]:
    model = text_model(ModelDescription("m", 1, (1,), CONFIG, {}))
    choice = new_choice(model, AskedSampling({}))
    for each in responses:
        take_response(model, choice, each)
    choice.end()
    usage = usage_of([choice], 1)
    return usage["prompt_tokens"], usage["completion_tokens"]


def test_a_model_of_any_kind_may_count_its_tokens() -> None:
    assert used(response("a"), response("b"), response("c")) == (0, 3), "pieces of text"
    told = {"num_input_tokens": 7, "num_output_tokens": 2}
    assert used(response("a", **told), response("b", **told)) == (7, 4)
    assert used(response("a", num_input_tokens=7), response("b")) == (7, 2)
