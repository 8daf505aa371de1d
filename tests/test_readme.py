"""What the README shows is what happens: its examples are run as they stand and print what stands below them."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.http as triton

ROOT = Path(__file__).parents[1]
EXAMPLE = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)
URL = "localhost:8000"


@pytest.fixture(scope="module")
def examples() -> dict[str, tuple[str, str]]:
    """The README's examples that show output: (code, output) of the client and of the program with its own server."""
    found = EXAMPLE.findall((ROOT / "README.md").read_text())
    return {"client" if "tritonclient" in code else "in-process": (code, output) for code, output in found}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def address() -> Iterator[str]:
    """Where `trireme serve` serves model_repository/, as `make serve` starts it but on another port."""
    port = free_port()
    command = [str(Path(sys.executable).with_name("trireme")), "serve", "--model-repository", "model_repository"]
    command += ["--http-address", "127.0.0.1", "--http-port", str(port), "--allow-metrics", "false"]
    command += ["--allow-grpc", "false"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            wait_until_ready(server, f"127.0.0.1:{port}")
            yield f"127.0.0.1:{port}"
        finally:
            server.terminate()


def wait_until_ready(server: subprocess.Popen[str], address: str) -> None:
    """Read the server's log until it says that it serves HTTP."""
    assert server.stdout is not None
    lines: list[str] = []
    while "Started HTTPService" not in (line := server.stdout.readline()):
        lines.append(line)
        assert line, "the server ended: " + "".join(lines)
    with triton.InferenceServerClient(address) as client:
        assert client.is_server_ready()


def output_of(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers_rounded(text: str) -> str:
    """With four decimals: the last ones depend on the processor."""
    return re.sub(r"\d\.\d{5,}", lambda number: f"{float(number.group()):.4f}", text)


def test_client_example(examples: dict[str, tuple[str, str]], address: str) -> None:
    """The ten digits come back with the labels and the probabilities that the README shows."""
    code, output = examples["client"]
    assert len(code.splitlines()) <= 10
    assert URL in code
    assert numbers_rounded(output_of(code.replace(URL, address))) == numbers_rounded(output)


def test_in_process_example(examples: dict[str, tuple[str, str]]) -> None:
    """A trio program calls a model without any socket."""
    code, output = examples["in-process"]
    assert output_of(code) == output


def test_links_lead_somewhere() -> None:
    """Every relative link in the documents is to a file that exists."""
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
