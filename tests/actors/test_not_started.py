"""``--exit-on-error=false`` with a repository that cannot be read: the server goes on without models."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from trireme.actors import InferenceServer
from trireme.engine.errors import InternalError, TriremeError, UnavailableError
from trireme.engine.options import ControlMode, ServerOptions
from trireme.engine.request import InferenceRequest


def options(path: Path, *, exit_on_error: bool = False, **more: object) -> ServerOptions:
    return ServerOptions(model_repository=(path / "nowhere",), exit_on_error=exit_on_error, **more)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("mode", list(ControlMode))
@pytest.mark.parametrize("strict", [True, False])
async def test_neither_live_nor_ready_and_answers_about_itself_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: ControlMode, strict: bool
) -> None:
    with caplog.at_level(logging.ERROR, "trireme.server"):
        async with InferenceServer(
            options(tmp_path, model_control_mode=mode, repository_poll_s=1, strict_readiness=strict)
        ) as server:
            assert (server.live(), server.ready(), await server.check_ready()) == (False, False, False)
            assert server.metadata().name == "triton"
            (tmp_path / "nowhere" / "m" / "1").mkdir(parents=True)
            for refused in (
                lambda: server.admit_nowait(InferenceRequest("m")),
                lambda: server.describe("m"),
                lambda: server.model_ready("m"),
                server.statistics,
                lambda: server.statistics("m"),
                server.repository_index,
            ):
                with pytest.raises(UnavailableError, match=r"^Server not ready$"):
                    refused()
            for refused in (
                server.rescan,
                lambda: server.load_model("m", {}),
                lambda: server.unload_model("m"),
                lambda: server.check_model_ready("m"),
                lambda: server.infer(InferenceRequest("m")),
            ):
                with pytest.raises(UnavailableError, match=r"^Server not ready$"):
                    await refused()
    assert caplog.messages == [f"Internal - failed to stat file {tmp_path / 'nowhere'}"]


async def test_otherwise_it_does_not_open(tmp_path: Path) -> None:
    with pytest.raises(TriremeError) as refused:
        async with InferenceServer(options(tmp_path, exit_on_error=True)):
            raise AssertionError("it opened")
    assert isinstance(refused.value, InternalError)
