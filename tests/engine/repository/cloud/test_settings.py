"""How stores are reached: addresses, credentials and the environment together."""

from __future__ import annotations

from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from trireme.engine.errors import InvalidArgumentError
from trireme.engine.repository.cloud.addresses import parse_address
from trireme.engine.repository.cloud.credentials import StoreCredential
from trireme.engine.repository.cloud.settings import StoreSettings, store_settings
from trireme.engine.repository.cloud.store import open_store

KEY = StoreCredential(key_id="k", secret="s", region="r")
NOWHERE = Path("/nowhere")


def settings(
    text: str, given: StoreCredential | None = None, environment: dict[str, str] | None = None, home: Path = NOWHERE
) -> StoreSettings:
    return store_settings(parse_address(text), given or StoreCredential(), environment or {}, home)


def test_s3_with_a_key() -> None:
    """The environment's session does not belong to this key."""
    found = settings("s3://bucket/path", KEY, {"AWS_SESSION_TOKEN": "of another key"})
    assert found.config == {"bucket": "bucket", "region": "r"}
    assert found.secret == {"access_key_id": "k", "secret_access_key": "s", "token": None, "expires_at": None}
    assert (found.anonymous, found.then_anonymous, found.allow_http) == (False, False, False)
    assert "'s'" not in repr(found)


@pytest.mark.parametrize(
    ("text", "environment", "endpoint"),
    [
        ("s3://host:9/bucket", {"AWS_ENDPOINT_URL": "https://other"}, "http://host:9"),
        ("s3://https://host:9/bucket", {"AWS_ENDPOINT_URL_S3": "http://other"}, "https://host:9"),
        ("s3://bucket", {"AWS_ENDPOINT_URL": "https://all", "AWS_ENDPOINT_URL_S3": "http://s3"}, "http://s3"),
        ("s3://bucket", {"AWS_ENDPOINT_URL": "https://all"}, "https://all"),
    ],
)
def test_s3_endpoints(text: str, environment: dict[str, str], endpoint: str) -> None:
    found = settings(text, KEY, environment)
    assert (found.config["endpoint"], found.config["aws_endpoint_url_s3"]) == (endpoint, endpoint)
    assert found.allow_http == endpoint.startswith("http://")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id = dk\naws_secret_access_key = ds\n"
        "[two]\naws_access_key_id = tk\naws_secret_access_key = ts\naws_session_token = tt\n"
    )
    (tmp_path / ".aws" / "config").write_text(
        "[default]\nregion = dr\n[profile two]\nregion = tr\n[profile role]\nrole_arn = arn:x\nregion = rr\n"
    )
    return tmp_path


def test_s3_profiles(home: Path) -> None:
    default = settings("s3://bucket", home=home)
    assert default.secret == {
        "access_key_id": "dk",
        "secret_access_key": "ds",
        "token": None,
        "expires_at": None,
    }
    assert default.config["region"] == "dr"
    two = settings("s3://bucket", StoreCredential(profile="two"), home=home)
    assert two.secret is not None
    assert (two.secret["access_key_id"], two.secret["token"], two.config["region"]) == ("tk", "tt", "tr")
    role = settings("s3://bucket", StoreCredential(profile="role", region="given"), home=home)
    assert (role.profile, role.secret, role.config["region"]) == ("role", None, "given")
    key = settings("s3://bucket", KEY, home=home)
    assert key.secret is not None
    assert key.secret["access_key_id"] == "k"


def test_s3_files_of_the_environment(home: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("[default]\naws_access_key_id = ok\naws_secret_access_key = os\n")
    found = settings("s3://bucket", environment={"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "other")}, home=home)
    assert found.secret is not None
    assert found.secret["access_key_id"] == "ok"


@pytest.mark.parametrize("text", ["aws_secret_access_key = secret", "[default]\nregion = r\nthe secret"])
def test_a_malformed_s3_file_is_not_shown(text: str, tmp_path: Path) -> None:
    (tmp_path / "other").write_text(text)
    with pytest.raises(
        InvalidArgumentError, match=r"failed to parse the AWS configuration .*/other, line [13]: "
    ) as it:
        settings("s3://bucket", environment={"AWS_CONFIG_FILE": str(tmp_path / "other")}, home=tmp_path)
    assert "secret" not in it.value.message


def test_s3_chain() -> None:
    """Of the machine; only where that does not name another source, what does not answer means a public bucket."""
    assert settings("s3://bucket").then_anonymous
    assert not settings("s3://bucket", environment={"AWS_WEB_IDENTITY_TOKEN_FILE": "/token"}).then_anonymous
    assert settings("s3://bucket", environment={"AWS_EC2_METADATA_DISABLED": "true"}).anonymous


@pytest.mark.parametrize(
    "name",
    ["GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY", "SERVICE_ACCOUNT"],
)
def test_no_variable_takes_the_place_of_a_google_account(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client library would take it, and not the one that is for this address."""
    given = StoreCredential(path="/nowhere/given.json")
    with pytest.raises(InvalidArgumentError, match=f"the variable {name} .* /nowhere/given.json for gs://bucket"):
        settings("gs://bucket", given, {name: "other"})
    same = settings("gs://bucket", given, {name: "/nowhere/given.json"})
    assert same.config["application_credentials"] == "/nowhere/given.json"
    store = pytest.importorskip("obstore.store")
    monkeypatch.setenv(name, "other")
    with pytest.raises(Exception, match="service account") as raised:
        store.GCSStore(config=same.config)
    assert "given.json" not in str(raised.value), "the library has changed: this check can go"


def test_google() -> None:
    assert settings("gs://bucket") == StoreSettings(config={"bucket": "bucket"}, then_anonymous=True)
    given = settings("gs://bucket", StoreCredential(path="/gs.json"))
    assert given == StoreSettings(config={"bucket": "bucket", "application_credentials": "/gs.json"})
    emulator = settings("gs://bucket", environment={"CLOUD_STORAGE_EMULATOR_ENDPOINT": "http://host:1/"})
    expected = {"bucket": "bucket", "base_url": "http://host:1"}
    assert emulator == StoreSettings(config=expected, anonymous=True, allow_http=True)


def test_azure() -> None:
    base = {"container_name": "c", "account_name": "a"}
    assert settings("as://a/c") == StoreSettings(config=base, anonymous=True)
    assert settings("as://a/c", environment={"AZURE_STORAGE_SAS_TOKEN": "x"}) == StoreSettings(config=base)
    key = settings("as://a/c", StoreCredential(account_key="k", auth_type="key"))
    assert key == StoreSettings(config=base, secret={"access_key": "k", "expires_at": None})
    other = settings("as://a/c", StoreCredential(account="b", account_key="k"))
    assert other.config["account_name"] == "b"
    managed = settings("as://a/c", StoreCredential(auth_type="managed_identity", client_id="i", account_key="k"))
    assert managed == StoreSettings(config={**base, "credential_type": "managed_identity", "client_id": "i"})
    assert settings("as://a/c", StoreCredential(auth_type="default")) == StoreSettings(config=base)
    with pytest.raises(InvalidArgumentError, match="'kerberos' for as://a/c is unknown, expected key, managed_"):
        settings("as://a/c", StoreCredential(auth_type="kerberos"))
    local = settings("as://a/c", environment={"AZURE_STORAGE_ENDPOINT": "http://host:1/a/"})
    assert (local.config["endpoint"], local.allow_http) == ("http://host:1/a", True)


@pytest.mark.parametrize(
    "variables",
    [
        {"AZURE_STORAGE_ACCOUNT_KEY": "c2VjcmV0"},
        {"AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=secret"},
        {"AZURE_CLIENT_ID": "i", "AZURE_CLIENT_SECRET": "s", "AZURE_TENANT_ID": "t"},
    ],
    ids=lambda each: next(iter(each)),
)
def test_nothing_in_the_environment_takes_the_place_of_a_managed_identity(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    authorizations: list[str | None] = []

    class Identity(BaseHTTPRequestHandler):
        """Gives out tokens, and is the store as well."""

        def do_GET(self) -> None:
            authorizations.append(self.headers["Authorization"])
            token = b'{"access_token": "T", "expires_in": "99", "expires_on": "9999999999", "token_type": "Bearer"}'
            body = token if self.path.startswith("/token") else b"<EnumerationResults><Blobs/></EnumerationResults>"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the library
            """Not into the test's output."""

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with ThreadingHTTPServer(("127.0.0.1", 0), Identity) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        given = settings("as://a/c", StoreCredential(auth_type="managed_identity"))
        config = {**given.config, "msi_endpoint": f"{url}/token", "endpoint": f"{url}/a"}
        try:
            open_store(parse_address("as://a/c"), replace(given, config=config, allow_http=True)).probe()
        finally:
            server.shutdown()
            thread.join()
    assert authorizations == [None, "Bearer T"]
