"""A port that is taken: what failed and which flags to look at, exit code 1, no model left behind."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from repository_models import link_models
from serve_process import serve_process


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that is in use."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize(
    ("flag", "service"), [("--grpc-port", "GRPC"), ("--http-port", "HTTP"), ("--metrics-port", "Metrics")]
)
def test_taken_port(tmp_path: Path, taken: int, flag: str, service: str) -> None:
    models = ("simple", "square_int32")
    with serve_process(link_models(tmp_path, *models), flag, str(taken), wait=False) as server:
        assert server.wait() == 1
        line, flags = [line for line in server.log.splitlines() if line.startswith("E")]
        assert line.endswith(
            f"\"failed to start {service} service: Unavailable - Socket '127.0.0.1:{taken}' already in use \""
        )
        name = flag.removesuffix("-port")
        assert flags.endswith(f'"{name}-address takes an address of this machine, and {flag} a free port"')
        assert "Traceback" not in server.log
        assert server.log.count("successfully loaded '") == len(models)
        assert server.log.count("successfully unloaded '") == len(models)


def test_two_services_at_one_port_are_refused_before_anything_is_loaded(repository_root: Path) -> None:
    flags = ("--http-port", "18999", "--metrics-port", "18999")
    with serve_process(repository_root / "model_repository", *flags, wait=False) as server:
        assert server.wait() == 1
        assert server.stderr[-2] == (
            "trireme serve: The server cannot listen to HTTP requests and metrics requests at the same address and "
            "port 127.0.0.1:18999"
        )
        assert server.stderr[-1] == "see: trireme serve --help"
        assert "loading" not in server.log
