"""A tool has to be called: what is generated is a call of it, whatever the network would say."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from constrained_texts import ENDING, AtOnce, generated, tokenizer_with
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.api.openai.errors import FieldError
from trireme.api.openai.fields import BodyFields
from trireme.api.openai.forced_calls import forced_format
from trireme.api.openai.models import text_model
from trireme.api.openai.tool_calls import CallFormat, ToolCallFinder, whole_calls
from trireme.api.openai.tools import AskedTools, read_tools
from trireme.engine.backends.generation.asked_constraints import read_constraint
from trireme.engine.backends.generation.constraints import Constraints
from trireme.engine.config.chat import ChatTemplate
from trireme.engine.config.model import ModelConfig, ModelInput, ModelOutput
from trireme.engine.datatypes import BYTES
from trireme.engine.description import ModelDescription

CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"enum": ["Köln", "Oslo"]}}, "required": ["city"]}
CITY["additionalProperties"] = False
SUM: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/digit"}, "b": {"$ref": "#/$defs/digit"}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"digit": {"type": "integer", "minimum": 0, "maximum": 9}},
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "add", "parameters": SUM}},
    {"type": "function", "function": {"name": "now"}},
]
SCHEMAS: dict[str, dict[str, Any]] = {"weather": CITY, "add": SUM, "now": {"type": "object", "maxProperties": 0}}
MARKS = ("[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<tool_call>", "</tool_call>")


def asked(**body: Any) -> AskedTools:
    return read_tools(BodyFields({"tools": TOOLS, **body}))


def model(backend: str = "generation", template: str = "") -> Any:
    inputs = tuple(ModelInput(name, BYTES, (1,), optional=True) for name in ("text_input", "sampling_parameters"))
    config = ModelConfig("m", backend=backend, input=inputs, output=(ModelOutput("text_output", BYTES, (-1,)),))
    return text_model(ModelDescription("m", 1, (1,), config, {}, chat=ChatTemplate(template)))


@pytest.fixture(scope="module", params=["bytes", "marks"])
def constraints(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Constraints:
    """Of a tokenizer whose tokens are bytes, and of one that has tokens for marks as well."""
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    return tokenizer_with(folder, MARKS if request.param == "marks" else ())


CALLS = st.sampled_from(("required", "weather", "add", "now"))


@settings(deadline=None, max_examples=60)
@given(
    form=st.sampled_from(list(CallFormat)),
    named=st.booleans(),
    choice=CALLS,
    several=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_whatever_is_drawn_is_a_call(
    constraints: Constraints, form: CallFormat, named: bool, choice: str, several: bool, seed: int
) -> None:
    body: Any = choice if choice == "required" else {"type": "function", "function": {"name": choice}}
    tools = asked(tool_choice=body, parallel_tool_calls=several)
    template = "[TOOL_CALLS]name[ARGS]" if named else "[TOOL_CALLS]"
    what = forced_format(tools, model(template=template), form)
    constraint = read_constraint("structured_outputs", json.loads(what.text))
    assert constraint is not None
    read = None if constraints.known(constraint) else constraints.read(constraint, AtOnce())
    (text,) = constraints.begin(constraint, read, 1, (ENDING,), ())
    said = generated(constraints, text, random.Random(seed), most=2000)
    finder = ToolCallFinder(form, tools.names, tools.most)
    parts = finder.take(said) + finder.end()
    calls = whole_calls(parts)
    assert not any(isinstance(part, str) for part in parts), said
    assert calls
    assert len(calls) == 1 or (several and choice == "required")
    for name, arguments in calls:
        assert choice in (name, "required")
        jsonschema_rs.validate(SCHEMAS[name], json.loads(arguments))


def test_marks_that_are_tokens_come_as_these(tmp_path: Path) -> None:
    constraints = tokenizer_with(tmp_path, MARKS)
    tools = asked(tool_choice={"type": "function", "function": {"name": "now"}})
    constraint = read_constraint(
        "structured_outputs", json.loads(forced_format(tools, model(), CallFormat.HERMES).text)
    )
    assert constraint is not None
    (text,) = constraints.begin(constraint, constraints.read(constraint, AtOnce()), 1, (), ())
    assert text.allowed.nonzero()[0].tolist() == [constraints._tokenizer.added["<tool_call>"]]


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"tool_choice": "maybe"}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "function"}}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "function", "function": {"name": "cook"}}}, "tool_choice", "invalid_value"),
        ({"tool_choice": "required", "tools": []}, "tool_choice", "invalid_value"),
        ({"tools": [{"function": {"name": "a", "parameters": []}}]}, "tools[0].function.parameters", "invalid_type"),
    ],
)
def test_what_is_no_choice(body: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(FieldError) as caught:
        asked(**body)
    assert (caught.value.param, caught.value.code) == (param, code)


def test_who_cannot_be_made_to_call(tmp_path: Path) -> None:
    tools = asked(tool_choice="required")
    with pytest.raises(FieldError, match="it is not known how the model 'm' writes calls") as caught:
        forced_format(tools, model(), None)
    assert (caught.value.param, caught.value.code) == ("tool_choice", "unsupported_parameter")
    with pytest.raises(FieldError, match="cannot be told what its text has to be") as caught:
        forced_format(tools, model("vllm"), CallFormat.HERMES)
    assert (caught.value.param, caught.value.code) == ("tool_choice", "unsupported_parameter")
    numbers: list[Any] = [{"type": "function", "function": {"name": "add", "parameters": {"type": "array"}}}]
    with pytest.raises(FieldError, match="expected a schema for an object") as caught:
        forced_format(asked(tools=numbers, tool_choice="required"), model(), CallFormat.HERMES)
    assert caught.value.param == "tools[0].function.parameters"
    strange = [{"type": "function", "function": {"name": "a b"}}]
    with pytest.raises(FieldError, match="expected letters, digits") as caught:
        forced_format(
            asked(tools=strange, tool_choice="required"), model(template="[TOOL_CALLS][ARGS]"), CallFormat.MISTRAL
        )
    assert caught.value.param == "tools[0].function.name"
