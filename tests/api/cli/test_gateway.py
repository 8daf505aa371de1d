"""`trireme gateway`: its command line, and what it refuses at its start."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import trio

from trireme.api.cli.flags import UsageError
from trireme.api.cli.gateway import GATEWAY_GROUPS, build_gateway_command, run_gateway, run_gateway_command
from trireme.api.cli.services import Listening
from trireme.api.logging import logging_to
from trireme.gateway.server import FleetServer

PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1")


def test_flags_are_those_of_serve_that_make_sense() -> None:
    command = build_gateway_command(["--fleet", "f.toml", "--id", "gate", "--max-inflight-requests", "7"], {})
    assert command.fleet == Path("f.toml")
    assert command.serve.server.server_id == "gate"
    assert command.serve.server.max_inflight_requests == 7
    names = {flag.name for group in GATEWAY_GROUPS for flag in group.flags}
    assert {"fleet", "http-port", "grpc-use-ssl", "access-config", "trace-config", "drain-secs"} <= names
    assert not names & {"model-repository", "backend-config", "front-ends", "routes"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [([], "--fleet must be specified"), (["--model-repository=m"], "unrecognized option '--model-repository=m'")],
)
def test_a_wrong_command_line(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError):
        build_gateway_command(words, {})
    assert run_gateway_command(words) == 1
    error = capsys.readouterr().err
    assert expected in error
    assert error.endswith("see: trireme gateway --help\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[replicas.a]\naddress = "nowhere"', "fleet.toml:2: replicas.a.address: found 'nowhere', expected host:port"),
        ('[connection]\nca-file = "missing.pem"', "[connection] of the file of the fleet: [Errno 2] No such file"),
        ('[connection]\ntoken-file = "missing"', "[connection] of the file of the fleet: [Errno 2] No such file"),
        ('[connection]\ntoken-file = "fleet.toml"', "[connection] of the file of the fleet: expected one token in "),
        ('[kubernetes]\nservice = "s"', "found no server, and this is no pod of Kubernetes: KUBERNETES_SERVICE_HOST"),
    ],
)
def test_a_faulty_file_is_refused(tmp_path: Path, text: str, expected: str, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    assert run_gateway_command(["--fleet", str(path), *PORTS]) == 1
    output = capfd.readouterr()
    assert expected in output.out + output.err


async def test_a_fleet_may_be_empty_and_a_signal_ends_the_gateway(tmp_path: Path) -> None:
    """As a program that embeds it does: replicas may come later."""
    path = tmp_path / "fleet.toml"
    path.touch()
    command = build_gateway_command(["--fleet", str(path), *PORTS], {})
    send, receive = trio.open_memory_channel[int](1)
    seen: list[tuple[bool, int]] = []

    def opened(server: FleetServer, listening: Sequence[Listening]) -> None:
        seen.append((server.ready(), len(listening)))
        send.send_nowait(15)

    async def signals() -> AsyncIterator[int]:
        async for number in receive:
            yield number

    with logging_to(command.serve.log) as log:
        assert await run_gateway(command, log, signals(), opened) == 0
    assert seen == [(False, 2)]
