"""Lists and watches of an API server of Kubernetes, over TLS."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio
from authority import Authority
from kubernetes_api import NAMESPACE, SERVICE, FakeApiServer, endpoint, endpoint_slice, write_account

from trireme.engine.errors import UnavailableError
from trireme.gateway import api_server
from trireme.gateway.api_server import ApiServer
from trireme.gateway.kubernetes_settings import KubernetesSettings
from trireme.gateway.slice_watch import ApiServerError


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def cluster(authority: Authority, tmp_path: Path) -> Iterator[FakeApiServer]:
    write_account(tmp_path, authority)
    with FakeApiServer(authority).running() as running:
        yield running


def settings_of(server: str, folder: Path) -> KubernetesSettings:
    token, certificate = folder / "token", folder / "ca.crt"
    return KubernetesSettings(SERVICE, NAMESPACE, server=server, token_file=token, ca_file=certificate)


@pytest.fixture
def client(cluster: FakeApiServer, tmp_path: Path) -> ApiServer:
    return ApiServer(settings_of(cluster.address, tmp_path), Random(1))


async def refusal(client: ApiServer, verb: str = "list") -> ApiServerError:
    asked = client.list() if verb == "list" else client.watch("1").__aenter__()
    with pytest.raises(ApiServerError) as refused:
        await asked
    return refused.value


async def test_a_list_and_a_watch(cluster: FakeApiServer, client: ApiServer) -> None:
    cluster.put(endpoint_slice("one", endpoint("a", "10.0.0.1")))
    listed = await client.list()
    (item,) = listed["items"]
    assert item["endpoints"][0]["addresses"] == ["10.0.0.1"]
    async with client.watch(listed["metadata"]["resourceVersion"]) as events:
        cluster.put(endpoint_slice("two", *(endpoint(f"pod-{number}", "10.0.0.2") for number in range(500))))
        cluster.remove("one")
        told = [await anext(events) for _ in range(2)]
        cluster.bookmark()
        told.append(await anext(events))
        assert [each["type"] for each in told] == ["ADDED", "DELETED", "BOOKMARK"]
        assert len(told[0]["object"]["endpoints"]) == 500
        assert told[2]["object"]["metadata"]["resourceVersion"] == "5"
        cluster.forget()
        told = [each async for each in events]
        assert [(each["type"], each["object"]["code"]) for each in told] == [("ERROR", 410)]


async def test_a_watch_that_is_cut_off(cluster: FakeApiServer, client: ApiServer) -> None:

    async def look() -> None:
        async with client.watch("1") as events:
            cluster.disconnect()
            await anext(events)

    with pytest.raises(ApiServerError) as lost:
        await look()
    assert (lost.value.status, lost.value.anew) == (0, False)
    assert cluster.address in lost.value.text


async def test_a_watch_can_be_left_at_any_time(cluster: FakeApiServer, client: ApiServer) -> None:
    async with trio.open_nursery() as nursery:

        async def look(*, task_status: trio.TaskStatus[None]) -> None:
            async with client.watch("1") as events:
                task_status.started()
                await anext(events)

        await nursery.start(look)
        nursery.cancel_scope.cancel()
    async with client.watch("1"):
        pass


async def test_a_token_that_was_replaced_is_read_again(
    cluster: FakeApiServer, client: ApiServer, tmp_path: Path
) -> None:
    await client.list()
    cluster.tokens = {"second"}
    refused = await refusal(client)
    assert refused.status == 401
    assert f"the token in {tmp_path / 'token'} is not accepted" in refused.text
    write_text(tmp_path / "token", "second\n")
    await client.list()


@pytest.mark.parametrize("text", ["", "secret\nsecret", "secret\x7f", "secret secret"])
async def test_a_file_without_a_token_is_refused_and_not_shown(
    cluster: FakeApiServer, client: ApiServer, tmp_path: Path, text: str
) -> None:
    write_text(tmp_path / "token", text)
    refused = await refusal(client)
    assert refused.text == f"the token of the service account: expected one token in {tmp_path / 'token'}, and no more"
    assert cluster.asked == []


def write_text(path: Path, text: str) -> None:
    path.write_text(text)


async def test_a_certificate_that_was_replaced_is_read_again(
    cluster: FakeApiServer, client: ApiServer, authority: Authority, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_account(tmp_path, Authority(other))
    assert "certificate verify failed" in (await refusal(client)).text
    write_account(tmp_path, authority)
    await client.list()


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_a_role_that_is_missing_is_named(cluster: FakeApiServer, client: ApiServer, verb: str) -> None:
    cluster.verbs.clear()
    refused = await refusal(client, verb)
    assert refused.status == 403
    assert f"it answers 403 to {verb}: endpointslices.discovery.k8s.io is forbidden" in refused.text
    role = "a Role in the namespace models with the verbs get, list and watch on endpointslices of the API group"
    assert role in refused.text


async def test_files_that_are_missing(cluster: FakeApiServer, client: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").unlink()
    assert "the certificate of its authority" in (await refusal(client)).text
    (tmp_path / "token").unlink()
    assert "the token of the service account: [Errno 2]" in (await refusal(client)).text
    assert cluster.asked == []


async def test_nobody_is_there(authority: Authority, tmp_path: Path) -> None:
    write_account(tmp_path, authority)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        client = ApiServer(settings_of(f"https://127.0.0.1:{taken.getsockname()[1]}", tmp_path), Random(1))
        refused = await refusal(client)
    assert refused.status == 0
    assert refused.text.startswith("https://127.0.0.1:")


async def test_an_address_without_tls_gets_no_token(tmp_path: Path) -> None:
    with FakeApiServer(None).running() as cluster:
        client = ApiServer(settings_of(cluster.address, tmp_path), Random(1))
        assert (await refusal(client)).status == 401


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "what is no JSON"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "no object of JSON"),
        (b"HTTP/1.1 500 No\r\nContent-Length: 4\r\n\r\nsick", "it answers 500 to list"),
        (b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", "are there since Kubernetes 1.21"),
        (b"SSH-2.0\r\n\r\n", "http://127.0.0.1:"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", "http://127.0.0.1:"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n" + b"x" * 999, "its answer is larger than 99 bytes"),
        (b"", "http://127.0.0.1:"),
    ],
)
async def test_what_is_no_api_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, text: str) -> None:
    monkeypatch.setattr(api_server, "_MOST_LIST_BYTES", 99)

    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(answer)
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        client = ApiServer(settings_of(f"http://127.0.0.1:{port}", tmp_path), Random(1))
        assert text in (await refusal(client)).text
        nursery.cancel_scope.cancel()


async def test_a_list_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server, "_LIST_LIMIT_S", 0.1)

    async def serve(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n")
            for _ in range(2000):
                await stream.send_all(b" ")
                await trio.sleep(0.001)

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        address = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        client = ApiServer(settings_of(address, tmp_path), Random(1))
        assert (await refusal(client)).text == f"{address}: no complete list within 0.1 s"
        nursery.cancel_scope.cancel()


async def test_an_event_that_is_too_large(
    cluster: FakeApiServer, client: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_server, "_MOST_EVENT_BYTES", 200)
    cluster.put(endpoint_slice("one", *(endpoint(f"pod-{number}", "10.0.0.2") for number in range(50))))
    async with client.watch("1") as events:
        with pytest.raises(ApiServerError, match="an event is larger than 200 bytes") as failed:
            await anext(events)
    assert failed.value.anew


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "httpcore2", None)
    with pytest.raises(UnavailableError, match=r"pip install trireme-server\[kubernetes\]"):
        ApiServer(settings_of("https://h", tmp_path), Random())
