"""Loads that fail and are tried again (``--model-load-retry-count``), and what readiness says of models that come, go,
or cannot be loaded (docs/reference/command-line.md#live-and-ready)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trio
from valued_models import CONFIG, CONFIG_JSON, Gates, ensemble_config, valued_request
from valued_models import write_model as write
from valued_server import ask, fails, index, serving, until

from trireme.actors import StartupError
from trireme.engine.errors import InvalidArgumentError, NotFoundError, TriremeError, UnavailableError


class TestRetries:
    async def test_a_load_that_fails_is_tried_again(
        self, tmp_path: Path, gates: Gates, caplog: pytest.LogCaptureFixture
    ) -> None:
        write(tmp_path, "a", {1: 1})
        gates.spoil("not now", times=2)
        with caplog.at_level(logging.WARNING):
            async with serving(tmp_path, gates, "a", model_load_retry_count=2) as server:
                assert await ask(server, "a") == 1
                assert server.model_statistics()[0].instances == 1
        tries = [message for message in caplog.messages if "trying again" in message]
        assert tries == [
            "loading 'a' version 1 failed: Internal: not now; trying again (1 of 2)",
            "loading 'a' version 1 failed: Internal: not now; trying again (2 of 2)",
        ]

    @pytest.mark.parametrize("count", [0, 2])
    async def test_not_for_ever(self, tmp_path: Path, gates: Gates, count: int) -> None:
        write(tmp_path, "a", {1: 1})
        gates.spoil("never", times=count + 1)
        async with serving(tmp_path, gates, model_load_retry_count=count) as server:
            text = "load failed for model 'a': version 1 is at UNAVAILABLE state: Internal: never;\n"
            await fails(server.load_model("a", {}), InvalidArgumentError, text)
            await server.load_model("a", {})
            assert await ask(server, "a") == 1

    async def test_while_the_old_version_serves(self, tmp_path: Path, gates: Gates) -> None:
        write(tmp_path, "a", {1: 1})
        async with serving(tmp_path, gates, "a", model_load_retry_count=1) as server:
            write(tmp_path, "a", {1: 2})
            gates.spoil("not now", times=1)
            await server.load_model("a", {})
            assert await ask(server, "a") == 2

    async def test_of_an_ensemble(self, tmp_path: Path, gates: Gates) -> None:
        """Its members are let go between two attempts, and so can be unloaded later."""
        write(tmp_path, "a", {1: 1})
        write(tmp_path, "e", {1: 0}, ensemble_config("a").replace("dims: [ 1 ]", "dims: [ 2 ]"))
        async with serving(tmp_path, gates, model_load_retry_count=3) as server:
            with pytest.raises(InvalidArgumentError, match="ensemble"):
                await server.load_model("e", {})
            await server.unload_model("a")
            await until(lambda: server._repository.live_versions() == 0)

    async def test_a_server_that_stops_does_not_try_again(self, tmp_path: Path, gates: Gates) -> None:
        write(tmp_path, "a", {1: 1})
        (tmp_path / "a" / "1" / "gate.txt").write_text("load")
        gates.spoil("never")
        with trio.fail_after(20):
            async with (
                trio.open_nursery() as nursery,
                serving(tmp_path, gates, model_load_retry_count=1_000_000_000) as server,
            ):

                async def load() -> None:
                    with pytest.raises(UnavailableError):
                        await server.load_model("a", {})

                nursery.start_soon(load)
                await until(lambda: gates.waiting)
                nursery.start_soon(server.stop, 20)
                await until(lambda: server.exiting)
                gates.open("load")


class TestHangingLoads:
    """In a framework, on a thread, which nothing can end."""

    @pytest.mark.parametrize("where", ["load", "instance"])
    async def test_nobody_waits_for_one_that_is_not_wanted(self, tmp_path: Path, gates: Gates, where: str) -> None:
        write(tmp_path, "a", {1: 1})
        if where == "load":
            (tmp_path / "a" / "1" / "gate.txt").write_text(where)
        else:
            gates.hold = where
        with trio.fail_after(60):
            async with serving(tmp_path, gates, load_patience_s=0.0) as server, trio.open_nursery() as nursery:

                async def load(text: str) -> None:
                    with pytest.raises(TriremeError, match=text):
                        await server.load_model("a", {})

                nursery.start_soon(load, "it was unloaded meanwhile, no version is available")
                await until(lambda: gates.waiting == [where])
                await server.unload_model("a")
                nursery.start_soon(load, "Server is stopping")
                await until(lambda: gates.waiting == [where, where])
                assert await server.stop(60)
        gates.open(where)

    async def test_new_instances_are_not_waited_for_either(self, tmp_path: Path, gates: Gates) -> None:
        """The model serves, and is told to have one more."""
        write(tmp_path, "a", {1: 1})
        with trio.fail_after(60):
            async with serving(tmp_path, gates, "a", load_patience_s=0.0) as server, trio.open_nursery() as nursery:
                gates.hold = "instance"
                more = CONFIG_JSON % ("a", ',"instance_group":[{"count":2}]')

                async def load() -> None:
                    with pytest.raises(InvalidArgumentError, match="it was unloaded meanwhile"):
                        await server.load_model("a", {"config": more})

                nursery.start_soon(load)
                await until(lambda: gates.waiting)
                await server.unload_model("a")
                await until(lambda: not server._repository.live_versions())
        gates.open("instance")


class TestReadiness:
    async def test_a_model_that_is_loaded_for_the_first_time_is_waited_for(self, tmp_path: Path, gates: Gates) -> None:
        write(tmp_path, "a", {1: 1})
        (tmp_path / "a" / "1" / "gate.txt").write_text("load")
        async with serving(tmp_path, gates) as server, trio.open_nursery() as nursery:
            assert server.ready()
            nursery.start_soon(server.load_model, "a", {})
            await until(lambda: gates.waiting)
            assert not server.ready()
            assert await index(server) == [("a", "1", "LOADING", "")]
            gates.open("load")
            await until(server.ready)

    async def test_a_reload_is_not_seen(self, tmp_path: Path, gates: Gates) -> None:
        """Neither while another version is loaded beside the one that serves, nor while the old one drains."""
        write(tmp_path, "a", {1: 1})
        async with serving(tmp_path, gates, "a") as server, trio.open_nursery() as nursery:
            first = await server.admit(valued_request("a", gate="g"))
            write(tmp_path, "a", {1: 1, 2: 2})
            (tmp_path / "a" / "2" / "gate.txt").write_text("load")
            nursery.start_soon(server.load_model, "a", {})
            await until(lambda: "load" in gates.waiting)
            assert (server.ready(), server.model_ready("a"), server.describe("a").version) == (True, True, 1)
            gates.open("load")
            await until(lambda: server.model_ready("a", 2))
            assert [row[2] for row in await index(server)] == ["UNLOADING", "READY"]
            assert (server.ready(), server.model_ready("a")) == (True, True)
            gates.open("g")
            await first.response()

    async def test_a_failed_version_makes_the_server_unready(self, tmp_path: Path, gates: Gates) -> None:
        policy = CONFIG + "version_policy { all { } }"
        write(tmp_path, "a", {1: 1}, policy)
        async with (
            serving(tmp_path, gates, "a") as strict,
            serving(tmp_path, gates, "a", strict_readiness=False) as lax,
        ):
            write(tmp_path, "a", {1: 1, 2: "broken"}, policy)
            for server in (strict, lax):
                with pytest.raises(InvalidArgumentError):
                    await server.load_model("a", {})
                assert server.model_ready("a")
            assert (strict.ready(), lax.ready()) == (False, True)

    async def test_a_model_of_which_no_version_could_be_chosen(self, tmp_path: Path, gates: Gates) -> None:
        """It has no row in the index, and the server is not ready, until it is mended or unloaded."""
        write(tmp_path, "a", {})
        async with serving(tmp_path, gates) as server:
            for _ in range(2):
                assert await index(server) == [("a", "", "", "")]
                with pytest.raises(InvalidArgumentError, match="at least one version must be available"):
                    await server.load_model("a", {})
                assert await index(server) == []
                assert not server.ready()
                text = "Request for unknown model: 'a' has no available versions"
                await fails(server.infer(valued_request("a")), NotFoundError, text)
                await server.unload_model("a")
                assert server.ready()
            write(tmp_path, "a", {1: 1})
            await server.load_model("a", {})
            assert await index(server) == [("a", "1", "READY", "")]

    async def test_an_ensemble_that_its_members_keep_from_loading_is_as_if_it_never_had_been(
        self, tmp_path: Path, gates: Gates
    ) -> None:
        write(tmp_path, "a", {1: "broken"})
        write(tmp_path, "e", {1: 0}, ensemble_config("a"))
        async with serving(tmp_path, gates) as server:
            with pytest.raises(InvalidArgumentError):
                await server.load_model("e", {})
            assert await index(server) == [("a", "1", "UNAVAILABLE", "Internal: no value"), ("e", "", "", "")]

    @pytest.mark.parametrize("names", [("*",), ("a", "b")])
    async def test_a_failed_start_that_is_made_good(self, tmp_path: Path, gates: Gates, names: tuple[str, ...]) -> None:
        write(tmp_path, "a", {1: 1})
        write(tmp_path, "b", {1: 1}, "nonsense")
        async with serving(tmp_path, gates, *names, exit_on_error=False) as server:
            assert not server.ready()
            await server.load_model("a", {})
            assert not server.ready()
            (tmp_path / "b" / "config.pbtxt").write_text(CONFIG)
            await server.load_model("b", {})
            assert server.ready()
            await server.unload_model("b")
            await until(lambda: server.ready() and not server.model_ready("b"))

    @pytest.mark.parametrize("strict", [True, False])
    async def test_a_failed_start(self, tmp_path: Path, gates: Gates, strict: bool) -> None:
        write(tmp_path, "a", {1: 1})
        write(tmp_path, "b", {1: 1}, "nonsense")
        async with serving(tmp_path, gates, "*", exit_on_error=False, strict_readiness=strict) as server:
            assert server.ready() is not strict
            assert await ask(server, "a") == 1
        with pytest.raises(StartupError):
            async with serving(tmp_path, gates, "*", strict_readiness=strict):
                pytest.fail("the server must not open")


async def test_while_all_loading_threads_are_at_work_the_rest_goes_on(tmp_path: Path, gates: Gates) -> None:
    """The index is told, and other models are unloaded."""
    write(tmp_path, "a", {1: 1})
    write(tmp_path, "b", {1: 2})
    (tmp_path / "b" / "1" / "gate.txt").write_text("load")
    async with serving(tmp_path, gates, "a", model_load_thread_count=1) as server, trio.open_nursery() as nursery:
        nursery.start_soon(server.load_model, "b", {})
        await until(lambda: gates.waiting)
        with trio.fail_after(20):
            assert await index(server) == [("a", "1", "READY", ""), ("b", "1", "LOADING", "")]
            await server.unload_model("a")
        await until(lambda: server.repository_index()[0].reason == "unloaded")
        gates.open("load")
