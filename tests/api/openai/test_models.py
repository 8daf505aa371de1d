"""Which models OpenAI's clients can use, by their tensors or by their parameters (docs/openai.md#models)."""

from __future__ import annotations

from typing import Any

import pytest

from trireme.api.openai.models import (
    EmbeddingModel,
    TextModel,
    embedding_model,
    ranking_model,
    served_model,
    text_model,
)
from trireme.engine.config.model import ModelConfig, ModelInput, ModelOutput
from trireme.engine.datatypes import BOOL, BYTES, FP32, INT64, UINT32
from trireme.engine.description import ModelDescription
from trireme.engine.errors import NotFoundError

VLLM_INPUTS = (
    ModelInput("text_input", BYTES, (1,)),
    ModelInput("stream", BOOL, (1,), optional=True),
    ModelInput("sampling_parameters", BYTES, (1,), optional=True),
    ModelInput("return_finish_reason", BOOL, (1,), optional=True),
)
VLLM_OUTPUTS = (ModelOutput("text_output", BYTES, (-1,)), ModelOutput("num_output_tokens", UINT32, (1,)))


def described(name: str = "m", **fields: object) -> ModelDescription:
    return ModelDescription(name, 1, (1,), ModelConfig(name, **fields), {})  # type: ignore[arg-type]


def test_the_tensors_of_the_vllm_backend_are_known() -> None:
    model = text_model(described(input=VLLM_INPUTS, output=VLLM_OUTPUTS))
    assert model.parameters is None
    assert model.shapes == {each.name: (1,) for each in VLLM_INPUTS}
    batched = text_model(described(input=VLLM_INPUTS, output=VLLM_OUTPUTS, max_batch_size=4))
    assert batched.shapes["text_input"] == (1, 1)
    assert model.token_dims is None
    tokens = ModelInput("input_ids", INT64, (-1,), optional=True)
    assert text_model(described(input=(*VLLM_INPUTS, tokens), output=VLLM_OUTPUTS)).token_dims == ()


def test_any_other_model_says_what_its_tensors_are() -> None:
    model = served_model(
        described(
            input=(ModelInput("PROMPT", BYTES, (-1,)), ModelInput("EXTRA", FP32, (3,), optional=True)),
            output=(ModelOutput("TEXT", BYTES, (1,)),),
            parameters={
                "openai_text_input": "PROMPT",
                "openai_text_output": "TEXT",
                "openai_parameters": '{"max_tokens": "length"}',
            },
        )
    )
    assert isinstance(model, TextModel)
    assert (model.text_input, model.text_output, model.shapes) == ("PROMPT", "TEXT", {"PROMPT": (1,)})
    assert model.parameters == {"max_tokens": "length"}


def test_a_model_for_embeddings() -> None:
    model = served_model(
        described(
            input=(ModelInput("TEXT", BYTES, (1,)),),
            output=(ModelOutput("VECTOR", FP32, (8,)),),
            parameters={"openai_text_input": "TEXT", "openai_embeddings_output": "VECTOR"},
        )
    )
    assert isinstance(model, EmbeddingModel)
    with pytest.raises(NotFoundError, match="generates no text"):
        text_model(model.description)


ENCODER = (
    ModelInput("text_input", BYTES, (1,), optional=True),
    ModelInput("text_pair", BYTES, (1,), optional=True),
    ModelInput("input_ids", INT64, (-1,), optional=True),
)
COUNT = ModelOutput("num_tokens", UINT32, (1,))


def test_encoders_are_known_by_their_tensors() -> None:
    model = embedding_model(described(input=ENCODER, output=(ModelOutput("embedding", FP32, (8,)), COUNT)))
    assert (model.text_input, model.output, model.token_dims, model.counts) == ("text_input", "embedding", (), True)
    with pytest.raises(NotFoundError, match="ranks no texts: it is for embeddings"):
        ranking_model(model.description)
    ranking = ranking_model(described(input=ENCODER, output=(ModelOutput("score", FP32, (1,)), COUNT)))
    assert ranking.shape == (1,)
    with pytest.raises(NotFoundError, match="generates no text: it ranks texts"):
        text_model(ranking.description)
    with pytest.raises(NotFoundError, match="gives no embeddings"):
        embedding_model(ranking.description)
    labels = described(input=ENCODER, output=(ModelOutput("scores", FP32, (3,)), COUNT))
    with pytest.raises(NotFoundError, match="no inputs 'text_input' and 'sampling_parameters'"):
        served_model(labels)


TEXT = {"openai_text_input": "text_input"}
ONE = (ModelInput("text_input", BYTES, (1,)),)
OUT = (ModelOutput("text_output", BYTES, (1,)),)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "no inputs 'text_input' and 'sampling_parameters'"),
        ({"input": VLLM_INPUTS}, "no output 'text_output' of type BYTES"),
        ({"input": ONE, "parameters": TEXT}, "no output 'text_output'"),
        ({"output": OUT, "parameters": TEXT}, "no input 'text_input'"),
        ({"input": (*ONE, ModelInput("X", FP32, (1,))), "output": OUT, "parameters": TEXT}, "needs an input 'X'"),
        (
            {"input": (ModelInput("text_input", FP32, (1,)),), "output": OUT, "parameters": TEXT},
            "not one element of type",
        ),
        (
            {"input": (ModelInput("text_input", BYTES, (2,)),), "output": OUT, "parameters": TEXT},
            "not one element of type",
        ),
        ({"input": ONE, "output": OUT, "parameters": TEXT | {"openai_parameters": "[]"}}, "no JSON object"),
        ({"input": ONE, "output": OUT, "parameters": TEXT | {"openai_parameters": "{"}}, "no JSON object"),
        ({"input": ONE, "output": OUT, "parameters": TEXT | {"openai_parameters": '{"x": "y"}'}}, "names 'x'"),
        ({"input": ONE, "output": OUT, "parameters": {"openai_embeddings_output": "text_output"}}, "of type FP32"),
    ],
)
def test_why_a_model_cannot_be_used(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotFoundError, match=reason):
        served_model(described(**fields))
