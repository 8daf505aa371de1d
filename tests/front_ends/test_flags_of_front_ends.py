"""Flags about services, with `--front-ends`: they hold in the processes that serve."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

import grpc
import pytest
import tritonclient.grpc as grpcclient
from authority import Authority
from serve_process import PATIENCE_S, ServeProcess, serve_process
from slow_model import write_gated_model
from tritonclient.utils import InferenceServerException

FRONT_ENDS = ("--front-ends", "1")
BODY = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]})


def test_tls_and_its_key_are_the_front_ends(tmp_path: Path) -> None:
    write_gated_model(tmp_path / "models").touch()
    authority = Authority(tmp_path)
    files = [str(each) for each in (authority.certificate, authority.key)]
    flags = [
        *("--http-use-ssl=1", "--http-server-cert", files[0], "--http-server-key", files[1]),
        *("--grpc-use-ssl=1", "--grpc-server-cert", files[0], "--grpc-server-key", files[1]),
    ]
    with serve_process(tmp_path / "models", *FRONT_ENDS, *flags) as server:
        connection = http.client.HTTPSConnection(
            "localhost", server.http_port, context=authority.context(), timeout=PATIENCE_S
        )
        connection.request("POST", "/v2/models/gated/infer", BODY)
        assert connection.getresponse().status == 200
        connection.close()
        channel = f"localhost:{server.grpc_port}"
        with grpcclient.InferenceServerClient(channel, ssl=True, root_certificates=str(authority.root)) as client:
            assert client.is_server_ready()


def test_restricted_calls_need_their_keys(tmp_path: Path) -> None:
    write_gated_model(tmp_path)
    restricted = (
        *("--http-restricted-api", "metadata:admin-key=secret"),
        *("--grpc-restricted-protocol", "metadata:admin-key=secret"),
    )
    with serve_process(tmp_path, *FRONT_ENDS, *restricted) as server:
        assert _metadata(server, {}) == 403
        assert _metadata(server, {"admin-key": "wrong"}) == 403
        assert _metadata(server, {"admin-key": "secret"}) == 200
        with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            with pytest.raises(InferenceServerException, match="restricted"):
                client.get_server_metadata()
            metadata = client.get_server_metadata({"triton-grpc-protocol-admin-key": "secret"})
            assert metadata is not None
            assert metadata.name == "triton"


def _metadata(server: ServeProcess, headers: dict[str, str]) -> int:
    """The status of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/v2", headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_service_that_is_not_wanted_is_not_there(tmp_path: Path) -> None:
    write_gated_model(tmp_path)
    with serve_process(tmp_path, *FRONT_ENDS, "--allow-grpc=0") as server:
        assert server.ask("GET", "/v2/health/ready")[0] == 200
        server.wait_for("Started Metrics Service")
        assert "GRPCInferenceService" not in server.log
        assert server.metrics()


def test_a_certificate_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    write_gated_model(tmp_path / "models")
    missing = str(tmp_path / "none.pem")
    flags = ("--http-use-ssl=1", "--http-server-cert", missing, "--http-server-key", missing)
    with serve_process(tmp_path / "models", *FRONT_ENDS, *flags, wait=False) as server:
        assert server.wait() == 1
        server.wait_for("failed to start .*none.pem")


def test_shared_memory_is_not_registered_unless_that_is_allowed(tmp_path: Path) -> None:
    write_gated_model(tmp_path)
    with serve_process(tmp_path, *FRONT_ENDS) as server:
        status, answer = server.ask(
            "POST", "/v2/systemsharedmemory/region/a/register", {"key": "/a", "offset": 0, "byte_size": 1}
        )
        assert status >= 400
        assert answer["error"]
        with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            with pytest.raises(InferenceServerException) as refused:
                client.register_system_shared_memory("a", "/a", 1)
            assert refused.value.status() == f"StatusCode.{grpc.StatusCode.UNIMPLEMENTED.name}"
