"""Repositories in object stores over HTTP: overload, wrong names, an endpoint that is down, a server that is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from s3_endpoint import S3Endpoint, s3_endpoint
from serve_process import serve_process
from valued_models import CONFIG, Gates
from valued_server import ask, serving

from trireme.engine.errors import NotFoundError, TriremeError, UnavailableError
from trireme.engine.repository.cloud import store

MODEL_PY = b"""
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.get_input_tensor_by_name(each, "IN")]) for each in requests]
"""
PYTHON = b"""
backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }
"""


@pytest.fixture
def gates() -> Gates:
    return Gates()


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Endpoint]:
    """With a model `a`; nothing of the machine's own credentials is used."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "TRITON_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    with s3_endpoint() as endpoint:
        endpoint.put("a/config.pbtxt", CONFIG.encode())
        endpoint.put("a/1/value.txt", b"1")
        yield endpoint


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are not tried again for a minute."""
    monkeypatch.setattr(store, "RETRY_S", 0.5)


async def test_a_model_is_loaded_and_loaded_again(endpoint: S3Endpoint, gates: Gates) -> None:
    async with serving((endpoint.address,), gates, "a") as server:
        assert await ask(server, "a") == 1
        endpoint.put("a/1/value.txt", b"2")
        await server.load_model("a", {})
        assert await ask(server, "a") == 2


async def test_requests_are_signed_with_what_the_environment_says(
    endpoint: S3Endpoint, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving((endpoint.address,), gates):
        assert endpoint.authorizations == {""}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    endpoint.authorizations.clear()
    async with serving((endpoint.address,), gates, "a"):
        assert all(each.startswith("AWS4-HMAC-SHA256 Credential=key/") for each in endpoint.authorizations)


async def test_a_service_account_of_google(
    endpoint: S3Endpoint, gates: Gates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The token that it signs comes with every request."""
    private = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {
        "type": "service_account",
        "client_email": "server@project",
        "private_key": private.decode(),
        "private_key_id": "1",
    }
    path = tmp_path / "account.json"
    path.write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    monkeypatch.setenv("GOOGLE_BASE_URL", f"http://127.0.0.1:{endpoint.server_address[1]}")
    async with serving(("gs://bucket/models",), gates, "a") as server:
        assert await ask(server, "a") == 1
    assert all(each.startswith("Bearer ey") for each in endpoint.authorizations)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/account.json")
    with pytest.raises(TriremeError, match=r"failed to open the repository 'gs://bucket/models': .*account\.json"):
        async with serving(("gs://bucket/models",), gates):
            pass


@pytest.mark.parametrize("status", [503, 429, 500])
async def test_a_store_that_is_overloaded_is_asked_again(endpoint: S3Endpoint, gates: Gates, status: int) -> None:
    endpoint.refusals = [status] * 3
    async with serving((endpoint.address,), gates, "a") as server:
        assert await ask(server, "a") == 1
    assert endpoint.refusals == []


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("status", [503, 429])
async def test_a_store_that_stays_overloaded_is_told_of(endpoint: S3Endpoint, gates: Gates, status: int) -> None:
    """What serves goes on."""
    async with serving((endpoint.address,), gates, "a") as server:
        endpoint.status = status
        begin = (
            f"failed to list the repository '{endpoint.address}': the store is overloaded, and stayed so when it was "
        )
        with pytest.raises(UnavailableError) as caught:
            await server.load_model("a", {})
        assert caught.value.message == f"{begin}tried again (SlowDown: Please reduce your request rate.)"
        assert await ask(server, "a") == 1
        endpoint.status = 0
        await server.load_model("a", {})


async def test_a_wrong_bucket(endpoint: S3Endpoint, gates: Gates) -> None:
    address = endpoint.address.replace("bucket", "other")
    with pytest.raises(NotFoundError) as caught:
        async with serving((address,), gates, "a"):
            pass
    assert caught.value.message == (
        f"failed to list the repository '{address}': there is no such bucket or container (NoSuchBucket: The specified "
        "bucket does not exist)"
    )


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", ["b/../a/1/value.txt", "b//x", "b/./x", "b/1/x\x01y", "b/1/.."])
async def test_a_name_that_no_file_can_have_costs_its_own_model(
    endpoint: S3Endpoint, gates: Gates, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In a listing the client library takes no such name, and gives nothing of it."""
    endpoint.put("b/config.pbtxt", CONFIG.encode())
    endpoint.put("b/1/value.txt", b"2")
    endpoint.put("README", b"no model")
    async with serving((endpoint.address,), gates, "a") as server:
        await server.load_model("b", {})
        endpoint.put(name, b"odd")
        endpoint.put("a/2/value.txt", b"3")
        with pytest.raises(TriremeError, match="failed to load 'b', failed to poll from model repository"):
            await server.load_model("b", {})
        assert f"has no usable model 'b': the name {name.removeprefix('b/')!r} of an object cannot be" in caplog.text
        await server.load_model("a", {})
        assert (await ask(server, "a"), await ask(server, "b")) == (3, 2)


async def test_such_a_name_beside_the_models_is_told_of(endpoint: S3Endpoint, gates: Gates) -> None:
    endpoint.put("../x/config.pbtxt", b"odd")
    with pytest.raises(TriremeError, match=r'Encountered object with invalid path: .*"models/\.\./'):
        async with serving((endpoint.address,), gates, "a"):
            pass


async def test_an_endpoint_that_is_down(endpoint: S3Endpoint, gates: Gates) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"s3://127.0.0.1:{closed.getsockname()[1]}/bucket/models"
        with pytest.raises(UnavailableError) as caught:
            async with serving((address,), gates, "a"):
                pass
    assert caught.value.message.startswith(f"failed to list the repository '{address}': the store cannot be reached (")
    assert "Connection refused" in caught.value.message


@pytest.mark.slow
def test_what_a_killed_server_has_fetched_is_not_fetched_again(endpoint: S3Endpoint, tmp_path: Path) -> None:
    """A model of 2 GiB: the server is killed when it has most of it. The next one asks for the rest, and serves."""
    size = 2 << 30
    weights = "models/m/1/weights.bin"
    endpoint.objects.clear()
    endpoint.put("m/config.pbtxt", PYTHON)
    endpoint.put("m/1/model.py", MODEL_PY)
    endpoint.put("m/1/weights.bin", size)
    endpoint.most = size * 3 // 4
    flags = ("--repository-cache-dir", str(tmp_path / "cache"))
    with serve_process(endpoint.address, *flags, wait=False) as server:
        assert endpoint.reached.wait(60), server.log
        server.process.send_signal(signal.SIGKILL)
        server.wait()
    before = sum(end - first for _, first, end in endpoint.ranges)
    endpoint.most = 1 << 62
    endpoint.released.set()
    endpoint.ranges.clear()
    with serve_process(endpoint.address, *flags) as server:
        server.wait_for("successfully loaded 'm'")
        server.wait_for("Started HTTPService")
    again = sum(end - first for name, first, end in endpoint.ranges if name == weights)
    in_flight = (8 << 20) * 8
    assert size - before <= again <= size - before + (64 << 20) + in_flight
    (file,) = (path for path in (tmp_path / "cache").glob("*/objects/*") if path.stat().st_size > 1 << 20)
    assert file.stat().st_size == size
