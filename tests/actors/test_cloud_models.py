"""Models in an object store: loaded, changed, gone and broken, in every control mode; and downloads that are ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from obstore.exceptions import GenericError
from stored_models import Told, repository
from valued_models import CONFIG, CONFIG_JSON, Gates, ensemble_config, write_model
from valued_server import POLL_FAILED, ask, fails, index, serving, until

from trireme.engine.errors import InternalError, InvalidArgumentError, NotFoundError, UnavailableError
from trireme.engine.options import ControlMode, ServerOptions
from trireme.engine.repository.local import LocalRepository
from trireme.engine.repository.opening import JoinedRepositories

POLL = {"model_control_mode": ControlMode.POLL, "repository_poll_s": 0.01}


def put(told: Told, name: str, values: dict[int, object], config: str = CONFIG) -> None:
    told.put({f"{name}/{version}/value.txt": str(value).encode() for version, value in values.items()})
    told.put({f"{name}/config.pbtxt": config.encode()})


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


class Gate:
    """Holds up the first read of a path in a store, on its thread, until the test opens it."""

    def __init__(self, told: Told, path: str) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()
        self.threads: list[threading.Thread] = []
        self._path = path
        told.before = self._before

    def _before(self, asked: Any) -> None:
        if asked[0] == self._path:
            self.threads.append(threading.current_thread())
            self.reached.set()
            self.open.wait()


@pytest.fixture
def gate(told: Told) -> Iterator[Gate]:
    gate = Gate(told, "a/1/value.txt")
    yield gate
    gate.open.set()


async def test_poll_follows_the_store(told: Told, cache: Path, gates: Gates) -> None:
    """And reads nothing while nothing changes."""
    put(told, "a", {1: 1})
    async with serving((), gates, source=repository(told, cache), **POLL) as server:
        assert await ask(server, "a") == 1
        told.asked.clear()
        await until(lambda: len(told.asked) > 5)
        assert set(told.asked) == {"list"}
        put(told, "b", {4: 4})
        await until(lambda: server.model_ready("b"))
        put(told, "b", {5: 5})
        await until(lambda: server.model_ready("b", 5))
        assert told.read.count("b/4/value.txt") == 1
        told.drop("b/4/value.txt", "b/5/value.txt", "b/config.pbtxt")
        await until(lambda: not server.model_ready("b"))
        assert [row[0] for row in await index(server)] == ["a"]
        assert await ask(server, "a") == 1


async def test_a_change_of_half_a_model_keeps_the_old_one(
    told: Told, cache: Path, gates: Gates, caplog: pytest.LogCaptureFixture
) -> None:
    """What is uploaded bit by bit is tried at each change, and serves when it is whole."""
    put(told, "a", {1: 1})
    async with serving((), gates, source=repository(told, cache), **POLL) as server:
        told.put({"a/2/part.bin": b"part"})
        await until(lambda: any(row.reason == "Internal: no value" for row in server.repository_index()))
        assert await ask(server, "a") == 1
        told.put({"a/2/value.txt": b"2"})
        await until(lambda: server.model_ready("a", 2))
        assert await ask(server, "a") == 2
        told.put({"a/config.pbtxt": b"backend 7"})
        await until(lambda: "Poll failed for model directory 'a': failed to read text proto from" in caplog.text)
        assert await ask(server, "a") == 2


async def test_what_cannot_be_loaded_is_not_fetched_at_every_look(told: Told, cache: Path, gates: Gates) -> None:
    """Not even where the cache keeps nothing that is not used."""
    put(told, "a", {1: 1})
    async with serving((), gates, source=repository(told, cache, limit_bytes=0), **POLL) as server:
        put(told, "a", {2: "broken"})
        await until(lambda: any(row.reason == "Internal: no value" for row in server.repository_index()))
        told.asked.clear()
        await until(lambda: len(told.asked) > 5)
        assert set(told.asked) == {"list"}
        put(told, "a", {2: 2})
        await until(lambda: server.model_ready("a", 2))


async def test_a_store_out_of_reach_takes_nothing_away(
    told: Told, cache: Path, gates: Gates, caplog: pytest.LogCaptureFixture
) -> None:
    put(told, "a", {1: 1})
    async with serving((), gates, source=repository(told, cache), **POLL) as server:
        told.refusal = GenericError('sending failed\n\nConnectError( "tcp", message: "Connection refused"')
        await until(lambda: "failed to poll the model repository: failed to list the repository" in caplog.text)
        assert "the store cannot be reached (sending failed: Connection refused)" in caplog.text
        assert await ask(server, "a") == 1
        put(told, "a", {1: 7})
        told.refusal = None
        await until(lambda: server.statistics("a")[0].statistics.success.count == 0)
        assert await ask(server, "a") == 7


async def test_explicit_control(told: Told, cache: Path, gates: Gates) -> None:
    put(told, "a", {1: 1})
    put(told, "e", {}, ensemble_config("a"))
    told.put({"e/1": b""})
    async with serving((), gates, source=repository(told, cache)) as server:
        assert await index(server) == [("a", "", "", ""), ("e", "", "", "")]
        assert told.read == []
        await server.load_model("e", {})
        assert await ask(server, "e") == 1
        put(told, "a", {1: 2})
        await server.load_model("a", {})
        assert (await ask(server, "a"), await ask(server, "e")) == (2, 2)
        told.asked.clear()
        await server.load_model("a", {})
        assert told.asked == ["list"]
        await server.unload_model("e", True)
        await server.unload_model("a")
        await until(lambda: server._repository.live_versions() == 0)
        await until(lambda: not list(cache.glob("*/models/*")))
        await fails(server.load_model("nope", {}), InternalError, POLL_FAILED.format("nope"))


async def test_a_configuration_of_the_request_stays_until_the_store_has_something_newer(
    told: Told, cache: Path, gates: Gates
) -> None:
    put(told, "a", {1: 1, 2: 2})
    async with serving((), gates, "a", source=repository(told, cache)) as server:
        override = CONFIG_JSON % ("a", ',"version_policy":{"specific":{"versions":[1]}}')
        await server.load_model("a", {"config": override})
        assert await ask(server, "a") == 1
        await server.load_model("a", {})
        assert await ask(server, "a") == 1
        put(told, "a", {2: 3})
        await server.load_model("a", {})
        assert await ask(server, "a") == 3


async def test_instances_are_changed_in_place(told: Told, cache: Path, gates: Gates) -> None:
    """The version that serves keeps its files, however the model is fetched again."""
    put(told, "a", {1: 1})
    async with serving((), gates, source=repository(told, cache), **POLL) as server:
        await ask(server, "a")
        put(told, "a", {}, CONFIG + "instance_group { count: 3 kind: KIND_CPU }")
        await until(lambda: server.model_statistics()[0].instances == 3)
        assert server.statistics("a")[0].statistics.success.count == 1
        (directory,) = {each.source.directory for each in server._repository.models()}  # pyright: ignore
        assert (directory / "1" / "value.txt").exists()


async def test_stores_and_directories_together(told: Told, tmp_path: Path, cache: Path, gates: Gates) -> None:
    put(told, "a", {1: 1})
    put(told, "both", {1: 1})
    write_model(tmp_path / "local", "b", {1: 2})
    write_model(tmp_path / "local", "both", {1: 2})
    sources = [LocalRepository([tmp_path / "local"]), repository(told, cache)]
    async with serving((), gates, "a", "b", source=JoinedRepositories(sources, namespacing=False)) as server:
        assert (await ask(server, "a"), await ask(server, "b")) == (1, 2)
        rows = await index(server)
        assert rows[-1] == ("both", "", "UNAVAILABLE", "model appears in two or more repositories")


class TestDownloadsThatTakeLong:
    async def test_looks_go_on_meanwhile(self, told: Told, cache: Path, gates: Gates, gate: Gate) -> None:
        """Other models come, change and go; the one that is fetched is not fetched twice for that."""
        put(told, "b", {1: 1})
        put(told, "c", {1: 1})
        async with serving((), gates, source=repository(told, cache), **POLL) as server:
            put(told, "a", {1: 7})
            await until(gate.reached.is_set)
            put(told, "b", {2: 2})
            put(told, "d", {4: 4})
            told.drop("c/1/value.txt", "c/config.pbtxt")
            await until(lambda: server.model_ready("b", 2) and server.model_ready("d"))
            await until(lambda: not server.model_ready("c"))
            put(told, "b", {3: 3})
            await until(lambda: server.model_ready("b", 3))
            gate.open.set()
            await until(lambda: server.model_ready("a"))
            assert await ask(server, "a") == 7
            assert len(gate.threads) == 1

    async def test_loads_have_threads_of_their_own(
        self, told: Told, tmp_path: Path, cache: Path, gates: Gates, gate: Gate
    ) -> None:
        local = LocalRepository([write_model(tmp_path / "local", "b", {1: 1}).parent])
        source = JoinedRepositories([local, repository(told, cache)], namespacing=False)
        told.put({"README": b"no model"})
        async with serving((), gates, source=source, model_load_thread_count=1, **POLL) as server:
            put(told, "a", {1: 7})
            await until(gate.reached.is_set)
            write_model(tmp_path / "local", "b", {2: 2})
            await until(lambda: server.model_ready("b", 2))
            gate.open.set()
            await until(lambda: server.model_ready("a"))

    async def test_an_ensemble_waits_for_its_member(
        self, told: Told, cache: Path, gates: Gates, gate: Gate, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its earlier version serves until then."""
        put(told, "b", {1: 1})
        put(told, "e", {}, ensemble_config("b"))
        told.put({"e/1/.keep": b""})
        async with serving((), gates, source=repository(told, cache), **POLL) as server:
            put(told, "a", {1: 7})
            await until(gate.reached.is_set)
            put(told, "e", {}, ensemble_config("a"))
            told.drop("b/1/value.txt", "b/config.pbtxt")
            await until(lambda: server._control._follower.under_way(["e"]))
            told.asked.clear()
            await until(lambda: told.asked.count("list") > 5)
            assert await ask(server, "e") == 1
            gate.open.set()
            await until(lambda: not server.model_ready("b"))
            assert await ask(server, "e") == 7
        assert "Poll failed" not in caplog.text

    async def test_a_model_that_goes_while_it_is_fetched_is_gone(
        self, told: Told, cache: Path, gates: Gates, gate: Gate, caplog: pytest.LogCaptureFixture
    ) -> None:
        told.put({"README": b"no model"})
        async with serving((), gates, source=repository(told, cache), **POLL) as server:
            put(told, "a", {1: 7})
            await until(gate.reached.is_set)
            told.drop("a/1/value.txt", "a/config.pbtxt")
            gate.open.set()
            await until(lambda: "model 'a' is not in the repository 's3://bucket/models' any more" in caplog.text)
            put(told, "a", {1: 8})
            await until(lambda: server.model_ready("a"))
            assert await ask(server, "a") == 8

    @pytest.mark.parametrize("startup", [("a", "b"), ("e", "b"), ("*",)])
    async def test_a_start_loads_what_is_there(
        self, told: Told, cache: Path, gates: Gates, gate: Gate, startup: tuple[str, ...], caplog: Any
    ) -> None:
        """While another model is fetched; what needs that one waits for it."""
        put(told, "a", {1: 7})
        put(told, "b", {1: 2})
        put(told, "e", {}, ensemble_config("a"))
        told.put({"e/1/.keep": b""})
        caplog.set_level("INFO")

        async def let_go() -> None:
            await until(gate.reached.is_set)
            await until(lambda: "successfully loaded 'b'" in caplog.text)
            assert "loading: a" not in caplog.text
            gate.open.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(let_go)
            async with serving((), gates, *startup, source=repository(told, cache), exit_on_error=True) as server:
                assert (await ask(server, startup[0] if startup != ("*",) else "e"), await ask(server, "b")) == (7, 2)
        assert len(gate.threads) == 1


class TestDownloadsThatAreEnded:
    async def test_the_loop_goes_on_meanwhile(self, told: Told, cache: Path, gates: Gates, gate: Gate) -> None:
        """A download runs on threads of its own."""
        put(told, "a", {1: 1})
        put(told, "b", {1: 2})
        async with serving((), gates, "b", source=repository(told, cache)) as server, trio.open_nursery() as nursery:
            nursery.start_soon(server.load_model, "a", {})
            await until(gate.reached.is_set)
            assert await ask(server, "b") == 2
            assert all(thread.name.startswith("trireme download a") for thread in gate.threads)
            gate.open.set()
            await until(lambda: server.model_ready("a"))

    async def test_by_an_unload(self, told: Told, cache: Path, gates: Gates, gate: Gate) -> None:
        put(told, "a", {1: 1})
        options = {"source": repository(told, cache), "load_patience_s": 0.0}
        async with serving((), gates, **options) as server, trio.open_nursery() as nursery:
            text = "load failed for model 'a': it was unloaded meanwhile, no version is available\n"
            nursery.start_soon(fails, server.load_model("a", {}), InvalidArgumentError, text)
            await until(gate.reached.is_set)
            with trio.fail_after(60):
                await server.unload_model("a")
            gate.open.set()
            await server.load_model("a", {})
            assert await ask(server, "a") == 1

    async def test_by_a_stop(self, told: Told, cache: Path, gates: Gates, gate: Gate) -> None:
        """Without waiting for what is under way; the call that asked for it is answered before the server has ended."""
        put(told, "a", {1: 1})
        answered = trio.Event()

        async def load(server: Any) -> None:
            with pytest.raises(UnavailableError, match="Server is stopping"):
                await server.load_model("a", {})
            answered.set()

        async with trio.open_nursery() as nursery, serving((), gates, source=repository(told, cache)) as server:
            nursery.start_soon(load, server)
            await until(gate.reached.is_set)
            server.end_loads()
            with trio.fail_after(60):
                await answered.wait()
        assert not gate.open.is_set()

    async def test_by_the_end_of_a_start(self, told: Told, cache: Path, gates: Gates, gate: Gate) -> None:
        put(told, "a", {1: 1})
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def end() -> None:
                    await until(gate.reached.is_set)
                    scope.cancel()

                nursery.start_soon(end)
                async with serving((), gates, "a", source=repository(told, cache)):
                    raise AssertionError("the model cannot have been loaded")
        assert scope.cancelled_caught
        assert not gate.open.is_set()


async def test_a_start_without_the_store_fails_in_clear_words(told: Told, cache: Path, gates: Gates) -> None:
    told.refusal = FileNotFoundError("status code: 404: <Code>NoSuchBucket</Code><Message>none</Message>")
    with pytest.raises(NotFoundError) as caught:
        async with serving((), gates, source=repository(told, cache), **POLL):
            pass
    assert caught.value.message == (
        "failed to list the repository 's3://bucket/models': there is no such bucket or container (NoSuchBucket: none)"
    )


async def test_without_the_library_a_start_names_the_extra(monkeypatch: pytest.MonkeyPatch, gates: Gates) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    with pytest.raises(UnavailableError, match=r"object stores need the package obstore.*trireme-server\[cloud\]"):
        async with serving(("gs://bucket/models",), gates, **POLL):
            pass


def test_addresses_of_the_options_are_opened() -> None:
    from trireme.engine.clock import SystemClock
    from trireme.engine.repository.opening import open_repositories

    options = ServerOptions(model_repository=(Path("/models"), "s3://b/x", "as://a/c"))
    opened = open_repositories(options, {}, SystemClock())
    assert isinstance(opened, JoinedRepositories)
    assert len(opened._sources) == 3
    with pytest.raises(InternalError, match="No bucket name found in path: s3://"):
        open_repositories(ServerOptions(model_repository=("s3://",)), {}, SystemClock())
