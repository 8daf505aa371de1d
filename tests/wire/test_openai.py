"""OpenAI's own client, and raw HTTP, against a running server (docs/openai.md)."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from beside_one_process import wait_until
from openai_models import write_openai_models
from ruled_server import key_of, rules_text
from serve_process import PATIENCE_S, GatewayProcess, ServeProcess, serve_process, write_fleet

ROOT = Path(__file__).parents[2]
HELLO: list[Any] = [{"role": "user", "content": "one two three"}]


def openai_port(server: ServeProcess) -> int:
    return int(server.wait_for(r"Started OpenAI HTTPService at 127\.0\.0\.1:(\d+)")[1])


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_openai_models(folder)
    (folder / "storyteller").symlink_to(ROOT / "model_repository" / "storyteller")
    return folder


@pytest.fixture(scope="module", params=["port", "http", "front-end", "gateway"])
def address(request: pytest.FixtureRequest, served: dict[str, Any]) -> tuple[str, int]:
    return "127.0.0.1", served[request.param]


@pytest.fixture(scope="module")
def served(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Ports: OpenAI's own, that of HTTP in one process, that of a front end in a process of its own, and OpenAI's own
    of a gateway in front of both servers."""
    fleet = tmp_path_factory.mktemp("fleet") / "fleet.toml"
    flags = ("--openai-on-http=true", "--http-port=0", "--grpc-port=0", "--metrics-port=0", "--log-verbose=1")
    with (
        serve_process(repository, *flags, "--openai-port=0", "--http-max-input-size=100000") as one,
        serve_process(repository, *flags, "--front-ends=1", "--http-max-input-size=100000") as two,
    ):
        write_fleet(fleet, one=one.grpc_port, two=two.grpc_port)
        with GatewayProcess(fleet, "--openai-port=0", "--http-max-input-size=100000", "--log-verbose=1") as gateway:
            for name in ("one", "two"):
                gateway.wait_for(f"replica {name} at .*: ready")
            yield {
                "port": openai_port(one),
                "http": one.http_port,
                "front-end": two.http_port,
                "gateway": openai_port(gateway),
                "one": one,
                "two": two,
            }


@pytest.fixture
def client(address: tuple[str, int]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{address[0]}:{address[1]}/v1", api_key="none", max_retries=0) as client:
        yield client


def post(address: tuple[str, int], path: str, body: Any, method: str = "POST", **headers: str) -> tuple[int, Any, Any]:
    """Status, headers and JSON of an answer."""
    connection = http.client.HTTPConnection(*address, timeout=PATIENCE_S)
    try:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        return response.status, response.headers, json.loads(response.read())
    finally:
        connection.close()


def test_models(client: openai.OpenAI) -> None:
    models = list(client.models.list())
    assert [model.id for model in models] == ["echo", "doll", "sheep", "lengths", "storyteller"]
    assert [getattr(model, "parent", None) for model in models] == [None, "echo", "echo", None, None]
    assert client.models.retrieve("echo").owned_by == "trireme"
    with pytest.raises(openai.NotFoundError, match="cannot be used by this interface: it has no inputs"):
        client.models.retrieve("identity")


def test_a_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="echo", messages=HELLO)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == (
        "assistant",
        "one two three say",
        "stop",
    )
    assert answer.usage is not None
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (4, 4, 8)
    limited = client.chat.completions.create(model="echo", messages=HELLO, max_completion_tokens=2, n=2)
    assert [(each.message.content, each.finish_reason) for each in limited.choices] == [("one two", "length")] * 2


def test_a_chat_as_it_comes(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    stream = client.chat.completions.create(model="echo", messages=HELLO, stream=True, stream_options=options)
    *pieces, end, usage = list(stream)
    assert pieces[0].choices[0].delta.role == "assistant"
    assert [piece.choices[0].delta.content for piece in pieces] == ["", "one ", "two ", "three ", "say"]
    assert end.choices[0].finish_reason == "stop"
    assert (usage.choices, usage.usage and usage.usage.total_tokens) == ([], 8)
    assert len({piece.id for piece in (*pieces, end, usage)}) == 1


def test_without_waiting(address: tuple[str, int]) -> None:
    """The asynchronous client, many chats at a time."""

    async def chat(client: openai.AsyncOpenAI, number: int) -> str:
        messages: list[Any] = [{"role": "user", "content": f"number {number}"}]
        stream = await client.chat.completions.create(model="echo", messages=messages, stream=True)
        return "".join([piece.choices[0].delta.content or "" async for piece in stream])

    async def all_chats() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{address[1]}/v1", api_key="none") as client:
            return await asyncio.gather(*[chat(client, number) for number in range(20)])

    assert asyncio.run(all_chats()) == [f"number {number} say" for number in range(20)]


def test_tools_reach_the_template(client: openai.OpenAI) -> None:
    tools: list[Any] = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    answer = client.chat.completions.create(model="echo", messages=HELLO, tools=tools)
    assert answer.choices[0].message.content == "one two three weather say"
    messages: list[Any] = [{"role": "tool", "content": "rain", "tool_call_id": "1"}]
    with pytest.raises(openai.BadRequestError, match="tools have no say here") as caught:
        client.chat.completions.create(model="echo", messages=messages)
    assert caught.value.param == "messages"


def test_calls_of_tools(client: openai.OpenAI) -> None:
    tools: list[Any] = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    calls = "".join(
        f'<tool_call>{{"name": "weather", "arguments": {{"city": "{city}"}}}}</tool_call> ' for city in ("Rome", "Oslo")
    )
    messages: list[Any] = [{"role": "user", "content": f"let me see {calls.rstrip()}"}]
    asked: dict[str, Any] = {"model": "echo", "messages": messages, "tools": tools}
    (choice,) = client.chat.completions.create(**asked, max_completion_tokens=3).choices
    assert (choice.finish_reason, choice.message.content) == ("length", "let me see")
    (choice,) = client.chat.completions.create(**asked).choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "let me see weather say")
    made = choice.message.tool_calls or []
    assert [(each.type, each.function.name, each.function.arguments) for each in made if each.type == "function"] == [
        ("function", "weather", '{"city": "Rome"}'),
        ("function", "weather", '{"city": "Oslo"}'),
    ]
    assert len({each.id for each in made}) == 2
    text, calls, reason = "", [], None
    for chunk in client.chat.completions.create(**asked, stream=True, logprobs=True):
        text += chunk.choices[0].delta.content or ""
        calls += chunk.choices[0].delta.tool_calls or []
        reason = chunk.choices[0].finish_reason
    assert (text, reason) == ("let me see weather say", "tool_calls")
    assert [(each.index, each.function and (each.function.name, each.function.arguments)) for each in calls] == [
        *((0, ("weather", "")), (0, (None, '{"city": ')), (0, (None, '"Rome"}'))),
        *((1, ("weather", "")), (1, (None, '{"city": ')), (1, (None, '"Oslo"}'))),
    ]
    assert [bool(each.id) for each in calls] == [True, False, False] * 2
    with client.chat.completions.stream(**asked) as stream:
        made = stream.get_final_completion().choices[0].message.tool_calls or []
    assert [each.function.arguments for each in made if each.type == "function"] == [
        '{"city": "Rome"}',
        '{"city": "Oslo"}',
    ]
    (choice,) = client.chat.completions.create(**asked, parallel_tool_calls=False).choices
    assert len(choice.message.tool_calls or []) == 1
    (choice,) = client.chat.completions.create(**asked, tool_choice="none").choices
    assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
    assert (choice.message.content or "").startswith("let me see <tool_call>")


def test_the_model_gets_vllms_names(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "logit_bias": {"7": -100},
        "stop": ["END"],
    }
    extra = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.5}
    answer = client.completions.create(model="echo", prompt="settings", n=2, user="me", extra_body=extra, **asked)
    given = [json.loads(choice.text) for choice in answer.choices]
    assert given == [asked | extra, asked | extra | {"seed": 4}]


def test_adapters_are_models_of_their_own(client: openai.OpenAI) -> None:
    doll: Any = client.models.retrieve("doll")
    assert (doll.id, doll.parent, doll.root) == ("doll", "echo", "echo")
    assert client.models.retrieve("echo:sheep").id == "echo:sheep"
    answer = client.completions.create(model="doll", prompt="settings")
    assert (answer.model, json.loads(answer.choices[0].text)["lora_name"]) == ("doll", "doll")
    assert "lora_name" not in json.loads(client.completions.create(model="echo", prompt="settings").choices[0].text)
    stream = client.chat.completions.create(model="echo:sheep", messages=HELLO, stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in stream) == "one two three say"
    for name in ("cat", "echo:cat", "lengths:doll"):
        with pytest.raises(openai.NotFoundError) as caught:
            client.completions.create(model=name, prompt="a")
        assert caught.value.code == "model_not_found"


def test_the_model_is_told_what_its_text_has_to_be(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "settings"}]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    answer = client.completions.create(model="echo", prompt="settings", extra_body={"response_format": form})
    assert json.loads(json.loads(answer.choices[0].text)["structured_outputs"]) == {"json": schema}
    with pytest.raises(openai.BadRequestError, match="'response_format' is not supported with the model") as caught:
        client.chat.completions.create(model="storyteller", messages=messages, response_format={"type": "json_object"})
    assert (caught.value.param, caught.value.code) == ("response_format", "unsupported_parameter")


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="echo", prompt=["a b", "c d"], max_tokens=1, n=2, echo=True)
    assert [choice.text for choice in answer.choices] == ["a ba"] * 2 + ["c dc"] * 2
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 4)
    stream = client.completions.create(model="echo", prompt=["a b", "c"], stream=True)
    texts = ["", ""]
    for piece in stream:
        texts[piece.choices[0].index] += piece.choices[0].text
    assert texts == ["a b", "c"]


def test_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="echo", messages=HELLO, logprobs=True, top_logprobs=2, max_tokens=1)
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    (token,) = found.content
    assert (token.token, token.logprob, [each.token for each in token.top_logprobs]) == ("one", -0.5, ["one", "x"])
    pieces = list(client.completions.create(model="echo", prompt="a b", logprobs=1, stream=True))
    given = [piece.choices[0].logprobs for piece in pieces if piece.choices[0].logprobs is not None]
    assert [(each.tokens, each.text_offset) for each in given] == [(["a "], [0]), (["b"], [2])]


def test_embeddings(client: openai.OpenAI) -> None:
    for form in ({}, {"encoding_format": "float"}):  # the client asks for base64 by itself
        answer = client.embeddings.create(model="lengths", input=["a", "four"], **form)  # type: ignore[arg-type]
        assert np.array([each.embedding for each in answer.data]).tolist() == [[1.0, 0.5], [4.0, 0.5]]
    answer = client.embeddings.create(model="lengths", input=["four", "five"], dimensions=1)
    assert answer.data[0].embedding == [1.0]
    assert answer.usage.prompt_tokens == 6, "as the model counts"
    with pytest.raises(openai.BadRequestError, match="expected at most 2, which the model 'lengths' has") as caught:
        client.embeddings.create(model="lengths", input="four", dimensions=3)
    assert caught.value.param == "dimensions"
    with pytest.raises(openai.NotFoundError, match="gives no embeddings"):
        client.embeddings.create(model="echo", input="a")
    with pytest.raises(openai.NotFoundError, match="generates no text"):
        client.completions.create(model="lengths", prompt="a")


def test_any_decoupled_model_with_texts(client: openai.OpenAI) -> None:
    """The storyteller of the model repository: what a request says becomes its parameters."""
    asked: dict[str, Any] = {
        "model": "storyteller",
        "messages": [{"role": "user", "content": "Once upon a time"}],
        "seed": 1,
    }
    story = client.chat.completions.create(**asked, temperature=0)
    again = "".join(
        [
            each.choices[0].delta.content or ""
            for each in client.chat.completions.create(**asked, temperature=0, stream=True)
        ]
    )
    assert (story.choices[0].message.content, story.choices[0].finish_reason) == (again, "stop")
    third = again.split()[2]
    short = client.chat.completions.create(**asked, temperature=0, stop=f" {third}").choices[0]
    assert (short.message.content, short.finish_reason) == (again[: again.index(f" {third}")], "stop")
    few = client.chat.completions.create(**asked, temperature=0, max_tokens=3)
    assert (few.choices[0].finish_reason, few.usage and few.usage.completion_tokens) == ("length", 3)
    with pytest.raises(openai.BadRequestError, match="'top_p' is not supported with the model") as caught:
        client.chat.completions.create(**asked, top_p=0.5)
    assert (caught.value.param, caught.value.code) == ("top_p", "unsupported_parameter")
    with pytest.raises(openai.BadRequestError, match="not supported"):
        client.chat.completions.create(**asked, logprobs=True)


CHAT = {"model": "echo", "messages": HELLO}
ERRORS: list[tuple[str, str, Any, int, str | None, str]] = [
    ("POST", "/v1/chat/completions", b"{", 400, "body", "invalid_json"),
    ("POST", "/v1/chat/completions", b"\xff", 400, "body", "invalid_json"),
    ("POST", "/v1/chat/completions", {"model": "echo"}, 400, "messages", "missing_required_parameter"),
    ("POST", "/v1/chat/completions", CHAT | {"temperature": "hot"}, 400, "temperature", "invalid_type"),
    ("POST", "/v1/chat/completions", CHAT | {"model": "none"}, 404, "model", "model_not_found"),
    ("POST", "/v1/completions", {"model": "echo", "prompt": "fail"}, 503, None, "service_unavailable"),
    ("POST", "/v1/completions", {"model": "echo", "prompt": "fail", "stream": True}, 503, None, "service_unavailable"),
    ("GET", "/v1/completions", b"", 405, None, "method_not_allowed"),
    ("POST", "/v1/models", b"", 405, None, "method_not_allowed"),
    ("POST", "/v1/completions", {"model": "echo", "prompt": "x" * 100_000}, 413, None, "request_too_large"),
    ("POST", "/v1/completions", {"model": "echo", "prompt": [5, 6]}, 400, "prompt", "unsupported_parameter"),
    ("GET", "/v1/models/none", b"", 404, "model", "model_not_found"),
    ("POST", "/v1/responses", {"model": "echo", "input": "a"}, 404, None, "unknown_url"),
    ("DELETE", "/v1/files/x?a=b", b"", 404, None, "unknown_url"),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "param", "code"), ERRORS)
def test_errors_have_openais_form(
    address: tuple[str, int], method: str, path: str, body: Any, status: int, param: str | None, code: str
) -> None:
    found, headers, document = post(address, path, body, method)
    assert (found, headers["Content-Type"]) == (status, "application/json")
    error = document["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["param"], error["code"]) == (param, code)
    assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")


def test_a_path_of_another_protocol(served: dict[str, Any]) -> None:
    status, _, document = post(("127.0.0.1", served["port"]), "/v2/models/echo/generate", {"text_input": "a"})
    assert (status, document["error"]["code"]) == (404, "unknown_url")


def test_an_error_in_the_middle_of_a_stream(client: openai.OpenAI) -> None:
    stream = client.completions.create(model="echo", prompt="fail late", stream=True)
    assert next(stream).choices[0].text == "fail "
    with pytest.raises(openai.APIError, match="the network gave no number"):
        list(stream)


def test_a_client_that_leaves_cancels_its_request(client: openai.OpenAI, request: Any, served: dict[str, Any]) -> None:
    """The model would go on for ever."""
    names = {"front-end": ("two",), "gateway": ("one", "two")}.get(request.node.callspec.params["address"], ("one",))

    def cancelled() -> int:
        return sum(served[name].log.count("forever was cancelled") for name in names)

    before = cancelled()
    stream = client.completions.create(model="echo", prompt="forever", stream=True)
    assert next(iter(stream)).choices[0].text.startswith("on on")
    stream.close()
    wait_until(lambda: cancelled() == before + 1)


def test_access_rules(repository: Path, tmp_path: Path) -> None:
    rules, audit = tmp_path / "access.toml", tmp_path / "audit.log"
    rules.write_text(
        rules_text(teller='infer = ["story*"]', slow='infer = ["*"]\nlimits = { requests-per-second = 0.001 }')
    )
    flags = ("--openai-port=0", "--http-port=0", "--grpc-port=0", "--metrics-port=0")
    with serve_process(repository, *flags, f"--access-config={rules}", f"--audit-log={audit}") as server:
        url = f"http://127.0.0.1:{openai_port(server)}/v1"
        messages: list[Any] = HELLO
        with openai.OpenAI(base_url=url, api_key=key_of("teller"), max_retries=0) as client:
            assert [model.id for model in client.models.list()] == ["storyteller"]
            assert client.completions.create(model="storyteller", prompt="a", max_tokens=1).choices
            with pytest.raises(openai.PermissionDeniedError) as denied:
                client.chat.completions.create(model="echo", messages=messages)
            assert denied.value.code == "permission_denied"
            for name in ("echo", "doll", "echo:doll"):
                with pytest.raises(openai.PermissionDeniedError):
                    client.models.retrieve(name)
        with openai.OpenAI(base_url=url, api_key="trk_wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError) as unknown:
                client.chat.completions.create(model="echo", messages=messages)
            assert unknown.value.code == "invalid_api_key"
        with openai.OpenAI(base_url=url, api_key=key_of("slow"), max_retries=0) as client:
            client.chat.completions.create(model="echo", messages=messages)
            with pytest.raises(openai.RateLimitError) as limited:
                client.chat.completions.create(model="echo", messages=messages)
            assert limited.value.code == "rate_limit_exceeded"
            assert int(limited.value.response.headers["Retry-After"]) >= 1
        noted = audit.read_text()
        assert '"POST /v1/chat/completions"' in noted
        assert key_of("teller") not in noted
