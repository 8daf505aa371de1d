"""What an answer has to be, in the words of OpenAI and vLLM (docs/openai.md#formats)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trireme.api.openai.errors import FieldError
from trireme.api.openai.fields import BodyFields
from trireme.api.openai.formats import read_format
from trireme.api.openai.models import text_model
from trireme.engine.config.model import ModelConfig, ModelInput, ModelOutput
from trireme.engine.datatypes import BYTES
from trireme.engine.description import ModelDescription

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def schema_format(**described: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": described}}


@pytest.mark.parametrize(
    ("body", "param", "given"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format", {"json_object": True}),
        (schema_format(name="x", schema=SCHEMA, strict=True), "response_format", {"json": SCHEMA}),
        (schema_format(name="x"), "response_format", {"json_object": True}),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs", {"regex": "a+"}),
        ({"guided_json": SCHEMA}, "guided_json", {"json": SCHEMA}),
        ({"guided_regex": "a+"}, "guided_regex", {"regex": "a+"}),
        ({"guided_choice": ["a"], "response_format": {"type": "text"}}, "guided_choice", {"choice": ["a"]}),
    ],
)
def test_what_is_asked_for(body: dict[str, Any], param: str, given: dict[str, Any]) -> None:
    found = read_format(BodyFields(body))
    assert found is not None
    assert (found.param, json.loads(found.text)) == (param, given)


@pytest.mark.parametrize("body", [{}, {"response_format": None}, {"response_format": {"type": "text"}}])
def test_any_text(body: dict[str, Any]) -> None:
    assert read_format(BodyFields(body)) is None


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"response_format": "json"}, "response_format", "invalid_type"),
        ({"response_format": {}}, "response_format.type", "missing_required_parameter"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        ({"response_format": {"type": []}}, "response_format.type", "invalid_value"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "missing_required_parameter",
        ),
        (schema_format(schema=SCHEMA), "response_format.json_schema.name", "missing_required_parameter"),
        (schema_format(name="x", schema=[]), "response_format.json_schema.schema", "invalid_type"),
        (schema_format(name="x", strict="yes"), "response_format.json_schema.strict", "invalid_type"),
        ({"structured_outputs": "x"}, "structured_outputs", "invalid_type"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "invalid_value"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "invalid_value"),
    ],
)
def test_what_is_wrong_is_named(body: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(FieldError) as caught:
        read_format(BodyFields(body))
    assert (caught.value.param, caught.value.code) == (param, code)


def test_models_that_know_of_it() -> None:
    tensors: dict[str, Any] = {
        "input": tuple(ModelInput(name, BYTES, (1,), optional=True) for name in ("text_input", "sampling_parameters")),
        "output": (ModelOutput("text_output", BYTES, (-1,)),),
    }
    models: list[tuple[dict[str, Any], str]] = [
        ({}, ""),
        ({"backend": "generation"}, "structured_outputs"),
        ({"backend": "vllm", "parameters": {"openai_formats": "guided_decoding"}}, "guided_decoding"),
    ]
    for about, formats in models:
        config = ModelConfig("m", **tensors, **about)
        assert text_model(ModelDescription("m", 1, (1,), config, {})).formats == formats
