"""Coroutines of models in the server's process run on trio, or on asyncio where they ask for that."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio
from calling_models import ADD_ONE, DECOUPLED, HEAD, REPEAT, TEXT, answer
from python_models import CONFIG, ask, leap, open_repository, until, write_model
from trio.testing import MockClock

from trireme.engine.errors import InternalError, TriremeError

IN_PROCESS = 'parameters { key: "EXECUTION" value { string_value: "in_process" } }\n'
ON_ASYNCIO = IN_PROCESS + 'parameters { key: "ASYNC_LIBRARY" value { string_value: "asyncio" } }\n'

HEAD_ON_TRIO = HEAD.replace("import asyncio", "import asyncio\n    import trio", 1)

GATHERING = (
    HEAD_ON_TRIO
    + """
        async def execute(self, requests):
            await trio.lowlevel.checkpoint()
            values = []

            async def ask(value):
                values.append(value_of(await call("t", value).async_exec()))

            async with trio.open_nursery() as nursery:
                for value in (1, 2, 3):
                    nursery.start_soon(ask, value)
            async for part in await call("r", 40).async_exec(decoupled=True):
                if part.output_tensors():
                    values.append(value_of(part))
            return [response(sum(values))]
"""
)


async def test_models_are_awaited_on_trio(tmp_path: Path) -> None:
    """Some that answer once, together, and one that answers many times."""
    write_model(tmp_path, "t", ADD_ONE)
    write_model(tmp_path, "r", REPEAT, DECOUPLED)
    write_model(tmp_path, "m", GATHERING, CONFIG + IN_PROCESS)
    before = threading.active_count()
    async with open_repository(tmp_path) as server:
        for _ in range(10):
            assert await answer(server, "m", 0) == 2 + 3 + 4 + sum(range(40))
    await until(lambda: threading.active_count() <= before + 4)  # trio keeps some for later


async def test_batches_overlap_on_trio_and_know_their_own_requests(tmp_path: Path) -> None:
    """The first batch ends by what the second does; what each of them asks is made for its own client."""
    code = (
        HEAD_ON_TRIO
        + """
        def initialize(self, args):
            self.second = trio.Event()

        async def execute(self, requests):
            if value_of(requests[0]) == 1:
                await self.second.wait()
            self.second.set()
            return [await call("t", value_of(request)).async_exec() for request in requests]
"""
    )
    write_model(tmp_path, "t", ADD_ONE)
    write_model(tmp_path, "m", code, CONFIG + IN_PROCESS)
    outcomes: list[float] = []
    async with open_repository(tmp_path) as server:

        async def go(value: int) -> None:
            outcomes.append(await answer(server, "m", value))

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(go, 1)
                nursery.start_soon(go, 2)
    assert sorted(outcomes) == [2, 3]


async def test_asyncio_is_there_for_who_asks_for_it(tmp_path: Path) -> None:
    code = (
        HEAD
        + """
        async def execute(self, requests):
            await asyncio.sleep(0)
            answers = await asyncio.gather(*[call("t", value).async_exec() for value in (1, 2)])
            return [response(sum(value_of(answer) for answer in answers))]
"""
    )
    write_model(tmp_path, "t", ADD_ONE)
    write_model(tmp_path, "m", code, CONFIG + ON_ASYNCIO)
    async with open_repository(tmp_path) as server:
        assert await answer(server, "m", 0) == 5


async def test_a_model_that_is_no_coroutine_may_run_a_loop_of_its_own(tmp_path: Path) -> None:
    code = (
        HEAD_ON_TRIO
        + """
        def execute(self, requests):
            async def ask():
                return await call("t", value_of(requests[0])).async_exec()

            return [asyncio.run(ask()) if value_of(requests[0]) == 1 else trio.run(ask)]
"""
    )
    write_model(tmp_path, "t", ADD_ONE)
    write_model(tmp_path, "m", code, CONFIG + IN_PROCESS)
    async with open_repository(tmp_path) as server:
        assert await answer(server, "m", 1) == 2
        assert await answer(server, "m", 2) == 3


@pytest.mark.parametrize(
    "what", ["asyncio.sleep(1)", "asyncio.Event().wait()", "asyncio.timeout(1).__aenter__()", "asyncio.sleep(0)"]
)
async def test_who_uses_asyncio_on_trio_is_told_what_to_do(tmp_path: Path, what: str) -> None:
    code = (
        HEAD
        + f"""
        async def execute(self, requests):
            if value_of(requests[0]):
                await {what}
            return [response(0)]
"""
    )
    write_model(tmp_path, "m", code, CONFIG + IN_PROCESS)
    async with open_repository(tmp_path) as server:
        with pytest.raises(InternalError, match=r"(?s)model\.py\(.*\): execute\n.*unless its parameter ASYNC_LIBRARY"):
            await server.infer(ask("m", 1))
        assert await answer(server, "m", 0) == 0


async def test_what_a_nursery_raises_is_told_as_what_it_is(tmp_path: Path) -> None:
    code = (
        HEAD_ON_TRIO
        + """
        async def fail(self):
            raise ValueError("in a nursery")

        async def execute(self, requests):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.fail)
"""
    )
    write_model(tmp_path, "m", code, CONFIG + IN_PROCESS)
    async with open_repository(tmp_path) as server:
        with pytest.raises(
            InternalError, match=r"message: ValueError: in a nursery\n\nAt:\n .*model.py\(\d+\): fail\n"
        ):
            await server.infer(ask("m", 1))


@pytest.mark.parametrize("config", [IN_PROCESS, ON_ASYNCIO])
async def test_whatever_a_decoupled_coroutine_raises_the_next_one_runs(tmp_path: Path, config: str) -> None:
    code = (
        HEAD
        + """
        async def execute(self, requests):
            if value_of(requests[0]) == 1:
                raise SystemExit(3)
            if value_of(requests[0]) == 2:
                raise asyncio.CancelledError
            requests[0].get_response_sender().send(response(0), FINAL)
"""
    )
    write_model(tmp_path, "m", code, DECOUPLED + config)
    async with open_repository(tmp_path) as server:
        for value, told in ((1, "SystemExit: 3"), (2, "CancelledError")):
            with trio.fail_after(30), pytest.raises(TriremeError, match=told):
                await server.infer(ask("m", value))
        assert await answer(server, "m", 0) == 0


@pytest.mark.parametrize("config", [IN_PROCESS, ON_ASYNCIO])
async def test_unload_cancels_what_still_runs(tmp_path: Path, config: str) -> None:
    """A decoupled model has answered its request, and goes on."""
    code = (
        HEAD_ON_TRIO
        + """
        async def execute(self, requests):
            requests[0].get_response_sender().send(response(0), FINAL)
            del requests
            try:
                await (trio.sleep_forever() if trio.lowlevel.in_trio_run() else asyncio.Event().wait())
            finally:
                open(os.path.join(pb_utils.get_model_dir(), "cancelled"), "w").close()
"""
    )
    directory = write_model(tmp_path, "m", code, DECOUPLED + config)
    async with open_repository(tmp_path) as server:
        assert await answer(server, "m", 0) == 0
        assert not (directory / "1" / "cancelled").exists()
    assert (directory / "1" / "cancelled").exists()


async def test_readiness_may_be_a_coroutine_on_trio(tmp_path: Path) -> None:
    code = (
        HEAD_ON_TRIO
        + """
        async def is_ready(self):
            await trio.lowlevel.checkpoint()
            return not os.path.exists(os.path.join(pb_utils.get_model_dir(), "tired"))

        def execute(self, requests):
            return [response(0)]
"""
    )
    directory = write_model(tmp_path, "m", code, CONFIG + IN_PROCESS)
    async with open_repository(tmp_path) as server:
        assert await server.check_model_ready("m")
        (directory / "1" / "tired").touch()
        assert not await server.check_model_ready("m")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("", "which runs in a process of its own, must be 'asyncio', but is 'trio'"),
        (IN_PROCESS, "which runs in the server's process, must be 'trio' or 'asyncio', but is 'curio'"),
    ],
)
async def test_a_library_that_is_not_there_fails_the_load(tmp_path: Path, config: str, expected: str) -> None:
    library = "curio" if config else "trio"
    config = TEXT + config + f'parameters {{ key: "ASYNC_LIBRARY" value {{ string_value: "{library}" }} }}'
    write_model(tmp_path, "m", ADD_ONE, config)
    async with open_repository(tmp_path, exit_on_error=False) as server:
        (entry,) = server.repository_index()
        assert f"parameter 'ASYNC_LIBRARY' of model 'm', {expected}" in entry.reason


@pytest.mark.parametrize("config", [IN_PROCESS, ON_ASYNCIO])
async def test_a_coroutine_that_hangs_is_cancelled_when_it_is_given_up(
    tmp_path: Path, config: str, capfd: pytest.CaptureFixture[str], leaping_clock: MockClock
) -> None:
    """Without a word on its way, and its threads end."""
    code = (
        HEAD_ON_TRIO
        + """
        async def execute(self, requests):
            if value_of(requests[0]):
                await (trio.sleep_forever() if trio.lowlevel.in_trio_run() else asyncio.Event().wait())
            return [response(0)]
"""
    )
    write_model(tmp_path, "m", code, CONFIG + config)
    async with open_repository(tmp_path, hang_limit_s=20) as server:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leap, leaping_clock, 20)
            with trio.fail_after(60), pytest.raises(InternalError, match="was given up"):
                await server.infer(ask("m", 1))
        assert await answer(server, "m", 0) == 0
        await until(lambda: sum(thread.name == "m_0 coroutines" for thread in threading.enumerate()) == 1)
    await until(lambda: not any(thread.name.startswith("m_0") for thread in threading.enumerate()))
    assert "Traceback" not in capfd.readouterr().err
