"""The generate extension over real connections (docs/reference/generate.md): framing, back-pressure, clients that go
away.

What it answers is compared with the real Triton's answers in ``tests/oracle/test_generate_session.py``.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
from http2_client import http2
from http_sockets import PATIENCE_S, Responses, connect, read_to_end, serving, until
from scripted_models import Script, write_scripted_models

from trireme.actors import InferenceServer
from trireme.actors.reply import ANSWER_WINDOW, Reply
from trireme.api.http.app import HttpApplication, HttpService
from trireme.api.http.exchange import HttpOptions
from trireme.api.http.handlers import generate as handlers_generate
from trireme.engine.admission.client_bytes import ClientAccounts, ClientBytes
from trireme.engine.errors import TriremeError
from trireme.engine.instances.answer_window import AnswerWindow
from trireme.engine.options import ServerOptions
from trireme.engine.request import InferenceResponse

WRONG_COUNT = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)
MANY = 3_000
LARGE = [0.5] * 2_000
"""`MANY` events of these numbers are far more than what sockets keep for a client."""


@dataclass
class Running:
    script: Script
    server: InferenceServer
    service: HttpService


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    write_scripted_models(tmp_path)
    script = Script()
    told = ServerOptions(model_repository=(tmp_path,), exit_timeout_s=5)
    async with InferenceServer(told, backends=script.backends()) as server:
        application = HttpApplication(server, HttpOptions(max_input_bytes=100_000))
        async with serving(application) as service:
            yield Running(script, server, service)
        script.close()


def request(
    script: str, model: str = "many", *, verb: str = "generate_stream", http: str = "1.1", **members: Any
) -> bytes:
    body = json.dumps({"IN": 1, "script": script, **members}).encode()
    head = f"POST /v2/models/{model}/{verb} HTTP/{http}\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def event(number: float, **members: Any) -> bytes:
    return (
        b"data: %b\n\n"
        % json.dumps(
            {"OUT": number, **members, "model_name": "many", "model_version": "1"}, separators=(",", ":")
        ).encode()
    )


class Holder:
    def make_way(self, account: ClientBytes) -> bool:
        raise AssertionError("the other one has not been read for longer")


async def steady(window: AnswerWindow) -> None:
    """Wait until a model is held back, and nothing else goes on."""
    with trio.fail_after(PATIENCE_S):
        while True:
            await trio.testing.wait_all_tasks_blocked(0.02)
            if window.crowded:
                return


async def test_every_response_is_an_event_in_a_chunk_of_its_own_when_it_comes(running: Running) -> None:
    async with await connect(running.service) as stream:
        await stream.send_all(request("say wait:a say wait:b end"))
        seen = b""
        for number, gate in ((1.0, "a"), (2.0, "b")):
            piece = b"%x\r\n%b\r\n" % (len(event(number)), event(number))
            while piece not in seen:
                seen += await stream.receive_some()
            running.script.open(gate)
        while not seen.endswith(b"\r\n0\r\n\r\n"):
            seen += await stream.receive_some()
    assert seen.startswith(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
    )


async def test_the_connection_lives_on(running: Running) -> None:
    async with await connect(running.service) as stream:
        responses = Responses(stream)
        for script, status, body in (
            ("say say!", 200, event(1.0) + event(2.0)),
            ("end", 200, b""),
            ("err:bad say end", 400, b'data: {"error":"bad"}\n\n' + event(1.0)),
            ("say fail:bad", 200, event(1.0) + b'data: {"error":"bad"}\n\n'),
        ):
            await stream.send_all(request(script))
            answer = await responses.next()
            assert (answer.status, answer.body) == (status, body)
        await stream.send_all(request("say say!", verb="generate"))
        assert json.loads((await responses.next()).body) == {"error": WRONG_COUNT}
    assert running.server.budget_statistics().requests == 0


async def test_a_client_of_http_1_0_reads_to_the_end_of_the_connection(running: Running) -> None:
    async with await connect(running.service) as stream:
        await stream.send_all(request("say say end", http="1.0"))
        head, _, body = (await read_to_end(stream)).partition(b"\r\n\r\n")
    assert head == b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream; charset=utf-8"
    assert body == event(1.0) + event(2.0)


async def test_response_parameters_are_members(running: Running) -> None:
    async with await connect(running.service) as stream:
        await stream.send_all(request("note:so end", id="i"))
        answer = await Responses(stream).next()
    assert answer.body == b'data: {"id":"i","model_name":"many","model_version":"1","note":"so"}\n\n'


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
async def test_models_that_answer_once(running: Running, verb: str) -> None:
    async with await connect(running.service) as stream:
        await stream.send_all(request("say!", "plain", verb=verb))
        answer = await Responses(stream).next()
    body = answer.body.removeprefix(b"data: ").removesuffix(b"\n\n")
    assert body == b'{"OUT":1.0,"model_name":"plain","model_version":"1"}'


async def test_a_client_that_does_not_read_holds_the_model_back(running: Running) -> None:
    async with await connect(running.service) as stream:
        await stream.send_all(request(f"flood:{MANY} end", IN=LARGE, id="slow"))
        await until(lambda: "slow" in running.script.windows)
        await steady(running.script.windows["slow"])
        said = running.script.said["slow"]
        assert said < MANY
        assert (await Responses(stream).next()).body.count(b"data: ") == MANY
    assert said > ANSWER_WINDOW
    assert running.script.said["slow"] == MANY


async def test_events_that_nobody_reads_are_given_up_when_others_need_the_memory(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits in the reply counts; the model is told, and the client, if it reads on, that it was not all."""
    unread = ClientBytes(1 << 30)
    monkeypatch.setattr(running.server, "client_accounts", ClientAccounts(ClientBytes(1 << 30), unread))
    async with await connect(running.service) as stream:
        await stream.send_all(request(f"flood:{MANY} until-cancelled end", IN=LARGE, id="slow"))
        await until(lambda: "slow" in running.script.windows)
        await steady(running.script.windows["slow"])
        assert unread.held_bytes > ANSWER_WINDOW * 8_000
        other = Holder()
        unread.hold(other, "other", 1 << 30)
        assert unread.held_bytes == 1 << 30
        await until(lambda: "slow" in running.script.cancelled)
        body = (await Responses(stream).next()).body
    events = body.removesuffix(b"\n\n").split(b"\n\n")
    assert len(events) < MANY
    assert json.loads(events[-1].removeprefix(b"data: "))["error"].startswith("the answers were not read")
    await until(lambda: running.server.budget_statistics().requests == 0)


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
async def test_an_answer_that_is_being_encoded_when_it_is_given_up_is_not_lost(
    running: Running, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Its client waits for the server."""
    unread = ClientBytes(1 << 30)
    monkeypatch.setattr(running.server, "client_accounts", ClientAccounts(ClientBytes(1 << 30), unread))
    encode = handlers_generate._encode

    def encode_when_others_need_the_memory(response: InferenceResponse | TriremeError) -> tuple[bytes, bool]:
        unread.hold(Holder(), "other", 1 << 30)
        return encode(response)

    monkeypatch.setattr(handlers_generate, "_encode", encode_when_others_need_the_memory)
    async with await connect(running.service) as stream:
        await stream.send_all(request("say! end", verb=verb, IN=[0.5] * 6_000))
        answer = await Responses(stream).next()
    assert unread.given_up == 1
    assert answer.status == 200
    assert json.loads(answer.body.split(b"\n\n")[0].removeprefix(b"data: "))["OUT"]


async def test_answers_that_were_given_up_are_counted_as_lost(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the first of several is being encoded, and the others are there already: it was not the only one."""
    unread = ClientBytes(1 << 30)
    monkeypatch.setattr(running.server, "client_accounts", ClientAccounts(ClientBytes(1 << 30), unread))
    encode = handlers_generate._encode
    take = Reply.take

    def encode_when_others_need_the_memory(response: InferenceResponse | TriremeError) -> tuple[bytes, bool]:
        unread.hold(Holder(), "other", 1 << 30)
        return encode(response)

    def take_all(reply: Reply) -> list[tuple[InferenceResponse | TriremeError | None, bool]]:
        return take(reply) if reply.final else []

    monkeypatch.setattr(handlers_generate, "_encode", encode_when_others_need_the_memory)
    monkeypatch.setattr(Reply, "take", take_all)
    async with await connect(running.service) as stream:
        await stream.send_all(request("say say say! ", verb="generate", IN=[0.5] * 6_000))
        answer = await Responses(stream).next()
    assert unread.given_up == 1
    assert answer.status == 400
    assert json.loads(answer.body)["error"].startswith("the answers were not read")


async def test_what_is_left_of_a_stream_is_not_left_to_the_garbage_collector(
    running: Running, recwarn: pytest.WarningsRecorder
) -> None:
    """A client goes away between two responses."""
    async with await connect(running.service) as stream:
        await stream.send_all(request(f"flood:{MANY} until-cancelled end", IN=LARGE, id="gone"))
        await until(lambda: "gone" in running.script.windows)
        await steady(running.script.windows["gone"])
    await until(lambda: "gone" in running.script.cancelled)
    await until(lambda: running.server.budget_statistics().requests == 0)
    assert not [each for each in recwarn if "_responses" in str(each.message)]


async def test_a_client_that_goes_away_is_noticed_and_its_request_cancelled(running: Running) -> None:
    async with await connect(running.service) as stream:
        await stream.send_all(request("say until-cancelled end", id="gone"))
        await stream.receive_some()
    await until(lambda: "gone" in running.script.cancelled)
    await until(lambda: running.server.budget_statistics().requests == 0)


@pytest.mark.parametrize("script", ["until-cancelled end", f"flood:{MANY} until-cancelled end"])
async def test_a_client_that_goes_away_before_it_has_read_anything(running: Running, script: str) -> None:
    async with await connect(running.service) as stream:
        await stream.send_all(request(script, IN=LARGE, id="gone"))
        await until(lambda: "gone" in running.script.begun)
        if "flood" in script:
            await steady(running.script.windows["gone"])
    await until(lambda: "gone" in running.script.cancelled)
    await until(lambda: running.server.budget_statistics().requests == 0)
    await until(lambda: running.service.statistics().connections == 0)


async def test_generate_keeps_one_response_of_a_flood(running: Running) -> None:
    async with await connect(running.service) as stream:
        await stream.send_all(request(f"flood:{MANY} end", verb="generate", IN=LARGE))
        answer = await Responses(stream).next()
    assert (answer.status, json.loads(answer.body)) == (200, {"error": WRONG_COUNT})


class TestHttp2:
    async def ask(self, running: Running, script: str, **members: Any) -> tuple[int, bytes]:
        async with http2(running.service) as client:
            body = json.dumps({"IN": 1, "script": script, **members}).encode()
            answer = await client.ask("POST", "/v2/models/many/generate_stream", body)
            assert b"transfer-encoding" not in dict(answer.headers)
            return answer.status, answer.body

    async def test_events(self, running: Running) -> None:
        assert await self.ask(running, "say say!") == (200, event(1.0) + event(2.0))
        assert await self.ask(running, "end") == (200, b"")
        assert await self.ask(running, "fail:bad") == (400, b'data: {"error":"bad"}\n\n')

    async def test_a_stream_that_is_reset_cancels_its_request(self, running: Running) -> None:
        async with http2(running.service) as client:
            body = json.dumps({"IN": 1, "script": "say until-cancelled end", "id": "gone"}).encode()
            number = await client.begin("POST", "/v2/models/many/generate_stream", body)
            while not client.responses[number].body:
                await client.read()
            client.h2.reset_stream(number)
            await client.flush()
            await until(lambda: "gone" in running.script.cancelled)
            answer = await client.ask("GET", "/v2/models/many/ready")
            assert answer.status == 200
        await until(lambda: running.server.budget_statistics().requests == 0)

    async def test_a_client_that_opens_no_window_holds_the_model_back(self, running: Running) -> None:
        async with http2(running.service) as client:
            body = json.dumps({"IN": LARGE, "script": "flood:200 end", "id": "slow"}).encode()
            number = await client.begin("POST", "/v2/models/many/generate_stream", body)
            await until(lambda: "slow" in running.script.windows)
            await steady(running.script.windows["slow"])
            assert ANSWER_WINDOW < running.script.said["slow"] < 200
            answer = await client.finish(number)
        assert answer.body.count(b"data: ") == 200


async def test_what_is_given_may_not_be_larger_than_the_limit(running: Running) -> None:
    """As text, and as tensors (docs/reference/http.md#request-bodies)."""
    async with await connect(running.service) as stream:
        responses = Responses(stream)
        await stream.send_all(request("say!", "plain", IN=[0] * 26_000))
        answer = await responses.next()
        assert (answer.status, json.loads(answer.body)["error"]) == (
            400,
            (
                "request size of 104000 bytes with input 'IN' of size 104000 bytes exceeds the maximum allowed input "
                "size of 100000. Use --http-max-input-size to increase the limit."
            ),
        )
        await stream.send_all(request("say!", "plain", text="x" * 100_000))
        answer = await responses.next()
        assert answer.status == 413
        assert json.loads(answer.body)["error"].startswith("request size of 100")
