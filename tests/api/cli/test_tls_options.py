"""`trireme infer` and `trireme bench` over TLS: with the files that their options name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from authority import Authority
from repository_models import link_models
from serve_process import ServeProcess, serve_process

from trireme.api.cli.main import main


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    client = authority.ca.issue_cert("client@localhost")
    client.cert_chain_pems[0].write_to_path(authority.root.with_name("client.pem"))
    client.private_key_pem.write_to_path(authority.root.with_name("client.key"))
    return authority


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[ServeProcess]:
    """It asks clients of gRPC for certificates, those of HTTPS for none."""
    repository = link_models(tmp_path_factory.mktemp("tls") / "models", "simple", "repeat_int32")
    words = ["--http-use-ssl", "true", "--grpc-use-ssl-mutual", "true", "--grpc-root-cert", str(authority.root)]
    for service in ("http", "grpc"):
        words += [f"--{service}-server-cert", str(authority.certificate), f"--{service}-server-key", str(authority.key)]
    with serve_process(repository, *words) as running:
        yield running


def options(authority: Authority, scheme: str) -> list[str]:
    known = ["--ssl-root-certificates", str(authority.root)]
    if scheme == "grpcs":
        known += ["--ssl-private-key", str(authority.root.with_name("client.key"))]
        known += ["--ssl-certificate-chain", str(authority.root.with_name("client.pem"))]
    return known


def url(server: ServeProcess, scheme: str) -> list[str]:
    return ["--url", f"{scheme}://localhost:{server.http_port if scheme == 'https' else server.grpc_port}"]


@pytest.mark.parametrize("scheme", ["https", "grpcs"])
def test_a_server_with_tls_answers(
    server: ServeProcess, authority: Authority, scheme: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*url(server, scheme), *options(authority, scheme)]
    assert main(["infer", "simple", "--input", f"INPUT0={[2] * 16}", "--format", "json", *words]) == 0
    outputs = json.loads(capsys.readouterr().out)["outputs"]
    assert [each["data"] for each in outputs] == [[2] * 16] * 2
    count = 20_000  # more than a record of TLS
    given = [f"IN={list(range(count))}", f"DELAY={[0] * count}", "WAIT=0"]
    assert main(["infer", "repeat_int32", *(f"--input={each}" for each in given), "--format", "json", *words]) == 0
    assert len(json.loads(capsys.readouterr().out)["answers"]) == count
    load = ["--clients", "2", "--seconds", "0.05", "--warm-up", "0", "--rows", "4", "--json"]
    assert main(["bench", "simple", *load, *words]) == 0
    (level,) = json.loads(capsys.readouterr().out)
    assert level["answered"] == level["requests"] > 0


def test_whom_nobody_knows_is_not_trusted(
    server: ServeProcess, authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    for scheme in ("https", "grpcs"):
        assert main(["infer", "simple", *url(server, scheme)]) == 3
        said = capsys.readouterr().err
        assert f"TLS with {scheme}://localhost:" in said
        assert "name whom to trust with --ssl-root-certificates FILE" in said
    assert main(["infer", "simple", *url(server, "grpcs"), *options(authority, "https")]) == 3
    assert main(["bench", "simple", *url(server, "grpcs")]) == 3
    assert "certificate" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["infer", "bench"])
def test_files_that_are_not_there(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "simple", "--ssl-root-certificates", str(tmp_path / "no.pem")]) == 2
    assert "the files for TLS cannot be read: No such file or directory" in capsys.readouterr().err
    assert main([command, "simple", "--ssl-private-key", str(tmp_path / "no.pem")]) == 2
    assert "there is a private key without a certificate chain" in capsys.readouterr().err
