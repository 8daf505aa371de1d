"""A network of transformers behind a real server, and the clients that users have."""

from __future__ import annotations

import http.client
import json
import queue
import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import openai
import psutil
import pydantic
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from serve_process import PATIENCE_S, ServeProcess, serve_process
from small_llama import NEW, PROMPT, write_llama

from trireme.api.cli.main import main
from trireme.clients.player import play
from trireme.clients.target import LoadTarget
from trireme.engine.logs.generators import PoissonArrivals, RequestKind, TokenLengths, generate
from trireme.engine.logs.request_log import read_traffic
from trireme.engine.metrics.page import read_metrics

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServeProcess, str]]:
    repository = tmp_path_factory.mktemp("models")
    text = write_llama(repository / "writer" / "1")
    (repository / "writer" / "config.pbtxt").write_text('backend: "generation"\n')
    write_llama(repository / "caller" / "1", 512)
    (repository / "caller" / "config.pbtxt").write_text('backend: "generation"\n')
    (repository / "caller" / "1" / "chat_template.jinja").write_text("{{ messages[0].content }}{# <tool_call> #}")
    with serve_process(repository, "--openai-on-http=true", "--openai-port=0") as server:
        yield server, text


def inputs_for(client: Any, **flags: bool) -> list[Any]:
    """The inputs of a greedy request, by either client's module."""
    found = []
    for name, text in (
        ("text_input", PROMPT),
        ("sampling_parameters", json.dumps({"max_tokens": NEW, "temperature": 0})),
    ):
        found.append(client.InferInput(name, [1], "BYTES"))
        found[-1].set_data_from_numpy(np.array([text.encode()], object))
    for name, value in flags.items():
        found.append(client.InferInput(name, [1], "BOOL"))
        found[-1].set_data_from_numpy(np.array([value]))
    return found


def test_the_generate_extension_answers_as_transformers_does(served: tuple[ServeProcess, str]) -> None:
    server, text = served
    sampling = json.dumps({"max_tokens": NEW, "temperature": 0})
    body = {"text_input": PROMPT, "sampling_parameters": sampling, "return_finish_reason": True}
    status, answer = server.ask("POST", "/v2/models/writer/generate", body)
    assert (status, answer["text_output"], answer["finish_reason"]) == (200, text, "length")
    where = f"http://127.0.0.1:{server.http_port}/v2/models/writer/generate_stream"
    with urllib.request.urlopen(where, json.dumps({**body, "stream": True}).encode()) as stream:
        events = [json.loads(line.removeprefix(b"data: ")) for line in stream.read().splitlines() if line]
    assert len(events) > 3
    assert PROMPT + "".join(event["text_output"] for event in events) == text


def test_tritonclient_streams_it(served: tuple[ServeProcess, str]) -> None:
    server, text = served
    answers: queue.Queue[Any] = queue.Queue()
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        client.async_stream_infer("writer", inputs_for(grpcclient, stream=True), enable_empty_final_response=True)
        pieces, final = [], False
        while not final:
            answer = answers.get(timeout=60)
            assert not isinstance(answer, Exception), answer
            output = answer.as_numpy("text_output")
            pieces.append("" if output is None else output[0].decode())
            final = answer.get_response().parameters["triton_final_response"].bool_param
        client.stop_stream()
    assert PROMPT + "".join(pieces) == text


def test_the_openai_package_gets_it(served: tuple[ServeProcess, str]) -> None:
    server, text = served
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.http_port}/v1", api_key="none") as client:
        asked: dict[str, Any] = {"model": "writer", "prompt": PROMPT, "max_tokens": NEW, "temperature": 0}
        answer = client.completions.create(**asked)
        assert PROMPT + answer.choices[0].text == text
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(PROMPT), NEW)
        assert answer.choices[0].finish_reason == "length"
        pieces = [chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True)]
        assert len(pieces) > 3
        assert PROMPT + "".join(pieces) == text
        messages: Any = [{"role": "user", "content": "Hi"}]
        chat = client.chat.completions.create(model="writer", messages=messages, temperature=0, n=2)
        assert chat.usage is not None
        assert [choice.finish_reason for choice in chat.choices] == ["length", "length"]
        assert chat.usage.completion_tokens == 2 * (128 - chat.usage.prompt_tokens), "to the end of the context"


class Weather(pydantic.BaseModel):
    city: Literal["Rome", "Oslo"]
    degrees: Annotated[int, pydantic.Field(ge=-40, le=40)]
    rain: bool


def test_the_openai_package_gets_what_it_can_parse(served: tuple[ServeProcess, str]) -> None:
    """From a network of random numbers, which would never say it by itself."""
    server, _ = served
    messages: Any = [{"role": "user", "content": "Hi"}]
    asked: dict[str, Any] = {"model": "writer", "messages": messages, "seed": 3}
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.http_port}/v1", api_key="none") as client:
        parsed = client.chat.completions.parse(**asked, response_format=Weather, n=3)
        assert [choice.finish_reason for choice in parsed.choices] == ["stop"] * 3
        assert all(isinstance(choice.message.parsed, Weather) for choice in parsed.choices)
        with client.chat.completions.stream(**asked, response_format=Weather) as stream:
            stream.until_done()
            assert isinstance(stream.get_final_completion().choices[0].message.parsed, Weather)
        chosen = client.chat.completions.create(**asked, extra_body={"guided_choice": ["yes", "no"]})
        assert chosen.choices[0].message.content in ("yes", "no")
        with pytest.raises(openai.BadRequestError, match="unclosed group"):
            client.chat.completions.create(**asked, extra_body={"structured_outputs": {"regex": "(a"}})


TOOLS: Any = [
    openai.pydantic_function_tool(Weather, name="weather"),
    {"type": "function", "function": {"name": "now"}},
]


def test_a_tool_has_to_be_called(served: tuple[ServeProcess, str]) -> None:
    """By a network of random numbers, which would never do it by itself."""
    server, _ = served
    asked: dict[str, Any] = {"model": "caller", "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS}
    weather: Any = {"type": "function", "function": {"name": "weather"}}
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.http_port}/v1", api_key="none") as client:
        answer = client.chat.completions.create(**asked, tool_choice=weather, seed=3, n=3)
        for choice in answer.choices:
            (call,) = choice.message.tool_calls or []
            assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
            assert call.type == "function"
            assert call.function.name == "weather"
            assert Weather.model_validate_json(call.function.arguments)
        answer = client.chat.completions.create(**asked, tool_choice="required", seed=4, parallel_tool_calls=False)
        (call,) = answer.choices[0].message.tool_calls or []
        assert call.type == "function"
        assert call.function.name in ("weather", "now")
        asked["model"] = "writer"
        with pytest.raises(openai.BadRequestError, match="has no chat template") as caught:
            client.chat.completions.create(**asked, tool_choice="required")
        assert caught.value.param == "tools"


def test_a_call_comes_as_it_is_generated(served: tuple[ServeProcess, str]) -> None:
    server, _ = served
    weather: Any = {"type": "function", "function": {"name": "weather"}}
    messages: Any = [{"role": "user", "content": "Hi"}]
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.http_port}/v1", api_key="none") as client:
        stream = client.chat.completions.create(
            model="caller", messages=messages, tools=TOOLS, tool_choice=weather, stream=True, seed=5
        )
        choices = [chunk.choices[0] for chunk in stream]
    pieces = [piece for choice in choices for piece in choice.delta.tool_calls or []]
    first, *others = pieces
    assert (first.index, first.type, first.function and first.function.name) == (0, "function", "weather")
    assert first.id
    assert {(piece.index, piece.id, piece.function and piece.function.name) for piece in others} == {(0, None, None)}
    arguments = [piece.function.arguments or "" for piece in pieces if piece.function is not None]
    assert len(arguments) > 10, "they come token by token"
    assert Weather.model_validate_json("".join(arguments))
    assert not any(choice.delta.content for choice in choices)
    assert choices[-1].finish_reason == "tool_calls"


def test_a_wrong_constraint_is_told_with_its_member(served: tuple[ServeProcess, str]) -> None:
    server, _ = served
    messages: Any = [{"role": "user", "content": "Hi"}]
    links = {f"d{at}": {"items": {"$ref": f"#/$defs/d{at + 1}"}} for at in range(1300)}
    hostile = {"$defs": {**links, "d1300": {}}, "$ref": "#/$defs/d0"}
    schemas: list[Any] = [{"if": {}}, hostile]
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.http_port}/v1", api_key="none") as client:
        for stream in (False, True):
            for schema in schemas:
                form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
                with pytest.raises(openai.BadRequestError, match="the constraint cannot be used") as caught:
                    client.chat.completions.create(
                        model="writer", messages=messages, response_format=form, stream=stream
                    )
                assert caught.value.param == "response_format"
        wrong: Any = [{"type": "function", "function": {"name": "a", "parameters": {"if": {}}}}]
        with pytest.raises(openai.BadRequestError, match="the constraint cannot be used") as caught:
            client.chat.completions.create(model="caller", messages=messages, tools=wrong, tool_choice="required")
        assert caught.value.param == "tools"
        extra = {"guided_grammar": 'start: "y" ("e" "s" | "ep")'}
        answer = client.chat.completions.create(model="writer", messages=messages, extra_body=extra)
        assert answer.choices[0].message.content in ("yes", "yep")
        for grammar, stated in (("start: (", "Expected token"), ("start: " + "(" * 20_000, "too deeply nested")):
            with pytest.raises(openai.BadRequestError, match=stated) as caught:
                client.chat.completions.create(
                    model="writer", messages=messages, extra_body={"guided_grammar": grammar}
                )
            assert caught.value.param == "guided_grammar"


def test_its_metadata_tells_what_goes_in(served: tuple[ServeProcess, str]) -> None:
    server, _ = served
    with httpclient.InferenceServerClient(f"127.0.0.1:{server.http_port}") as client:
        metadata = client.get_model_metadata("writer")
        config = client.get_model_config("writer")
    assert [each["name"] for each in metadata["inputs"]][:2] == ["text_input", "input_ids"]
    assert metadata["outputs"][0] == {"name": "text_output", "datatype": "BYTES", "shape": [-1]}
    assert config["model_transaction_policy"] == {"decoupled": True}


def test_its_tokens_are_counted_and_its_time_counts(served: tuple[ServeProcess, str]) -> None:
    server, _ = served
    body = {"text_input": PROMPT, "sampling_parameters": json.dumps({"max_tokens": NEW, "ignore_eos": True})}
    before = tokens_of(server)
    assert server.ask("POST", "/v2/models/writer/generate", body)[0] == 200
    assert tokens_of(server) == before + NEW
    status, answer = server.ask("POST", "/v2/models/writer/generate", {**body, "timeout": 1})
    assert (status, answer) == (400, {"error": "Request timeout expired"})


def tokens_of(server: ServeProcess) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics") as page:
        values = read_metrics(page.read().decode())
    labels = frozenset({("model", "writer"), ("version", "1")})
    assert values["trireme_generation_first_token_seconds_count", labels] > 0
    return int(values["trireme_generation_tokens_total", labels])


def test_a_wrong_parameter_is_told(served: tuple[ServeProcess, str]) -> None:
    server, _ = served
    body = {"text_input": PROMPT, "sampling_parameters": '{"temperature": 3}'}
    status, answer = server.ask("POST", "/v2/models/writer/generate", body)
    assert (status, answer) == (400, {"error": "temperature is 3.0; expected 0 to 2"})


def begin_stream(server: ServeProcess, tokens: int, port: int | None = None) -> http.client.HTTPConnection:
    """Ask for a stream of so many tokens, of which nothing is read."""
    connection = http.client.HTTPConnection("127.0.0.1", port or server.http_port, timeout=PATIENCE_S)
    asked = {"model": "writer", "prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(asked), {"Content-Type": "application/json"})
    return connection


def text_of(response: http.client.HTTPResponse) -> tuple[str, str]:
    """The text of a stream, and its last event."""
    assert response.status == 200
    *events, last = [line.removeprefix(b"data: ") for line in response.read().splitlines() if line]
    return "".join(choice["text"] for event in events for choice in json.loads(event)["choices"]), last.decode()


def until_memory_is_free(server: ServeProcess) -> None:
    """Wait until no text has any."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        lines = [line for line in server.metrics().splitlines() if line.startswith("trireme_generation_kv_blocks_used")]
        if lines and not any(float(line.rpartition(" ")[2]) for line in lines):
            return
        assert time.monotonic() < deadline_s, lines


def test_hundreds_of_clients_that_do_not_read_hold_up_no_other(served: tuple[ServeProcess, str]) -> None:
    """They are more than may run; all memory is free again before they read, and then they get all of it."""
    server, text = served
    slow = [begin_stream(server, NEW) for _ in range(200)]
    assert PROMPT + text_of(begin_stream(server, NEW).getresponse())[0] == text
    until_memory_is_free(server)
    for connection in slow:
        assert text_of(connection.getresponse()) == (text.removeprefix(PROMPT), "[DONE]")


def test_500_clients_that_do_not_read_take_little_memory(served: tuple[ServeProcess, str]) -> None:
    """At the port of OpenAI's interface."""
    server, text = served
    port = int(server.wait_for(r"Started OpenAI HTTPService at 127\.0\.0\.1:(\d+)")[1])
    assert PROMPT + text_of(begin_stream(server, NEW, port).getresponse())[0] == text
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    slow = [begin_stream(server, 100, port) for _ in range(500)]
    assert PROMPT + text_of(begin_stream(server, NEW, port).getresponse())[0] == text
    until_memory_is_free(server)
    assert process.memory_info().rss - before < 100 << 20
    ends = {text_of(connection.getresponse()) for connection in slow}
    ((whole_text, last),) = ends
    assert whole_text.startswith(text.removeprefix(PROMPT))
    assert last == "[DONE]"


def test_a_prompt_of_a_megabyte_is_refused_and_others_go_on(served: tuple[ServeProcess, str]) -> None:
    server, text = served
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.http_port}/v1", api_key="none") as client:
        with pytest.raises(openai.BadRequestError, match="the prompt has 1000000 tokens"):
            client.completions.create(model="writer", prompt="a " * 500_000, max_tokens=1)
        with pytest.raises(openai.BadRequestError, match="a text has 2000000 characters"):
            client.completions.create(model="writer", prompt="a " * 1_000_000, max_tokens=1)
        answer = client.completions.create(model="writer", prompt=PROMPT, max_tokens=NEW, temperature=0)
        assert PROMPT + answer.choices[0].text == text


def test_a_client_that_leaves_amid_a_stream_gives_its_memory_back(served: tuple[ServeProcess, str]) -> None:
    server, text = served
    until_memory_is_free(server)
    for _ in range(20):
        connection = begin_stream(server, 100)
        response = connection.getresponse()
        assert response.readline().startswith(b"data: ")
        response.close()
        connection.close()
    until_memory_is_free(server)
    assert PROMPT + text_of(begin_stream(server, NEW).getresponse())[0] == text


def test_streams_are_ended_properly_before_the_server_exits(tmp_path: Path) -> None:
    write_llama(tmp_path / "writer" / "1")
    (tmp_path / "writer" / "config.pbtxt").write_text('backend: "generation"\n')
    with serve_process(tmp_path, "--openai-on-http=true", "--exit-timeout-secs=60") as server:
        streams = [begin_stream(server, 100) for _ in range(8)]
        begun = [stream.getresponse() for stream in streams]
        server.process.send_signal(signal.SIGTERM)
        ends = [text_of(response) for response in begun]
        assert {last for _, last in ends} == {"[DONE]"}
        assert len({text for text, _ in ends}) == 1
        assert server.wait() == 0


@pytest.mark.parametrize("protocol", ["http", "stream"])
def test_a_log_of_tokens_is_played(tmp_path: Path, protocol: str) -> None:
    """What is played is what the log says, and the server's own log says the same."""
    write_llama(tmp_path / "models" / "writer" / "1")
    (tmp_path / "models" / "writer" / "config.pbtxt").write_text('backend: "generation"\n')
    lengths = TokenLengths(20, 8, 0.5, 0.5, context=100)
    traffic = generate(PoissonArrivals(40), [RequestKind("writer", tokens=lengths)], 1)
    log = tmp_path / "log.jsonl"
    with serve_process(tmp_path / "models", f"--request-log={log}", "--request-log-results=true") as server:
        port = server.http_port if protocol == "http" else server.grpc_port
        played = play(traffic, LoadTarget.of(f"{protocol}://127.0.0.1:{port}"))
        server.process.send_signal(signal.SIGTERM)
        server.wait()
    assert played.summary().reasons == ()
    found = read_traffic(log.read_text().splitlines()).requests
    tokens = [(each.prompt_tokens, each.generated_tokens) for each in traffic.requests]
    assert sorted((each.prompt_tokens, each.generated_tokens) for each in found) == sorted(tokens)
    assert all(each.result is not None and each.result.first_token_us > 0 for each in found)


def test_a_log_is_replayed_with_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From a real run and a measurement to what both say of the same log, side by side."""
    write_llama(tmp_path / "models" / "writer" / "1")
    settings = {"max_running": 4, "max_tokens_per_step": 32}
    written = (f'parameters {{ key: "{key}" value {{ string_value: "{each}" }} }}\n' for key, each in settings.items())
    (tmp_path / "models" / "writer" / "config.pbtxt").write_text('backend: "generation"\n' + "".join(written))
    traffic = generate(PoissonArrivals(30), [RequestKind("writer", tokens=TokenLengths(20, 8, context=100))], 1)
    log, given = tmp_path / "log.jsonl", ("--repository", str(tmp_path / "models"))
    with serve_process(tmp_path / "models", f"--request-log={log}", "--request-log-results=true") as server:
        assert play(traffic, LoadTarget.of(f"stream://127.0.0.1:{server.grpc_port}")).summary().reasons == ()
        server.process.send_signal(signal.SIGTERM)
        server.wait()
    assert main(["profile", "writer", *given, "--most-secs", "0.2", "--ways", "http,stream"]) == 0
    assert "a token in memory takes" in capsys.readouterr().out
    assert main(["profile", "writer", *given, "--check"]) == 0
    capsys.readouterr()
    assert main(["replay", str(log), *given, "--plays", "1", "--measured", str(log), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    for name in ("ttft_p95_s", "itl_p50_s", "tokens", "step_texts", "kv"):
        assert shown["predicted"][name]["value"] > 0
        assert shown["measured"][name] > 0
    assert shown["measured"]["answered"] == len(traffic.requests)
    plan = ["plan", str(tmp_path / "models"), "--log", str(log), "--objective", "ttft_p95<60s,itl_p99<60s"]
    assert main([*plan, "--settings", "1", "--plays", "1", "--processes", "1", "--prove"]) == 0
    proof = capsys.readouterr().out
    assert re.search(r"ttft_p95 +[0-9.]+ms predicted +[0-9.]+ms measured", proof)
    assert re.search(r"itl_p99 +[0-9.]+ms predicted +[0-9.]+ms measured", proof)
    assert "is not kept" not in proof
