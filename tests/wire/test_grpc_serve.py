"""`trireme serve` over gRPC as a process: what its flags do to real clients, and how it says goodbye."""

from __future__ import annotations

import queue
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import trustme
from repository_models import link_models
from serve_process import PATIENCE_S, ServeProcess, serve_process
from slow_model import write_gated_model
from tritonclient.utils import InferenceServerException


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return link_models(tmp_path / "models", "simple")


def infer_simple(client: Any, **options: Any) -> Any:
    inputs = []
    for name in ("INPUT0", "INPUT1"):
        tensor = triton.InferInput(name, [1, 16], "INT32")
        inputs.append(tensor.set_data_from_numpy(np.ones((1, 16), np.int32)))
    return client.infer("simple", inputs, **options)


def client_of(server: ServeProcess, **options: Any) -> Any:
    return triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}", **options)


class Files:
    """PEM files of an authority, a server and a client."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.root = folder / "root.pem"
        authority.cert_pem.write_to_path(self.root)
        self.certificates: dict[str, tuple[Path, Path]] = {}
        for who in ("server", "client"):
            issued = authority.issue_cert("127.0.0.1")
            chain, key = folder / f"{who}.pem", folder / f"{who}.key"
            issued.cert_chain_pems[0].write_to_path(chain)
            issued.private_key_pem.write_to_path(key)
            self.certificates[who] = (chain, key)

    def flags(self) -> tuple[str, ...]:
        chain, key = self.certificates["server"]
        named = {"--grpc-server-cert": chain, "--grpc-server-key": key, "--grpc-root-cert": self.root}
        return tuple(str(word) for pair in named.items() for word in pair)


def test_tls_by_flags(models: Path, tmp_path: Path) -> None:
    """Without mutual TLS the root certificate checks no client, as with Triton."""
    files = Files(tmp_path)
    with serve_process(models, "--grpc-use-ssl", "true", *files.flags()) as server:
        client = client_of(server, ssl=True, root_certificates=str(files.root))
        assert infer_simple(client).as_numpy("OUTPUT0").tolist() == [[2] * 16]


def test_mutual_tls_by_flags(models: Path, tmp_path: Path) -> None:
    files = Files(tmp_path)
    chain, key = files.certificates["client"]
    with serve_process(models, "--grpc-use-ssl-mutual", "true", *files.flags()) as server:
        known = client_of(
            server, ssl=True, root_certificates=str(files.root), private_key=str(key), certificate_chain=str(chain)
        )
        assert infer_simple(known).as_numpy("OUTPUT0").tolist() == [[2] * 16]
        stranger = client_of(server, ssl=True, root_certificates=str(files.root))
        with pytest.raises(InferenceServerException):
            infer_simple(stranger, client_timeout=PATIENCE_S)


def test_protocols_can_be_restricted(models: Path) -> None:
    flag = ("--grpc-restricted-protocol", "inference,health:admin=secret")
    with serve_process(models, *flag) as server:
        client = client_of(server)
        assert client.get_server_metadata().name == "triton"
        with pytest.raises(InferenceServerException) as caught:
            infer_simple(client)
        assert caught.value.status() == "StatusCode.UNAVAILABLE"
        assert caught.value.message() == ("This protocol is restricted, expecting header 'triton-grpc-protocol-admin'")
        key = {"triton-grpc-protocol-admin": "secret"}
        assert infer_simple(client, headers=key).as_numpy("OUTPUT0").tolist() == [[2] * 16]
        assert client.is_server_live(headers=key)


@pytest.mark.parametrize("level", ["low", "high"])
def test_responses_can_be_compressed(models: Path, level: str) -> None:
    """The client asks for nothing special: it understands what it says it does."""
    with serve_process(models, "--grpc-infer-response-compression-level", level) as server:
        client = client_of(server)
        for request_encoding in (None, "gzip", "deflate"):
            answer = infer_simple(client, compression_algorithm=request_encoding)
            assert answer.as_numpy("OUTPUT0").tolist() == [[2] * 16]


def ask_gated(client: Any, value: float, callback: Callable[..., None]) -> None:
    tensor = triton.InferInput("INPUT0", [1, 1], "FP32")
    client.async_infer("gated", [tensor.set_data_from_numpy(np.array([[value]], np.float32))], callback)


def test_what_is_in_flight_at_the_end_is_answered_and_nothing_new_is_taken(tmp_path: Path) -> None:
    gate = write_gated_model(tmp_path)
    answers: queue.Queue[Any] = queue.Queue()

    def keep(result: Any, error: Any) -> None:
        answers.put(error or float(result.as_numpy("OUTPUT0")[0, 0]))

    with serve_process(tmp_path) as server:
        url = f"127.0.0.1:{server.grpc_port}"
        with triton.InferenceServerClient(url) as client:
            for value in (1.0, 2.0):
                ask_gated(client, value, keep)
            while 'nv_inference_pending_request_count{model="gated",version="1"} 1' not in server.metrics():
                assert answers.empty(), "answered before it could be interrupted"
            server.process.send_signal(signal.SIGTERM)
            server.wait_for("Found 1 GRPC service connections")
            gate.touch()
            assert server.wait() == 0
            assert sorted(answers.get(timeout=PATIENCE_S) for _ in range(2)) == [1.0, 2.0]
        with grpc.insecure_channel(url) as channel, pytest.raises(grpc.FutureTimeoutError):
            grpc.channel_ready_future(channel).result(timeout=0.5)
