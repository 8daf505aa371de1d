"""What the README shows is what happens: its examples are run as they stand and print what stands below them."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import tritonclient.grpc
import tritonclient.http

ROOT = Path(__file__).parents[1]
EXAMPLE = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)
HTTP_URL = "localhost:8000"
GRPC_URL = "localhost:8001"
HTTP_CLIENT = "tritonclient.http"
GRPC_CLIENT = "tritonclient.grpc"


@pytest.fixture(scope="module")
def examples() -> dict[str, tuple[str, str]]:
    """The README's examples that show output: (code, output), by the client that they import; the program with its own
    server imports none."""
    found = EXAMPLE.findall((ROOT / "README.md").read_text())
    examples = {client_of(code): (code, output) for code, output in found}
    assert len(examples) == len(found), "two examples of a kind: one of them would not be run"
    return examples


def client_of(code: str) -> str:
    return next((client for client in (HTTP_CLIENT, GRPC_CLIENT) if client in code), "")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass(frozen=True)
class Addresses:
    """Where a server listens."""

    http: str
    grpc: str

    def put_into(self, code: str) -> str:
        """An example that asks this server, and not the one that `make serve` starts."""
        return code.replace(HTTP_URL, self.http).replace(GRPC_URL, self.grpc)


@pytest.fixture(scope="module")
def addresses() -> Iterator[Addresses]:
    """Where `trireme serve` serves model_repository/, as `make serve` starts it but on other ports."""
    http, grpc = free_port(), free_port()
    command = [str(Path(sys.executable).with_name("trireme")), "serve", "--model-repository", "model_repository"]
    command += ["--http-address", "127.0.0.1", "--http-port", str(http), "--allow-metrics", "false"]
    command += ["--grpc-address", "127.0.0.1", "--grpc-port", str(grpc), "--front-ends", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            addresses = Addresses(f"127.0.0.1:{http}", f"127.0.0.1:{grpc}")
            wait_until_ready(server, addresses)
            yield addresses
        finally:
            server.terminate()


def wait_until_ready(server: subprocess.Popen[str], addresses: Addresses) -> None:
    """Read the server's log until it says that it serves HTTP; by then it serves gRPC as well."""
    assert server.stdout is not None
    lines: list[str] = []
    while "Started HTTPService" not in (line := server.stdout.readline()):
        lines.append(line)
        assert line, "the server ended: " + "".join(lines)
    with tritonclient.http.InferenceServerClient(addresses.http) as client:
        assert client.is_server_ready()
    with tritonclient.grpc.InferenceServerClient(addresses.grpc) as client:
        assert client.is_server_ready()


def output_of(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers_rounded(text: str) -> str:
    """With four decimals: the last ones depend on the processor."""
    return re.sub(r"\d\.\d{5,}", lambda number: f"{float(number.group()):.4f}", text)


def test_client_example(examples: dict[str, tuple[str, str]], addresses: Addresses) -> None:
    """The ten digits come back with the labels and the probabilities that the README shows."""
    code, output = examples[HTTP_CLIENT]
    assert len(code.splitlines()) <= 10
    assert HTTP_URL in code
    assert numbers_rounded(output_of(addresses.put_into(code))) == numbers_rounded(output)


def test_client_example_over_grpc(examples: dict[str, tuple[str, str]], addresses: Addresses) -> None:
    """As the README says, another client and another port are all that it takes."""
    code, output = examples[HTTP_CLIENT]
    code = code.replace(HTTP_CLIENT, GRPC_CLIENT).replace(HTTP_URL, GRPC_URL)
    assert numbers_rounded(output_of(addresses.put_into(code))) == numbers_rounded(output)


def test_stream_example(examples: dict[str, tuple[str, str]], addresses: Addresses) -> None:
    """A sequence on a stream: its answers come in order, and each knows what came before."""
    code, output = examples[GRPC_CLIENT]
    assert len(code.splitlines()) <= 10
    assert GRPC_URL in code
    assert output_of(addresses.put_into(code)) == output


def test_in_process_example(examples: dict[str, tuple[str, str]]) -> None:
    """A trio program calls a model without any socket."""
    code, output = examples[""]
    assert output_of(code) == output


def test_links_lead_somewhere() -> None:
    """Every relative link in the documents is to a file that exists."""
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
