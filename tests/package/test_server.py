"""`trireme.Server` in programs of each kind: sync, asyncio and trio."""

# ruff: noqa: F821, UP037
# What stands in quotes in an annotation is the name of an output.

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import tritonclient.http as triton
from repository_models import link_models
from serve_process import PATIENCE_S

import trireme
from trireme import BF16, BYTES, FP32, INT64, model
from trireme.server import AsyncRunningServer

RUNNERS: dict[str, Callable[[Callable[[], Awaitable[Any]]], Any]] = {
    "asyncio": lambda main: asyncio.run(main()),  # type: ignore[arg-type]
    "trio": trio.run,
}


@model(max_batch_size=8)
def double(x: FP32[2]) -> {"y": FP32[2]}:  # type: ignore[valid-type]
    return 2 * x


@model
def count(n: INT64[1]) -> INT64[1]:  # type: ignore[valid-type]
    for number in range(int(n[0])):
        yield [number]


@model
def greet(name: BYTES[1], size: BF16[1] = None) -> {"text": BYTES[1], "size": BF16[1]}:  # type: ignore[valid-type]
    return {"text": [f"hello {name[0].decode()}"], "size": [0] if size is None else size}


@model
def refuse(x: FP32[1]) -> FP32[1]:  # type: ignore[valid-type]
    raise trireme.NotFoundError("there is no such thing")


MODELS = (double, count, greet, refuse)


class Gate:
    """A model that waits until it is let go."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        gate = self

        @model
        def slow(x: FP32[1]) -> FP32[1]:  # type: ignore[valid-type]
            gate.entered.set()
            gate.opened.wait(PATIENCE_S)
            return x

        self.model = slow


@pytest.fixture
def no_threads_left() -> Any:
    """Those of a server have ended with it; trio's idle workers hold nothing."""
    before = set(threading.enumerate())
    yield
    left = [each for each in threading.enumerate() if each not in before and not each.name.startswith("Trio thread")]
    for each in left:
        each.join(PATIENCE_S)  # those that are about to end
    assert [each.name for each in left if each.is_alive()] == []


@pytest.mark.usefixtures("no_threads_left")
def test_a_program_asks_models() -> None:
    with trireme.Server(models=MODELS) as server:
        assert server.ready()
        assert server.models() == ["count", "double", "greet", "refuse"]
        assert (server.http_address, server.grpc_address) == ("", "")
        assert repr(server) == f"<{type(server).__name__}: without ports>"
        answer = server.model("double")(x=np.ones((3, 2), np.float32))
        assert list(answer) == ["y"]
        assert answer["y"].tolist() == [[2, 2]] * 3
        assert answer["y"].dtype == np.float32
        assert server.model("double", outputs=["y"], request_id="7")(x=[[1, 2]])["y"].tolist() == [[2, 4]]
        answer = server.model("greet")(name=["Ada"], size=[2.5])
        assert answer["text"].tolist() == [b"hello Ada"]
        assert answer["size"].tolist() == [2.5]
        assert server.model("greet")(name=np.array([b"Bob"], object))["size"].tolist() == [0]
        assert [each["output"][0] for each in server.model("count").stream(n=[3])] == [0, 1, 2]
        for number, each in enumerate(server.model("count").stream(n=[100_000])):
            if number == 2:
                assert each["output"].tolist() == [2]
                break
    with pytest.raises(trireme.UnavailableError, match="the server has ended"):
        server.models()


ERRORS = [
    ("refuse", {"x": [1]}, trireme.NotFoundError, "there is no such thing"),
    ("none", {"x": [1]}, trireme.NotFoundError, "Request for unknown model: 'none' is not found"),
    (
        "double",
        {"x": np.ones((1, 2))},
        trireme.InvalidArgumentError,
        "[request id: <id_unknown>] inference input 'x' data-type is 'FP64', but model 'double' expects 'FP32'",
    ),
    ("double", {"x": [["a", "b"]]}, trireme.InvalidArgumentError, "input 'x' cannot become an array of FP32: "),
    ("double", {"x": np.array([1j])}, trireme.InvalidArgumentError, "input 'x' is an array of complex128, which no "),
    ("double", {}, trireme.InvalidArgumentError, "[request id: <id_unknown>] expected 1 inputs but got 0 inputs"),
    ("count", {"n": [2]}, trireme.InternalError, "expected a single response, got 2"),
]


@pytest.mark.usefixtures("no_threads_left")
def test_errors_are_the_servers_in_every_program() -> None:
    with trireme.Server(models=MODELS) as server:
        for name, inputs, kind, text in ERRORS:
            with pytest.raises(kind) as raised:
                server.model(name)(**inputs)
            assert str(raised.value).startswith(text), name
        with pytest.raises(trireme.NotFoundError, match="there is no such thing"):
            list(server.model("refuse").stream(x=[1]))

    async def main() -> None:
        async with trireme.Server(models=MODELS) as server:
            for name, inputs, kind, text in ERRORS:
                with pytest.raises(kind) as raised:
                    await server.model(name)(**inputs)
                assert str(raised.value).startswith(text), name

    for run in RUNNERS.values():
        run(main)


@pytest.mark.parametrize("run", RUNNERS.values(), ids=RUNNERS)
@pytest.mark.usefixtures("no_threads_left")
def test_an_asynchronous_program_asks_models(run: Callable[..., Any]) -> None:
    async def main() -> None:
        async with trireme.Server(models=MODELS) as server:
            assert isinstance(server, AsyncRunningServer)
            assert await server.ready()
            assert await server.models() == ["count", "double", "greet", "refuse"]
            assert (await server.model("double")(x=[[1, 2]]))["y"].tolist() == [[2, 4]]
            assert [each["output"][0] async for each in server.model("count").stream(n=[3])] == [0, 1, 2]
            stream = server.model("count").stream(n=[100_000])
            assert (await anext(stream))["output"].tolist() == [0]
            await stream.aclose()
        with pytest.raises(trireme.TriremeError):
            await server.model("double")(x=[[1, 2]])

    run(main)


@pytest.mark.usefixtures("no_threads_left")
def test_coroutines_of_the_program_run_on_asyncio_or_trio() -> None:
    @model
    async def on_asyncio(x: FP32[1]) -> FP32[1]:  # type: ignore[valid-type]
        await asyncio.sleep(0)
        return x

    @model(async_library="trio")
    async def on_trio(x: FP32[1]) -> FP32[1]:  # type: ignore[valid-type]
        await trio.lowlevel.checkpoint()
        yield x
        yield x + 1

    with trireme.Server(models=[on_asyncio, on_trio]) as server:
        assert server.model("on_asyncio")(x=[1])["output"].tolist() == [1]
        assert [each["output"][0] for each in server.model("on_trio").stream(x=[1])] == [1, 2]


@pytest.mark.parametrize("run", RUNNERS.values(), ids=RUNNERS)
@pytest.mark.usefixtures("no_threads_left")
def test_what_the_block_raises_comes_out_as_it_is(run: Callable[..., Any]) -> None:
    async def main() -> None:
        async with trireme.Server(models=[double]):
            raise KeyError("of the program")

    with pytest.raises(KeyError, match="of the program"):
        run(main)
    with pytest.raises(KeyError, match="of the program"), trireme.Server(models=[double]):
        raise KeyError("of the program")


@pytest.mark.usefixtures("no_threads_left")
def test_a_request_may_take_too_long_and_be_cancelled() -> None:
    gate = Gate()
    with trireme.Server(models=[gate.model]) as server:
        with pytest.raises(TimeoutError, match=r"model 'slow' has not answered within 0\.01 s"):
            server.model("slow", timeout=0.01)(x=[1])
        gate.opened.set()

    for run in (_cancel_in_asyncio, _cancel_in_trio):
        gate = Gate()
        run(gate)


def _cancel_in_asyncio(gate: Gate) -> None:
    async def main() -> None:
        async with trireme.Server(models=[gate.model]) as server:
            asking = asyncio.create_task(server.model("slow")(x=[1]))
            await asyncio.to_thread(gate.entered.wait, PATIENCE_S)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await server.model("slow")(x=[1])
            gate.opened.set()

    asyncio.run(main())


def _cancel_in_trio(gate: Gate) -> None:
    async def main() -> None:
        async with trireme.Server(models=[gate.model]) as server:
            with trio.move_on_after(0.01) as scope:
                await server.model("slow")(x=[1])
            assert scope.cancelled_caught
            gate.opened.set()

    trio.run(main)


@pytest.mark.usefixtures("no_threads_left")
def test_leaving_the_block_answers_what_is_in_flight() -> None:
    gate = Gate()
    answers: list[Any] = []
    with trireme.Server(models=[gate.model]) as server:
        asking = threading.Thread(target=lambda: answers.append(server.model("slow")(x=[5])))
        asking.start()
        assert gate.entered.wait(PATIENCE_S)
        threading.Timer(0.05, gate.opened.set).start()
    asking.join()
    assert answers[0]["output"].tolist() == [5]

    async def main() -> Any:
        gate = Gate()
        async with trireme.Server(models=[gate.model]) as server:
            asking = asyncio.create_task(server.model("slow")(x=[5]))
            await asyncio.to_thread(gate.entered.wait, PATIENCE_S)
            threading.Timer(0.05, gate.opened.set).start()
        return await asking

    assert asyncio.run(main())["output"].tolist() == [5]


@pytest.mark.usefixtures("no_threads_left")
def test_what_does_not_start_tells_the_program_why(tmp_path: Path) -> None:
    @model
    class Heavy:
        def __init__(self) -> None:
            raise OSError("no weights")

        def __call__(self, x: FP32[1]) -> FP32[1]: ...  # type: ignore[valid-type]

    (tmp_path / "app.py").write_text("from trireme import FP32, model\n@model\ndef f(x) -> FP32[1]: ...\n")
    cases: list[tuple[trireme.Server, str]] = [
        (trireme.Server(models=[double, Heavy]), r"failed to load all models\nmodel 'Heavy': .*OSError: no weights\n"),
        (trireme.Server(tmp_path / "none"), "failed to stat file .*/none"),
        (trireme.Server(tmp_path / "app.py"), r"app\.py:3: model 'f': parameter 'x' has no annotation"),
        (trireme.Server(tmp_path, htp_port=1), "unrecognized option '--htp-port=1'; nearest: '--http-port'"),
        (trireme.Server(tmp_path, http_port="x"), "http-port"),
        (trireme.Server(tmp_path, http_port=0, http_address="192.0.2.1"), "192.0.2.1"),
        (trireme.Server(tmp_path, front_ends=2), "leave front_ends out"),
        (trireme.Server(), "there is nothing to serve"),
    ]

    async def enter(server: trireme.Server) -> None:
        async with server:
            pass

    for server, text in cases:
        with pytest.raises(trireme.StartError, match=text), server:
            pass
        for run in RUNNERS.values():
            with pytest.raises(trireme.StartError, match=text):
                run(lambda server=server: enter(server))
    with pytest.raises(TypeError, match=r"is no model: decorate it with @trireme\.model"):
        trireme.Server(models=[print])


@pytest.mark.usefixtures("no_threads_left")
def test_repositories_apps_ports_and_sequences(tmp_path: Path) -> None:
    repository = link_models(tmp_path / "models", "running_sum", "simple")
    app = tmp_path / "app.py"
    app.write_text("from trireme import FP32, model\n@model\ndef half(x: FP32[1]) -> FP32[1]:\n    return x / 2\n")
    flags: dict[str, Any] = {"http_port": 0, "grpc_port": 0, "log_file": str(tmp_path / "log"), "log_verbose": 1}
    with trireme.Server(repository, f"{app}:half", models=[double], **flags) as server:
        assert server.models() == ["double", "half", "running_sum", "simple"]
        assert server.model("half")(x=[3])["output"].tolist() == [1.5]
        assert server.grpc_address.startswith("127.0.0.1:")
        assert f"HTTPService at {server.http_address}" in repr(server)
        with triton.InferenceServerClient(server.http_address) as client:
            assert client.is_model_ready("half")
        one, other = server.model("running_sum").sequence(), server.model("running_sum").sequence(7)
        one_by_one = [
            one(INPUT=[[1]]),
            other(INPUT=[[10]]),
            one(INPUT=[[2]]),
            one.last(INPUT=[[3]]),
            other(INPUT=[[5]]),
        ]
        assert [each["OUTPUT"].tolist() for each in one_by_one] == [[[1]], [[10]], [[3]], [[6]], [[15]]]
        assert one(INPUT=[[4]])["OUTPUT"].tolist() == [[4]], "the next one begins"
    assert "successfully loaded 'simple'" in (tmp_path / "log").read_text()


def test_models_are_loaded_when_they_are_asked_for(tmp_path: Path) -> None:
    repository = link_models(tmp_path / "models", "simple")
    with trireme.Server(repository, model_control_mode="explicit", strict_readiness=False) as server:
        assert server.models() == []
        server.load("simple")
        assert server.models() == ["simple"]
        server.unload("simple")
        with pytest.raises(trireme.InternalError, match="failed to load 'none'"):
            server.load("none")


PROGRAM = """
import signal, sys, threading, time
import trireme
from trireme import FP32, model

@model
class Slow:
    def __init__(self):
        print("loading", flush=True)
        if sys.argv[1] == "start":
            time.sleep(1000)
    def __call__(self, x: FP32[1]) -> FP32[1]:
        print("asked", flush=True)
        time.sleep(0.5)
        return x

signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the tests were started from
try:
    with trireme.Server(models=[Slow], exit_timeout_secs=30) as server:
        server.model("Slow")(x=[1])
        server.model("Slow")(x=[1])
except KeyboardInterrupt:
    print("interrupted", [each.name for each in threading.enumerate() if each.name == "trireme server"])
"""


@pytest.mark.parametrize(("when", "line"), [("start", "loading"), ("call", "asked")])
def test_control_c(when: str, line: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, when], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        while line not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=PATIENCE_S)
        assert "interrupted []" in rest
    finally:
        process.kill()
        process.wait()


def test_importing_is_cheap() -> None:
    """Nothing heavy comes before it is used."""
    code = "import sys, trireme; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"numpy", "trio", "asyncio", "trireme.actors", "trireme.apps", "trireme.engine.errors"}
    for name in trireme.__all__:
        assert getattr(trireme, name) is not None
    assert set(trireme.__all__) <= set(dir(trireme))
    with pytest.raises(AttributeError, match="module 'trireme' has no attribute 'serve'"):
        trireme.serve  # type: ignore[attr-defined]  # noqa: B018
