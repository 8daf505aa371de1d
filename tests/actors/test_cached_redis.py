"""The Redis cache, against a server that speaks its protocol on a loopback port."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trio
from counted_models import (
    CACHED,
    CONFIG,
    ENSEMBLE,
    Counter,
    counted_request,
    counted_server,
    number_of,
    statistics_of,
    until,
)
from fakeredis import TcpFakeServer
from logs import said_by

from trireme.actors import InferenceServer
from trireme.engine.cache import interface as guard
from trireme.engine.cache.caches import RedisCache
from trireme.engine.clock import SystemClock
from trireme.engine.errors import InvalidArgumentError, UnavailableError

SETTINGS = (
    *("connect_timeout", "db", "host", "password", "pool_size", "port", "socket_timeout", "tls_cacert"),
    *("tls_cacert_dir", "tls_cert", "tls_enabled", "tls_key", "user", "wait_timeout"),
)


@contextmanager
def running_redis(port: int = 0) -> Iterator[TcpFakeServer]:
    server = TcpFakeServer(("127.0.0.1", port))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def redis() -> Iterator[TcpFakeServer]:
    with running_redis() as server:
        yield server


@pytest.fixture
def counter() -> Counter:
    return Counter()


def config_for(port: int, **settings: str) -> dict[str, dict[str, str]]:
    """With patience that only a broken test or server wears out."""
    patience = dict.fromkeys(("connect_timeout", "socket_timeout", "wait_timeout"), "20000")
    return {"redis": {"host": "127.0.0.1", "port": str(port), **patience, **settings}}


@contextmanager
def refusing_port() -> Iterator[int]:
    """A port that is taken, and that nobody listens at."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


async def kept(server: InferenceServer, count: int) -> None:
    await until(lambda: statistics_of(server).cache_miss.count == count)


async def test_servers_with_the_same_model_share_what_they_know(
    tmp_path: Path, counter: Counter, redis: TcpFakeServer
) -> None:
    """A second server, started later on a copy of the repository, answers from what the first has left."""
    config = config_for(redis.server_address[1])
    async with counted_server(tmp_path / "a", counter, {"m": CACHED}, config) as server:
        assert number_of(await server.infer(counted_request((1, 2)))) == 1
        await kept(server, 1)
    async with counted_server(tmp_path / "b", counter, {"m": CACHED}, config) as server:
        answer = await server.infer(counted_request((1, 2), id="x"))
        assert (answer.id, number_of(answer), answer.output("OUT").array.tolist()) == ("x", 1, [[2, 4]])
        counted = statistics_of(server)
        assert (counted.success.count, counted.cache_hit.count, counted.execution_count) == (1, 1, 0)
    assert counter.executed == 1


@pytest.mark.parametrize("change", ["file", "configuration", "member"])
async def test_a_model_that_was_changed_is_another_one(
    tmp_path: Path, counter: Counter, redis: TcpFakeServer, change: str
) -> None:
    """The same name and version with another file, or another configuration; also if it is a member that changed."""
    config = config_for(redis.server_address[1])
    cached = ENSEMBLE + "response_cache { enable: true }\n"
    models = {"m": CONFIG, "whole": cached} if change == "member" else {"m": CACHED}
    name = "whole" if change == "member" else "m"
    async with counted_server(tmp_path, counter, models, config) as server:
        await server.infer(counted_request(name=name))
        await until(lambda: statistics_of(server, name).cache_miss.count == 1)
    if change == "configuration":
        models["m"] += 'parameters { key: "a" value { string_value: "b" } }'
    else:
        (tmp_path / "m" / "1" / "weights").write_text("other")
    async with counted_server(tmp_path, counter, models, config) as server:
        await server.infer(counted_request(name=name))
    assert counter.executed == 2


async def test_a_redis_that_is_not_there_is_done_without(
    tmp_path: Path, counter: Counter, caplog: pytest.LogCaptureFixture
) -> None:
    with refusing_port() as port, caplog.at_level(logging.INFO, "trireme.cache"):
        async with counted_server(tmp_path, counter, {"m": CACHED}, config_for(port)) as server:
            for _ in range(5):
                await server.infer(counted_request())
            assert statistics_of(server).success.count == 5
    (message,) = said_by(caplog, "trireme.cache")
    assert message.startswith("response cache 'redis' fails, requests go on without it: ConnectionError: Error ")


async def test_a_redis_that_says_nothing_is_done_without(
    tmp_path: Path, counter: Counter, caplog: pytest.LogCaptureFixture
) -> None:
    """One request waits for the timeout; those after it do not."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = config_for(listener.getsockname()[1], socket_timeout="50")
        async with counted_server(tmp_path, counter, {"m": CACHED}, config) as server:
            with caplog.at_level(logging.INFO, "trireme.cache"):
                for _ in range(5):
                    await server.infer(counted_request())
    (message,) = said_by(caplog, "trireme.cache")
    assert "TimeoutError" in message


async def test_a_redis_that_comes_back_is_used_again(
    tmp_path: Path, counter: Counter, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "RETRY_S", 0.02)
    caplog.set_level(logging.INFO, "trireme.cache")
    with ExitStack() as away:
        port = away.enter_context(refusing_port())
        async with counted_server(tmp_path, counter, {"m": CACHED}, config_for(port)) as server:
            await server.infer(counted_request())
            away.close()
            with running_redis(port), trio.fail_after(20):
                while not statistics_of(server).cache_hit.count:
                    await server.infer(counted_request())
                    await trio.sleep(0.02)
    assert said_by(caplog, "trireme.cache")[1:] == ["response cache 'redis' answers again"]


async def test_what_others_have_put_there_is_a_miss(tmp_path: Path, counter: Counter, redis: TcpFakeServer) -> None:
    config = config_for(redis.server_address[1])
    async with counted_server(tmp_path, counter, {"m": CACHED}, config) as server:
        await server.infer(counted_request())
        await kept(server, 1)
        cache = RedisCache(config["redis"], SystemClock())
        (key,) = cache._client.keys("*")
        assert key.startswith(b"trireme:response:")
        cache._client.set(key, b"something else")
        cache.close()
        assert number_of(await server.infer(counted_request())) == 2


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(
        UnavailableError, match=r"the cache 'redis' needs the package redis: pip install trireme-server\[redis\]"
    ):
        RedisCache({"host": "h", "port": "1"}, SystemClock())


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"port": "1"}, "the setting 'host' is missing"),
        ({"host": "h"}, "the setting 'port' is missing"),
        ({"host": "h", "port": "x"}, "'port' is a whole number, at least 0, not 'x'"),
        ({"host": "h", "port": "1", "pool_size": "0"}, "'pool_size' is a whole number, at least 1, not '0'"),
        ({"host": "h", "port": "1", "tls_enabled": "maybe"}, "'tls_enabled' is true or false, not 'maybe'"),
        (
            {"host": "h", "port": "1", "size": "3"},
            f"it has no setting 'size', only {', '.join(SETTINGS)}",
        ),
    ],
)
def test_bad_settings_are_named(settings: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        RedisCache(settings, SystemClock())
    assert raised.value.message == f"Failed to initialize RedisCache: {text}"


def test_tls_and_the_login_reach_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITONCACHE_REDIS_USERNAME", "ann")
    settings = {
        "host": "h",
        "port": "1",
        "tls_enabled": "true",
        "tls_cacert": "ca.pem",
        "password": "secret",
        "db": "3",
    }
    pool = RedisCache(settings, SystemClock())._client.connection_pool
    arguments = pool.connection_kwargs
    assert pool.connection_class.__name__ == "SSLConnection"
    assert {name: arguments[name] for name in ("username", "password", "db", "ssl_ca_certs", "protocol")} == {
        "username": "ann",
        "password": "secret",
        "db": 3,
        "ssl_ca_certs": "ca.pem",
        "protocol": 2,
    }
