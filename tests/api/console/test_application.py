"""What the metrics port answers under /console, with a real server behind it, over HTTP/1.1 and HTTP/2."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import orjson
import pytest
import trio
from gated_server import GatedServer, gated_server
from http2_client import http2
from http_fakes import FakeExchange, HttpReply
from http_sockets import connect, serving

from trireme.api.console.application import Console
from trireme.api.console.feed import MOST_CONSOLES
from trireme.api.console.guard import ConsoleMode
from trireme.api.http.exchange import HttpOptions
from trireme.api.metrics.collector import MetricsApplication
from trireme.engine.metrics.family import MetricFamily

OPTIONS = HttpOptions()
OWN = {"Host": "127.0.0.1:8002", "X-Trireme-Console": "1"}
INFER = b'{"inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data":[5]}]}'


class NoMetrics:
    def collect(self) -> list[MetricFamily]:
        return []


class FromThere(FakeExchange):
    """From an address of one's own choice."""

    def __init__(self, address: str, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.client = (address, 1)


class First(FromThere):
    """Keeps the first piece of an answer."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.first = b""
        self.came = trio.Event()

    async def send(self, piece: Any, last: bool = False) -> None:
        self.first = self.first or bytes(piece)
        self.came.set()
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def consoled(
    folder: Path, mode: ConsoleMode = ConsoleMode.AUTO, options: HttpOptions | None = OPTIONS, **more: Any
) -> AsyncIterator[tuple[GatedServer, MetricsApplication, Console]]:
    """A server with a model whose gate is open, and the metrics' application with a console."""
    async with gated_server(folder, **more) as running:
        running.gate.set()
        console = Console(running.server, mode, options)
        yield running, MetricsApplication(NoMetrics(), None, console), console


async def ask(
    application: MetricsApplication,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] = OWN,
    address: str = "127.0.0.1",
) -> HttpReply:
    exchange = FromThere(address, method, path, [body], headers)
    await application(exchange)
    return HttpReply(exchange)


async def read_until(stream: trio.abc.ReceiveStream, pattern: bytes) -> bytes:
    """What comes until there is a match."""
    received = b""
    while not re.search(pattern, received, re.DOTALL):
        more = await stream.receive_some()
        assert more, received
        received += more
    return received


def events_in(received: bytes) -> list[tuple[str, Any]]:
    found = re.findall(rb"event: (\w+)\ndata: ([^\n]*)\n\n", received)
    return [(name.decode(), orjson.loads(data)) for name, data in found]


async def test_the_page_and_its_files(tmp_path: Path) -> None:
    async with consoled(tmp_path) as (_, application, console):
        page = await ask(application, "GET", "/console")
        assert (page.status, page.media) == (200, "text/html; charset=utf-8")
        named = re.findall(r'(?:src|href)="(console/[^"]+)"', page.body.decode())
        assert len(named) >= 5
        for name in named:
            reply = await ask(application, "GET", f"/{name}")
            assert reply.status == 200
        imported = set()
        for path, answer in console._files.items():
            imported |= {b"/console/" + name for name in re.findall(rb'from "\./([^"]+)"', answer.body)}
            assert answer.media.partition(b";")[0] in (b"text/html", b"text/css", b"text/javascript", b"image/svg+xml")
            assert not re.search(rb"https?://(?!www\.w3\.org/)", answer.body), path
            assert not re.search(rb"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(", answer.body), path
        assert imported <= console._files.keys()


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here to read the scripts")
def test_the_scripts_can_be_read(tmp_path: Path) -> None:
    static = resources.files("trireme.api.console").joinpath("static")
    for each in static.iterdir():
        if each.name.endswith(".js"):
            script = tmp_path / each.name.replace(".js", ".mjs")
            script.write_text(each.read_text())
            subprocess.run(["node", "--check", str(script)], check=True, timeout=60)


@pytest.mark.parametrize("path", ["/console", "/console/console.js", "/console/timeline.css"])
async def test_files_forbid_everything_from_elsewhere(tmp_path: Path, path: str) -> None:
    async with consoled(tmp_path) as (_, application, _):
        for method in ("GET", "HEAD"):
            headers = (await ask(application, method, path)).headers
            policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
            assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
            assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
            assert headers["x-content-type-options"] == "nosniff"


async def test_head_has_no_body(tmp_path: Path) -> None:
    async with consoled(tmp_path) as (_, application, console):
        for path in ("/console", "/console/stream"):
            reply = await ask(application, "HEAD", path)
            assert (reply.status, reply.body) == (200, b"")
        assert console.feed.readers == 0


@pytest.mark.parametrize("path", ["/console/x", "/console/console.html", "/console/../secret", "/console/py.typed"])
async def test_other_paths_below_are_not_found(tmp_path: Path, path: str) -> None:
    async with consoled(tmp_path) as (_, application, _):
        reply = await ask(application, "GET", path)
        assert (reply.status, reply.error) == (404, "Not Found")


async def test_a_slash_at_the_end_leads_to_the_page(tmp_path: Path) -> None:
    async with consoled(tmp_path) as (_, application, _):
        reply = await ask(application, "GET", "/console/")
        assert (reply.status, reply.headers["location"]) == (308, "../console")


@pytest.mark.parametrize("path", ["/console", "/console/stream", "/console/console.css"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
async def test_only_reading_is_allowed(tmp_path: Path, method: str, path: str) -> None:
    async with consoled(tmp_path) as (_, application, _):
        reply = await ask(application, method, path)
        assert (reply.status, reply.error) == (405, "Method Not Allowed")


async def test_metrics_are_where_they_were(tmp_path: Path) -> None:
    async with consoled(tmp_path) as (_, application, _):
        for path in ("/metrics", "/consoles", "/"):
            assert (await ask(application, "GET", path)).media == "text/plain; charset=utf-8"


async def test_without_a_console_its_path_is_empty_like_any_other() -> None:
    reply = await ask(MetricsApplication(NoMetrics()), "GET", "/console")
    assert (reply.status, reply.body) == (200, b"")


# ---- the stream ----


async def test_the_stream_over_http1(tmp_path: Path) -> None:
    async with consoled(tmp_path) as (running, application, console), serving(application) as service:
        async with await connect(service) as stream:
            await stream.send_all(b"GET /console/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            received = await read_until(stream, rb"event: frame.*event: frame.*\n\n")
            assert console.feed.readers == 1
        assert b"text/event-stream" in received
        (first, about), *frames = events_in(received)
        assert (first, about["refusal"], about["takesOrders"]) == ("about", "", False)
        assert [name for name, _ in frames] == ["frame", "frame"]
        assert frames[0][1]["models"][0]["name"] == "gated"
        assert frames[1][1]["t"] > frames[0][1]["t"]
        with trio.fail_after(60):
            while console.feed.readers:  # noqa: ASYNC110 - the connection hears of it
                await trio.sleep(0.01)
        assert running.statistics.tap.left == 0


async def test_the_stream_over_http2(tmp_path: Path) -> None:
    async with consoled(tmp_path) as (_, application, _), serving(application) as service, http2(service) as client:
        page = await client.ask("GET", "/console")
        assert page.status == 200
        number = await client.begin("GET", "/console/stream")
        while client.responses[number].body.count(b"event: frame") < 2:
            await client.read()
        names = [name for name, _ in events_in(client.responses[number].body)]
        assert names[:3] == ["about", "frame", "frame"]


async def test_single_batches_are_in_the_next_frame(tmp_path: Path) -> None:
    async with consoled(tmp_path) as (_, application, _), serving(application) as service:
        async with await connect(service) as stream:
            await stream.send_all(b"GET /console/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await read_until(stream, rb"event: frame.*\n\n")
            assert (await ask(application, "POST", "/console/v2/models/gated/infer", INFER)).status == 200
            received = await read_until(stream, rb'"batches":\[\[[^\n]*\n\n')
        (batch,) = next(frame for _, frame in events_in(received) if frame["models"][0]["batches"])["models"][0][
            "batches"
        ]
        number, instance, gpu, rows, _seal, start, infer, output, end, over, requests, failed, waits, totals, slots = (
            batch
        )
        assert (number, instance, gpu, rows, requests, failed, slots) == (1, "gated_0_0", -1, 1, 1, 0, [])
        assert start <= infer <= output <= end <= over
        assert 0 <= waits[0] <= totals[0]


async def test_so_many_consoles_and_no_more(tmp_path: Path) -> None:
    async with consoled(tmp_path) as (_, application, console):
        with ExitStack() as stack:
            for _ in range(MOST_CONSOLES):
                stack.enter_context(console.feed.reader())
            reply = await ask(application, "GET", "/console/stream")
        assert (reply.status, reply.headers["retry-after"]) == (503, "5")
        assert "too many consoles" in reply.error


async def test_a_reader_that_does_not_read_gets_no_queue(tmp_path: Path) -> None:
    """Its next frame is made when the one before has gone."""
    sent: list[bytes] = []
    gate = trio.Event()

    class Slow(FromThere):
        async def send(self, piece: Any, last: bool = False) -> None:
            sent.append(bytes(piece))
            if len(sent) == 2:
                await gate.wait()

        async def begin(self, answer: Any) -> None:
            pass

    async with consoled(tmp_path) as (_, application, console), trio.open_nursery() as nursery:
        nursery.start_soon(application, Slow("127.0.0.1", "GET", "/console/stream"))
        with console.feed.reader():
            number = 0
            for _ in range(3):
                number, _ = await console.feed.next(number)
        assert len(sent) == 2
        gate.set()
        while len(sent) < 3:  # noqa: ASYNC110 - it is sent by the stream's task
            await trio.sleep(0.01)
        first, second = (orjson.loads(piece.partition(b"data: ")[2]) for piece in sent[1:3])
        assert second["t"] > first["t"]
        nursery.cancel_scope.cancel()


async def test_the_stream_tells_why_it_only_shows(tmp_path: Path) -> None:
    cases = [
        ({"mode": ConsoleMode.VIEW}, "127.0.0.1", "--console=view"),
        ({}, "10.0.0.7", "from another machine"),
        ({"options": None}, "127.0.0.1", "--allow-http=false"),
        ({"mode": ConsoleMode.FULL}, "10.0.0.7", ""),
    ]
    for at, (given, address, text) in enumerate(cases):
        async with consoled(tmp_path / str(at), **given) as (_, application, _):
            exchange = First(address, "GET", "/console/stream", (), OWN)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(application, exchange)
                await exchange.came.wait()
                nursery.cancel_scope.cancel()
            ((_, about),) = events_in(exchange.first)
            assert text in about["refusal"]
            assert bool(text) == bool(about["refusal"])


# ---- calls ----


async def test_calls_of_the_page(tmp_path: Path) -> None:
    async with consoled(tmp_path) as (running, application, _):
        answer = await ask(application, "POST", "/console/v2/models/gated/infer", INFER)
        assert answer.json["outputs"][0]["data"] == [5.0]
        assert (await ask(application, "GET", "/console/v2/models/gated")).json["name"] == "gated"
        assert (await ask(application, "POST", "/console/v2/repository/index", b"{}")).json[0]["name"] == "gated"
        assert running.statistics.success.count == 1


async def test_errors_of_calls_are_those_of_the_http_port(tmp_path: Path) -> None:
    async with consoled(tmp_path) as (_, application, _):
        reply = await ask(application, "POST", "/console/v2/models/none/infer", INFER)
        assert (reply.status, "unknown model" in reply.error) == (404, True)
        load = await ask(application, "POST", "/console/v2/repository/models/gated/load")
        assert (load.status, "explicit model load" in load.error) == (503, True)


@pytest.mark.parametrize("path", ["/console/v2/systemsharedmemory/status", "/console/v2/nothing"])
async def test_calls_that_the_page_does_not_make_are_not_there(tmp_path: Path, path: str) -> None:
    async with consoled(tmp_path) as (_, application, _):
        assert (await ask(application, "GET", path)).status == 404


async def test_calls_that_are_not_the_pages_own_are_refused_and_counted(tmp_path: Path) -> None:
    async with consoled(tmp_path) as (running, application, _):
        for headers in ({"Host": "127.0.0.1"}, {**OWN, "Origin": "http://evil.example"}):
            reply = await ask(application, "POST", "/console/v2/models/gated/infer", INFER, headers)
            assert reply.status == 403
        assert (await ask(application, "GET", "/console/v2", address="10.0.0.7")).status == 403
        refused = running.server.refusal_statistics()
        assert {reason.value: count for reason, count in refused.items() if count} == {"restricted": 3}
        assert running.begun == []


async def test_without_http_there_are_no_calls(tmp_path: Path) -> None:
    async with consoled(tmp_path, options=None) as (_, application, _):
        reply = await ask(application, "GET", "/console/v2")
        assert (reply.status, "--allow-http=false" in reply.error) == (403, True)


async def test_calls_over_a_socket(tmp_path: Path) -> None:
    async with consoled(tmp_path) as (_, application, _), serving(application) as service, http2(service) as client:
        own = [("x-trireme-console", "1"), ("origin", "http://localhost")]
        number = await client.begin("POST", "/console/v2/models/gated/infer", INFER, headers=own)
        reply = await client.finish(number)
        assert json.loads(reply.body)["outputs"][0]["data"] == [5.0]
        number = await client.begin("POST", "/console/v2/models/gated/infer", INFER)
        assert (await client.finish(number)).status == 403
