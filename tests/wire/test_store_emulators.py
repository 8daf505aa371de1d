"""Repositories in object stores, beside servers that others have written: moto for S3, with signatures that are
checked, and for the XML interface of Google Cloud Storage, which is the same but for the credentials; Azurite for Azure
Storage."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio
from obstore.store import AzureStore, GCSStore, S3Store
from valued_models import CONFIG, Gates
from valued_server import ask, index, serving, until

from trireme.engine.errors import NotFoundError, UnavailableError
from trireme.engine.options import ControlMode

pytestmark = pytest.mark.slow

POLL = {"model_control_mode": ControlMode.POLL, "repository_poll_s": 0.05}
AZURITE = Path(sys.prefix) / "azurite" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of every emulator: they are documented."""

HTTP: Any = {"allow_http": True}


class Emulator(ABC):
    """A store with a bucket.

    Attributes:
        address: of a repository in it.
        nowhere: of one in a bucket that is not there.
        environment: the credential.
        wrong: a credential that the store refuses; None if it takes any.
        store: as an uploader sees the bucket.
    """

    address: str
    nowhere: str
    environment: dict[str, str]
    wrong: dict[str, str] | None
    store: Any

    def __init__(self, processes: ExitStack) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        process = subprocess.Popen(self.command(), env={**os.environ, **self.variables()}, stdout=subprocess.DEVNULL)
        processes.callback(process.wait)
        processes.callback(process.kill)
        trio.run(self._open)

    async def _open(self) -> None:
        with trio.fail_after(60):
            while True:
                try:
                    (await trio.open_tcp_stream("127.0.0.1", self.port)).socket.close()
                    break
                except OSError:
                    await trio.sleep(0.05)
        await trio.to_thread.run_sync(self.make_bucket)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @abstractmethod
    def command(self) -> list[str]: ...
    def variables(self) -> dict[str, str]:
        return {}

    @abstractmethod
    def make_bucket(self) -> None: ...

    def put(self, path: str, data: bytes) -> None:
        self.store.put(f"models/{path}", data)

    def drop(self, *paths: str) -> None:
        for path in paths:
            self.store.delete(f"models/{path}")

    def mark_directory(self, path: str) -> None:
        """What a console makes for an empty directory."""
        self.put(path, b"")


class Moto(Emulator):
    def command(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def client(self, service: str, key: str = "x", secret: str = "y") -> Any:
        import boto3

        keys = {"aws_access_key_id": key, "aws_secret_access_key": secret}
        return boto3.client(service, endpoint_url=self.url, region_name="us-east-1", **keys)  # pyright: ignore


class S3(Moto):
    """Signatures and rights are checked once the user that has them is made."""

    def variables(self) -> dict[str, str]:
        return {"INITIAL_NO_AUTH_ACTION_COUNT": "4"}

    def make_bucket(self) -> None:
        iam = self.client("iam")
        iam.create_user(UserName="server")
        rights = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
        policy = iam.create_policy(PolicyName="all", PolicyDocument=json.dumps(rights))["Policy"]["Arn"]
        iam.attach_user_policy(UserName="server", PolicyArn=policy)
        made = iam.create_access_key(UserName="server")["AccessKey"]
        key, secret = made["AccessKeyId"], made["SecretAccessKey"]
        self.s3 = self.client("s3", key, secret)
        self.s3.create_bucket(Bucket="modelsbucket")
        self.environment = {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        self.wrong = {**self.environment, "AWS_SECRET_ACCESS_KEY": "wrong"}
        self.address = f"s3://127.0.0.1:{self.port}/modelsbucket/models"
        self.nowhere = f"s3://127.0.0.1:{self.port}/otherbucket/models"
        signed: Any = {"access_key_id": key, "secret_access_key": secret, "region": "us-east-1"}
        self.store = S3Store("modelsbucket", endpoint=self.url, client_options=HTTP, **signed)

    def mark_directory(self, path: str) -> None:
        self.s3.put_object(Bucket="modelsbucket", Key=f"models/{path}/", Body=b"")


class Google(Moto):
    def make_bucket(self) -> None:
        self.s3 = self.client("s3")
        self.s3.create_bucket(Bucket="modelsbucket")
        self.environment = {"CLOUD_STORAGE_EMULATOR_ENDPOINT": self.url}
        self.wrong = None
        self.address, self.nowhere = "gs://modelsbucket/models", "gs://otherbucket/models"
        plain: Any = {"base_url": self.url, "skip_signature": True}
        self.store = GCSStore("modelsbucket", client_options=HTTP, **plain)

    def put(self, path: str, data: bytes) -> None:
        self.s3.put_object(Bucket="modelsbucket", Key=f"models/{path}", Body=data, ACL="public-read")

    def drop(self, *paths: str) -> None:
        for path in paths:
            self.s3.delete_object(Bucket="modelsbucket", Key=f"models/{path}")

    def mark_directory(self, path: str) -> None:
        self.put(f"{path}/", b"")


class Azure(Emulator):
    def command(self) -> list[str]:
        flags = ["--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--blobPort", str(self.port)]
        return [shutil.which("node") or "node", str(AZURITE), *flags]

    def make_bucket(self) -> None:
        self._make_container()
        self.environment = {"AZURE_STORAGE_KEY": AZURE_KEY, "AZURE_STORAGE_ENDPOINT": f"{self.url}/{AZURE_ACCOUNT}"}
        self.wrong = {**self.environment, "AZURE_STORAGE_KEY": "d3Jvbmc="}
        self.address, self.nowhere = (f"as://{AZURE_ACCOUNT}/{each}/models" for each in ("modelsbucket", "otherbucket"))
        keyed: Any = {"account_name": AZURE_ACCOUNT, "account_key": AZURE_KEY}
        endpoint = self.environment["AZURE_STORAGE_ENDPOINT"]
        self.store = AzureStore("modelsbucket", endpoint=endpoint, client_options=HTTP, **keyed)

    def _make_container(self) -> None:
        """The library that is tested makes none. One call, signed as the service's documentation says."""
        import base64
        import hashlib
        import hmac
        import urllib.request

        now = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = {"x-ms-date": now, "x-ms-version": "2021-08-06"}
        resource = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/modelsbucket\nrestype:container"
        text = "\n".join(["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in headers.items()), resource])
        digest = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}"
        url = f"{self.url}/{AZURE_ACCOUNT}/modelsbucket?restype=container"
        urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers={**headers, "Content-Length": "0"}))


@pytest.fixture(scope="module", params=[S3, Google, Azure], ids=lambda kind: kind.__name__)
def emulator(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    if request.param is Azure and not (AZURITE.exists() and shutil.which("node")):
        pytest.skip("Azurite is not installed: `make test-slow` does it where there is npm")
    with ExitStack() as processes:
        yield request.param(processes)


@pytest.fixture
def store(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    """With its credential in the environment, and nothing of the machine's own; its bucket is empty."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "TRITON_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    for name, value in emulator.environment.items():
        monkeypatch.setenv(name, value)
    for page in emulator.store.list():
        emulator.drop(*(each["path"].removeprefix("models/") for each in page))
    return emulator


@pytest.fixture
def gates() -> Gates:
    return Gates()


def put(store: Emulator, name: str, version: int, value: object) -> None:
    store.put(f"{name}/{version}/value.txt", str(value).encode())
    store.put(f"{name}/config.pbtxt", CONFIG.encode())


def only(cache: Path, pattern: str) -> Path:
    """The file of the model `a`, version 1, that a server has in its cache."""
    (path,) = cache.glob(f"*/models/*/contents/a/1/{pattern}")
    return path


async def test_models_load_change_and_vanish(store: Emulator, gates: Gates, tmp_path: Path) -> None:
    put(store, "a", 1, 1)
    store.put("README.md", b"no model")
    options = {**POLL, "repository_cache_directory": tmp_path}
    async with serving((store.address,), gates, **options) as server:
        assert await ask(server, "a") == 1
        put(store, "b", 1, 2)
        await until(lambda: server.model_ready("b"))
        put(store, "b", 2, 3)
        await until(lambda: server.model_ready("b", 2))
        assert await ask(server, "b") == 3
        store.put("b/3/value.txt", b"broken")
        await until(lambda: any(row.reason == "Internal: no value" for row in server.repository_index()))
        assert await ask(server, "b") == 3
        store.put("b/3/value.txt", b"4")
        await until(lambda: server.model_ready("b", 3))
        assert await ask(server, "b") == 4
        store.drop("b/1/value.txt", "b/2/value.txt", "b/3/value.txt", "b/config.pbtxt")
        await until(lambda: not server.model_ready("b"))
        assert [row[0] for row in await index(server)] == ["a"]


async def test_a_large_model_comes_in_ranges(store: Emulator, gates: Gates, tmp_path: Path) -> None:
    put(store, "a", 1, 1)
    data = os.urandom(20 << 20)
    store.put("a/1/weights.bin", data)
    async with serving((store.address,), gates, "a", repository_cache_directory=tmp_path) as server:
        assert await ask(server, "a") == 1
        path = only(tmp_path, "weights.bin")
        assert path.read_bytes() == data


async def test_an_ensemble_needs_no_file(store: Emulator, gates: Gates) -> None:
    from valued_models import ensemble_config

    put(store, "a", 1, 1)
    store.put("e/config.pbtxt", ensemble_config("a").encode())
    store.mark_directory("e/1")
    async with serving((store.address,), gates, "e") as server:
        assert await ask(server, "e") == 1


async def test_odd_names(store: Emulator, gates: Gates, tmp_path: Path) -> None:
    put(store, "a", 1, 1)
    store.put("a/1/a b%20ü+&.bin", b"odd")
    async with serving((store.address,), gates, "a", repository_cache_directory=tmp_path):
        path = only(tmp_path, "*.bin")
        assert (path.name, path.read_bytes()) == ("a b%20ü+&.bin", b"odd")


async def test_a_wrong_bucket(store: Emulator, gates: Gates) -> None:
    with pytest.raises(NotFoundError, match=f"{store.nowhere}': there is no such bucket or container"):
        async with serving((store.nowhere,), gates, "a"):
            pass


async def test_a_wrong_credential(store: Emulator, gates: Gates, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told of, and once there is a right one the next call uses that."""
    if store.wrong is None:
        pytest.skip("this emulator checks no credentials")
    put(store, "a", 1, 1)
    credential = monkeypatch.setenv
    async with serving((store.address,), gates, "a") as server:
        server.repositories._first._sources[0]._store = None  # pyright: ignore
        for name, value in store.wrong.items():
            credential(name, value)
        with pytest.raises(UnavailableError, match="access was refused, check the credentials and what they allow"):
            await server.load_model("a", {})
        assert await ask(server, "a") == 1
        for name, value in store.environment.items():
            credential(name, value)
        await server.load_model("a", {})


async def test_a_credential_file(
    store: Emulator, gates: Gates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if store.wrong is None:
        pytest.skip("this emulator checks no credentials")
    put(store, "a", 1, 1)
    given = store.environment
    s3 = {"key_id": given.get("AWS_ACCESS_KEY_ID", ""), "secret_key": given.get("AWS_SECRET_ACCESS_KEY", "")}
    azure = {"account_key": given.get("AZURE_STORAGE_KEY", "")}
    scheme, right = ("s3", {**s3, "region": "us-east-1"}) if s3["key_id"] else ("as", azure)
    wrong = dict.fromkeys(right, "d3Jvbmc=")
    path = tmp_path / "credentials.json"
    path.write_text(json.dumps({scheme: {"": wrong, store.address: right}}))
    monkeypatch.setenv("TRITON_CLOUD_CREDENTIAL_PATH", str(path))
    for name in store.wrong:
        if "KEY" in name:
            monkeypatch.delenv(name)
    async with serving((store.address,), gates, "a") as server:
        assert await ask(server, "a") == 1
    path.write_text(json.dumps({scheme: {"": wrong}}))
    with pytest.raises(UnavailableError, match="access was refused"):
        async with serving((store.address,), gates, "a"):
            pass
