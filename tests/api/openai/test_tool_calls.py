"""Calls of tools in a model's text, however it is cut (docs/openai.md#tools)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.api.openai.tool_calls import CallArguments, CallBegin, CallFormat, ToolCallFinder, shown_format


class ToolCall(NamedTuple):
    """A call, put together."""

    name: str
    arguments: str


NAMES = ("weather", "add")
HERMES, MISTRAL, LLAMA3, JSON = CallFormat.HERMES, CallFormat.MISTRAL, CallFormat.LLAMA3_JSON, CallFormat.JSON
RAIN = ToolCall("weather", '{"city": "Köln"}')
SUM = ToolCall("add", '{"terms": [1, {"of": "}]"}]}')
QUOTED = '{"a": "</tool_call>\\""}'
RAIN_TEXT = '{"name": "weather", "arguments": {"city": "Köln"}}'
SUM_TEXT = '{"name": "add", "parameters": {"terms": [1, {"of": "}]"}]}}'


def found(form: CallFormat, pieces: Sequence[str], most: int | None = None) -> list[str | ToolCall]:
    """What is handed on, texts beside each other put together."""
    finder = ToolCallFinder(form, frozenset(NAMES), most)
    parts = [part for piece in pieces for part in finder.take(piece)] + finder.end()
    assert all(part if isinstance(part, str) else part[0] for part in parts), "nothing that is empty"
    whole: list[str | ToolCall] = []
    for part in parts:
        last = whole[-1] if whole else None
        if isinstance(part, CallBegin):
            whole.append(ToolCall(part.name, ""))
        elif isinstance(part, CallArguments):
            assert isinstance(last, ToolCall)
            whole[-1] = ToolCall(last.name, last.arguments + part.text)
        elif isinstance(last, str):
            whole[-1] = last + part
        else:
            whole.append(part)
    assert finder.count == sum(isinstance(part, ToolCall) for part in whole)
    return whole


CASES: list[tuple[CallFormat, str, Any]] = [
    (HERMES, " Just text. \n", [" Just text. \n"]),
    (HERMES, f"<tool_call>\n{RAIN_TEXT}\n</tool_call>", [RAIN]),
    (HERMES, f"Hm.\n\n<tool_call>{RAIN_TEXT}</tool_call>\n<tool_call>{SUM_TEXT}</tool_call>\n", ["Hm.", RAIN, SUM]),
    (HERMES, f"<tool_call>{RAIN_TEXT}", [RAIN]),
    (HERMES, f"<tool_call>{RAIN_TEXT} and more", [RAIN, "and more"]),
    (HERMES, f"<tool_call>{RAIN_TEXT}</tool_ca", [RAIN]),
    (HERMES, f"<tool_call>[{RAIN_TEXT}, {SUM_TEXT}]</tool_call>", [RAIN, SUM]),
    (HERMES, '<tool_call>{"name": "add"}</tool_call>', [ToolCall("add", "{}")]),
    (HERMES, '<tool_call>{"name": "add"}</too.', [ToolCall("add", "{}"), "</too."]),
    (HERMES, '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', [ToolCall("add", '{"a": 1}')]),
    (HERMES, '<tool_call>{"name": "cook", "arguments": {}}</tool_call>', ...),
    (HERMES, '<tool_call>{"name": "add", "arguments": [1]}</tool_call>', ...),
    (HERMES, '<tool_call>{"name": "add", "arguments": "no"}</tool_call>', ...),
    (HERMES, '<tool_call>{"name": ["add"]}</tool_call>', ...),
    (HERMES, "<tool_call>{'name': 'add'}</tool_call>", ...),
    (HERMES, '<tool_call>{"name": "add", "arguments": {"a"', [ToolCall("add", '{"a"')]),
    (HERMES, '<tool_call>{"name": "add", "arguments": {"a": "\\', [ToolCall("add", '{"a": "\\')]),
    (HERMES, '<tool_call>{"name": "add", "arguments": {}, "id": [{}]}</tool_call>.', [ToolCall("add", "{}"), "."]),
    (HERMES, '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>', [ToolCall("add", '{"a": 1}')]),
    (HERMES, '<tool_call>{"arguments": {"a": 1}, "name": "add"', ...),
    (HERMES, f'<tool_call>[{RAIN_TEXT}, {{"name": "cook"}}]</tool_call>', [RAIN, ', {"name": "cook"}]</tool_call>']),
    (HERMES, "<tool_call> add", ...),
    (HERMES, "<tool_call>", ...),
    (HERMES, "a < b <tool", ...),
    (HERMES, f"<tool_call>no</tool_call> <tool_call>{RAIN_TEXT}</tool_call>", ["<tool_call>no</tool_call>", RAIN]),
    (HERMES, f'<tool_call>{{"name": "add", "arguments": {QUOTED}}}</tool_call>', [ToolCall("add", QUOTED)]),
    (HERMES, RAIN_TEXT, ...),
    (MISTRAL, f"[TOOL_CALLS] [{RAIN_TEXT}, {SUM_TEXT}]", [RAIN, SUM]),
    (MISTRAL, 'So: [TOOL_CALLS]weather[ARGS]{"city": "Köln"}', ["So:", RAIN]),
    (MISTRAL, '[TOOL_CALLS]weather[CALL_ID]a1b2[ARGS]{"city": "Köln"}[TOOL_CALLS]add{}', [RAIN, ToolCall("add", "{}")]),
    (MISTRAL, "[TOOL_CALLS]cook{}", ...),
    (MISTRAL, "[TOOL_CALLS] what to do", ...),
    (MISTRAL, "[TOOL_CALLS] what to do {}", ...),
    (MISTRAL, f"[TOOL_CALLS]{'x' * 300}{{}}", ...),
    (MISTRAL, f"[TOOL_CALLS]{' ' * 300}{{}}", ...),
    (LLAMA3, f"\n{SUM_TEXT}", [SUM]),
    (LLAMA3, f"<|python_tag|>{RAIN_TEXT}; {SUM_TEXT}", [RAIN, SUM]),
    (LLAMA3, f"{RAIN_TEXT}\n{SUM_TEXT} ;", [RAIN, SUM, ";"]),
    (LLAMA3, f"Hm. {RAIN_TEXT}", ...),
    (LLAMA3, '{"answer": 42}', ...),
    (LLAMA3, "<|python_tag|>print(1)", ...),
    (LLAMA3, "; {}", ...),
    (JSON, f"[{RAIN_TEXT}, {SUM_TEXT}]", [RAIN, SUM]),
    (JSON, f" {RAIN_TEXT} ", [RAIN]),
    (JSON, "[]", ...),
    (JSON, "[[[[", ...),
]  # fmt: skip
"""Format, text, and what is found; `...` for the text as it is."""


@pytest.mark.parametrize(("form", "text", "expected"), CASES)
def test_what_is_found_at_once_and_letter_by_letter(form: CallFormat, text: str, expected: Any) -> None:
    expected = [text] if expected is ... else expected
    assert found(form, [text]) == expected
    assert found(form, list(text)) == expected


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=3)
CALLS = st.tuples(st.sampled_from(NAMES), ARGUMENTS)


def written(form: CallFormat, call: tuple[str, Any], *, ascii_only: bool, named: bool) -> str:
    name, arguments = call
    text = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=ascii_only)
    if form is HERMES:
        return f"<tool_call>\n{text}\n</tool_call>\n"
    if form is MISTRAL:
        return f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments)}" if named else f"[TOOL_CALLS][{text}]"
    return f"{text}; " if form is LLAMA3 else text


def cut(text: str, places: list[int]) -> list[str]:
    borders = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[begin:end] for begin, end in pairwise(borders)]


@given(
    form=st.sampled_from(list(CallFormat)),
    calls=st.lists(CALLS, max_size=3),
    ascii_only=st.booleans(),
    named=st.booleans(),
    places=st.lists(st.integers(0, 10_000), max_size=8),
)
def test_calls_that_are_written_are_found(
    form: CallFormat, calls: list[tuple[str, Any]], ascii_only: bool, named: bool, places: list[int]
) -> None:
    text = "".join(written(form, call, ascii_only=ascii_only, named=named) for call in calls)
    parts = found(form, cut(text.removesuffix("; "), places))
    assert all(isinstance(part, ToolCall) for part in parts)
    assert [(part[0], json.loads(part[1])) for part in parts] == calls


FRAGMENTS = st.sampled_from(
    (
        *("<tool_call>", "</tool_call>", "<tool", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]x", "<|python_tag|>"),
        *(
            RAIN_TEXT,
            SUM_TEXT,
            '{"name": "cook"}',
            "{",
            "}",
            "[",
            "]",
            '"',
            "\\",
            ";",
            ",",
            " ",
            "\n",
            "add",
            "weather",
            "text",
        ),
    )
)


@given(
    form=st.sampled_from(list(CallFormat)),
    fragments=st.lists(FRAGMENTS | st.text(max_size=3), max_size=12),
    places=st.lists(st.integers(0, 10_000), max_size=12),
)
def test_what_is_found_does_not_depend_on_the_pieces(form: CallFormat, fragments: list[str], places: list[int]) -> None:
    text = "".join(fragments)
    parts = found(form, [text])
    assert found(form, cut(text, places)) == parts
    if not any(isinstance(part, ToolCall) for part in parts):
        assert "".join(map(str, parts)) == text


def test_no_more_calls_than_are_wanted() -> None:
    text = f"<tool_call>{RAIN_TEXT}</tool_call><tool_call>{SUM_TEXT}</tool_call>"
    assert found(HERMES, [text], most=1) == [RAIN]


def test_a_call_that_is_to_be_there_as_a_whole_and_is_too_long_is_text() -> None:
    finder = ToolCallFinder(HERMES, frozenset(NAMES))
    begin = '<tool_call>{"arguments": {"a": "'
    assert finder.take(begin) == []
    piece = "x" * (1 << 18)
    parts = [part for _ in range(8) for part in finder.take(piece)]
    assert "".join(map(str, parts)) == begin + piece * 8


def test_arguments_come_as_they_are_written() -> None:
    finder = ToolCallFinder(HERMES, frozenset(NAMES))
    assert finder.take('Let me see. <tool_call>\n{"name": "weather", "argu') == ["Let me see."]
    assert finder.take('ments": {"ci') == [CallBegin("weather"), CallArguments('{"ci')]
    assert finder.take('ty": "K\\') == [CallArguments('ty": "K')]
    assert finder.take("u00f6ln}") == [CallArguments("\\u00f6ln}")]
    assert finder.take('"') == [CallArguments('"')]
    assert finder.take("}") == [CallArguments("}")]
    assert finder.take("}\n</tool_call>") == []
    assert finder.end() == []


def test_the_format_is_seen_in_the_template() -> None:
    assert shown_format("{{ '<tool_call>' }}") is HERMES
    assert shown_format("[TOOL_CALLS]") is MISTRAL
    assert shown_format("<|python_tag|>") is LLAMA3
    assert shown_format("{{ messages }}") is None
