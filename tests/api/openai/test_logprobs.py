"""Log-probabilities in both forms in which models give them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from trireme.api.openai.answers import chat_logprobs, completion_logprobs
from trireme.api.openai.inference import take_logprobs
from trireme.engine.datatypes import BYTES
from trireme.engine.request import InferenceResponse
from trireme.engine.tensor import Tensor

VLLM = [{"5": {"logprob": -0.5, "decoded_token": "é"}, "6": {"logprob": -0.25, "decoded_token": "x"}}]
TOP = [{"id": 6, "token": "x", "logprob": -0.25}, {"id": 5, "token": "é", "logprob": -0.5}]
GENERATION = [{"id": 5, "token": "é", "logprob": -0.5, "top": TOP}]


@pytest.mark.parametrize("given", [VLLM, GENERATION])
def test_the_chosen_token_and_the_likeliest(given: object) -> None:
    tensor = Tensor("logprobs", BYTES, (1,), array=np.array([json.dumps(given).encode()], object))
    positions = take_logprobs(InferenceResponse("m", 1, "", [tensor]))
    (token,) = chat_logprobs(positions, 2)["content"]
    assert (token["token"], token["logprob"], token["bytes"]) == ("é", -0.5, [0xC3, 0xA9])
    assert [each["token"] for each in token["top_logprobs"]] == ["x", "é"]
    assert completion_logprobs(positions, 1, 7) == {
        "tokens": ["é"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{"x": -0.25}],
        "text_offset": [7],
    }
