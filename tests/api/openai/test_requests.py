"""What is read of the bodies of OpenAI's requests, and how it is said what is wrong (docs/openai.md#requests)."""

from __future__ import annotations

from typing import Any

import pytest

from trireme.api.openai.errors import FieldError
from trireme.api.openai.requests import all_prompts, read_chat, read_completion, read_embeddings, read_ranking

HELLO = [{"role": "user", "content": "hello"}]
CHAT = {"model": "m", "messages": HELLO}
COMPLETION = {"model": "m", "prompt": "hello"}


def test_a_plain_chat() -> None:
    request = read_chat(CHAT)
    assert (request.model, request.messages, request.choices, request.stream) == ("m", tuple(HELLO), 1, False)
    assert request.sampling.values == {}  # no limit but the model's
    assert all_prompts(request, "p") == ["p"]


def test_everything_that_can_be_asked_for() -> None:
    asked = {
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
        "presence_penalty": 1,
        "frequency_penalty": -1.5,
        "user": "someone",
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
    }
    more = {"stop": "x", "n": 2, "stream": True, "stream_options": {"include_usage": True}}
    rest = {"logit_bias": {"5": -100}, "logprobs": True, "top_logprobs": 3, "max_tokens": 9, "store": True}
    request = read_chat(CHAT | asked | more | rest)
    assert request.sampling.values == asked | {"max_tokens": 9}
    assert (request.sampling.stop, request.choices, request.stream, request.usage) == (("x",), 2, True, True)
    assert (request.sampling.logit_bias, request.sampling.logprobs) == ({"5": -100}, 3)


def test_the_newer_name_of_the_limit_counts() -> None:
    both = {"max_tokens": 5, "max_completion_tokens": 7}
    assert read_chat(CHAT | both).sampling.values == {"max_tokens": 7}
    assert read_completion(COMPLETION).sampling.values == {"max_tokens": 16}  # OpenAI's


def test_null_is_as_nothing() -> None:
    nulls = dict.fromkeys(("temperature", "stop", "n", "stream", "tools", "logit_bias", "stream_options"))
    assert read_chat(CHAT | nulls) == read_chat(CHAT)


def test_values_that_ask_for_nothing_are_not_asked_for() -> None:
    neutral = {"top_p": 1.0, "presence_penalty": 0, "frequency_penalty": 0.0, "temperature": 1}
    assert read_chat(CHAT | neutral).sampling.asks_for() == ["temperature"]


def test_parts_of_a_message_are_one_text() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    request = read_chat({"model": "m", "messages": [{"role": "user", "content": parts, "name": "x"}]})
    assert request.messages == ({"role": "user", "content": "one two", "name": "x"},)


def calling(call: Any) -> dict[str, Any]:
    """A chat in which a tool has been called so."""
    return {"model": "m", "messages": [{"role": "assistant", "tool_calls": [call]}]}


def test_a_call_of_a_tool_needs_no_content() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}]
    request = read_chat(
        {"model": "m", "messages": messages, "tools": [{"type": "function", "function": {"name": "f"}}]}
    )
    assert request.messages is not None
    as_object = {**call, "function": {"name": "f", "arguments": {}}}
    assert (request.messages[1]["content"], request.messages[1]["tool_calls"]) == ("", [as_object])
    assert (request.tools.names, request.tools.most) == ({"f"}, None)
    assert read_chat(CHAT | {"tools": [{"function": {"name": "f"}}], "tool_choice": "none"}).tools.offered == ()
    assert read_chat(CHAT | {"parallel_tool_calls": False}).tools.most == 1


def test_no_prompt_at_all_is_told_what_there_may_be() -> None:
    with pytest.raises(FieldError, match="expected 1 to 128 strings or arrays of tokens, but got 0"):
        read_completion(COMPLETION | {"prompt": []})


def test_choices_of_several_prompts() -> None:
    request = read_completion(COMPLETION | {"prompt": ["a", "b"], "n": 2})
    assert all_prompts(request, "") == ["a", "a", "b", "b"]
    assert all_prompts(read_completion(COMPLETION | {"prompt": [5, 6]}), "") == [[5, 6]]
    assert all_prompts(read_completion(COMPLETION | {"prompt": [[5, 6], [7]]}), "") == [[5, 6], [7]]


WRONG_CHATS: list[tuple[Any, str, str]] = [
    ([], "body", "invalid_type"),
    ({}, "model", "missing_required_parameter"),
    ({"model": 5}, "model", "invalid_type"),
    (CHAT | {"model": ""}, "model", "invalid_value"),
    ({"model": "m"}, "messages", "missing_required_parameter"),
    (CHAT | {"messages": []}, "messages", "invalid_value"),
    (CHAT | {"messages": "hello"}, "messages", "invalid_type"),
    (CHAT | {"messages": ["hello"]}, "messages[0]", "invalid_type"),
    (CHAT | {"messages": [{"content": "x"}]}, "messages[0].role", "missing_required_parameter"),
    (CHAT | {"messages": [{"role": "king", "content": "x"}]}, "messages[0].role", "invalid_value"),
    (CHAT | {"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
    (CHAT | {"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_type"),
    (
        CHAT | {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content[0].type",
        "invalid_value",
    ),
    (CHAT | {"temperature": "hot"}, "temperature", "invalid_type"),
    (CHAT | {"temperature": True}, "temperature", "invalid_type"),
    (CHAT | {"temperature": 2.5}, "temperature", "invalid_value"),
    (CHAT | {"temperature": float("nan")}, "temperature", "invalid_type"),
    (CHAT | {"n": 0}, "n", "invalid_value"),
    (CHAT | {"n": 1.5}, "n", "invalid_type"),
    (CHAT | {"stop": [1]}, "stop[0]", "invalid_type"),
    (CHAT | {"stop": [""]}, "stop", "invalid_value"),
    (CHAT | {"stop": ["x"] * 17}, "stop", "invalid_value"),
    (CHAT | {"stream": "yes"}, "stream", "invalid_type"),
    (CHAT | {"stream_options": {}}, "stream_options", "invalid_value"),
    (CHAT | {"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage", "invalid_type"),
    (CHAT | {"logit_bias": {"x": 1}}, "logit_bias.x", "invalid_value"),
    (CHAT | {"logit_bias": {"1": "x"}}, "logit_bias.1", "invalid_type"),
    (CHAT | {"logit_bias": [1]}, "logit_bias", "invalid_type"),
    (CHAT | {"top_logprobs": 1}, "top_logprobs", "invalid_value"),
    (CHAT | {"modalities": ["audio"]}, "modalities", "unsupported_parameter"),
    (CHAT | {"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
    (CHAT | {"functions": [{"name": "f"}]}, "functions", "unsupported_parameter"),
    (CHAT | {"function_call": "none"}, "function_call", "unsupported_parameter"),
    (CHAT | {"tools": [{"function": {}}]}, "tools[0].function.name", "missing_required_parameter"),
    (CHAT | {"tool_choice": "required"}, "tool_choice", "invalid_value"),
    (calling({}), "messages[0].tool_calls[0].function", "missing_required_parameter"),
    (
        calling({"function": {"arguments": "{}"}}),
        "messages[0].tool_calls[0].function.name",
        "missing_required_parameter",
    ),
    (
        calling({"function": {"name": "f", "arguments": {}}}),
        "messages[0].tool_calls[0].function.arguments",
        "invalid_type",
    ),
    (
        calling({"function": {"name": "f", "arguments": "{"}}),
        "messages[0].tool_calls[0].function.arguments",
        "invalid_value",
    ),
    (
        calling({"function": {"name": "f", "arguments": "[]"}}),
        "messages[0].tool_calls[0].function.arguments",
        "invalid_type",
    ),
    (CHAT | {"max_tokens": 0}, "max_tokens", "invalid_value"),
    (CHAT | {"user": 5}, "user", "invalid_type"),
]


@pytest.mark.parametrize(("body", "param", "code"), WRONG_CHATS, ids=lambda value: str(value)[:40])
def test_what_is_wrong_is_named(body: Any, param: str, code: str) -> None:
    with pytest.raises(FieldError) as caught:
        read_chat(body)
    assert (caught.value.param, caught.value.code) == (param, code)


WRONG_COMPLETIONS: list[tuple[Any, str, str]] = [
    ({"model": "m"}, "prompt", "missing_required_parameter"),
    (COMPLETION | {"prompt": [1, "a"]}, "prompt[1]", "invalid_type"),
    (COMPLETION | {"prompt": [[1], [-1]]}, "prompt[1]", "invalid_value"),
    (COMPLETION | {"prompt": [1, 2], "echo": True}, "echo", "unsupported_parameter"),
    (COMPLETION | {"seed": 2.0**64}, "seed", "invalid_value"),
    (COMPLETION | {"seed": 2.0}, "seed", "invalid_type"),
    (COMPLETION | {"prompt": []}, "prompt", "invalid_value"),
    (COMPLETION | {"prompt": ["a", "b"], "n": 65}, "n", "invalid_value"),
    (COMPLETION | {"best_of": 3}, "best_of", "unsupported_parameter"),
    (COMPLETION | {"suffix": "x"}, "suffix", "unsupported_parameter"),
    (COMPLETION | {"echo": True, "logprobs": 1}, "echo", "unsupported_parameter"),
    (COMPLETION | {"logprobs": True}, "logprobs", "invalid_type"),
]


@pytest.mark.parametrize(("body", "param", "code"), WRONG_COMPLETIONS, ids=lambda value: str(value)[:40])
def test_what_is_wrong_with_completions_is_named(body: Any, param: str, code: str) -> None:
    with pytest.raises(FieldError) as caught:
        read_completion(body)
    assert (caught.value.param, caught.value.code) == (param, code)


def test_embeddings() -> None:
    request = read_embeddings({"model": "m", "input": ["a", "b"], "encoding_format": "base64"}, 2)
    assert (request.model, request.texts, request.base64) == ("m", ("a", "b"), True)
    assert read_embeddings({"model": "m", "input": "a"}, 2).texts == ("a",)
    assert read_embeddings({"model": "m", "input": [5, 6]}, 2).texts == ([5, 6],)
    assert read_embeddings({"model": "m", "input": [[5, 6], [7]]}, 2).texts == ([5, 6], [7])
    for wrong, param in (
        ({"input": ["a"] * 3}, "input"),
        ({"input": [[1]] * 3}, "input"),
        ({"input": []}, "input"),
        ({"input": [1, "a"]}, "input[1]"),
        ({"input": ["a", 1]}, "input[1]"),
        ({"input": [[1], "a"]}, "input[1]"),
        ({"input": [[1, 2.5]]}, "input[0][1]"),
        ({"input": [-1]}, "input"),
        ({"input": {}}, "input"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
    ):
        with pytest.raises(FieldError) as caught:
            read_embeddings({"model": "m", **wrong}, 2)
        assert caught.value.param == param


def test_rankings() -> None:
    request = read_ranking({"model": "m", "query": "q", "documents": ["a", {"text": "b"}]}, 2)
    assert (request.query, request.documents, request.most, request.returns) == ("q", ("a", "b"), 2, True)
    request = read_ranking(
        {"model": "m", "query": "q", "documents": ["a", "b"], "top_n": 1, "return_documents": False}, 2
    )
    assert (request.most, request.returns) == (1, False)
    for wrong, param in (
        ({"query": "q"}, "documents"),
        ({"documents": ["a"]}, "query"),
        ({"query": 1, "documents": ["a"]}, "query"),
        ({"query": "q", "documents": []}, "documents"),
        ({"query": "q", "documents": ["a"] * 3}, "documents"),
        ({"query": "q", "documents": [1]}, "documents[0]"),
        ({"query": "q", "documents": ["a", {}]}, "documents[1].text"),
        ({"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
    ):
        with pytest.raises(FieldError) as caught:
            read_ranking({"model": "m", **wrong}, 2)
        assert caught.value.param == param
