"""The file of a fleet on Ray (`cluster.settings`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from documents import ROOT, blocks

from trireme.cluster.settings import ClusterSettings, ModelSettings, load_settings, read_settings
from trireme.engine.errors import InvalidArgumentError
from trireme.engine.fleet.scaling import ScalingSettings
from trireme.gateway.fleet_file import ConnectionSettings

LEAST = '[cluster]\nmodel-repository = ["/models"]\n'


def test_what_is_not_said_has_defaults() -> None:
    assert read_settings(LEAST, "fleet.toml") == ClusterSettings("trireme", ("/models",))


def test_everything() -> None:
    text = """
    [cluster]
    name = "digits"
    model-repository = ["/models", "s3://bucket/models"]
    flags = ["--log-verbose=1"]
    [replicas]
    least = 1
    most = 3
    target-queue-ms = 5
    up-secs = 1
    down-secs = 2.5
    settle-secs = 4
    drain-secs = 20
    cpus = 0.5
    gpus = 1
    memory = "8G"
    resources = { fast = 1 }
    [models]
    copies = 2
    [models.large]
    memory = "500M"
    copies = 1
    requests-per-second = 12.5
    [gateways]
    count = 2
    http-port = 0
    grpc-port = 9001
    flags = ["--log-verbose=2"]
    resources = { edge = 0.5 }
    [connection]
    ca-file = "ca.pem"
    token-file = "/etc/token"
    """
    assert read_settings(text, "/etc/fleet.toml") == ClusterSettings(
        connection=ConnectionSettings(True, Path("/etc/ca.pem"), token_file=Path("/etc/token")),
        name="digits",
        repositories=("/models", "s3://bucket/models"),
        flags=("--log-verbose=1",),
        scaling=ScalingSettings(1, 3, 0.005, 1, 2.5, 4, {"large": 12.5}),
        cpus=0.5,
        gpus=1,
        room=8 << 30,
        drain_s=20,
        copies=2,
        models={"large": ModelSettings(500 << 20, 1)},
        gateways=2,
        http_port=0,
        grpc_port=9001,
        gateway_flags=("--log-verbose=2",),
        replica_resources={"fast": 1},
        gateway_resources={"edge": 0.5},
    )


def test_the_file_of_the_documentation() -> None:
    *_, text = blocks(ROOT / "docs" / "cluster.md", "toml")
    settings = read_settings(text, "/etc/fleet.toml")
    assert settings.flags == ("--log-verbose=1",)
    assert settings.models["resnet"].copies == 2
    assert settings.connection.token_file == Path("/etc/trireme/token")


def test_paths_are_relative_to_the_file() -> None:
    """Servers run in folders of Ray's."""
    text = '[cluster]\nmodel-repository = ["models", "/shared/models", "s3://bucket/models"]\n'
    repositories = read_settings(text, "/etc/trireme/fleet.toml").repositories
    assert repositories == ("/etc/trireme/models", "/shared/models", "s3://bucket/models")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "fleet.toml: found no [cluster], expected a table [cluster] with the model repositories"),
        ("[cluster]\n", 'fleet.toml:1: cluster: found no model-repository, expected model-repository = ["path or'),
        (
            LEAST + 'name = "Digits!"',
            "fleet.toml:3: cluster.name: found 'Digits!', expected lower-case letters",
        ),
        (LEAST + 'flags = ["x"]', "fleet.toml:3: cluster.flags[0]: found 'x' (it does not begin with --), expected"),
        (LEAST + 'repository = "x"', "fleet.toml:3: cluster.repository: found an unknown key, expected one of"),
        (
            LEAST + "[replicas]\nleast = 3\nmost = 2",
            "fleet.toml:4: replicas.least: found 3, expected no more",
        ),
        (
            LEAST + '[replicas]\nmemory = "much"',
            "fleet.toml:4: replicas.memory: found 'much', expected bytes",
        ),
        (LEAST + "[replicas]\nmemory = 0", "fleet.toml:4: replicas.memory: found 0, expected bytes"),
        (LEAST + "[replicas]\nresources = {fast = -1}", "fleet.toml:4: replicas.resources.fast: found -1, expected a"),
        (LEAST + "[models]\nlarge = 3", "fleet.toml:4: models.large: found 3, expected a table"),
        (LEAST + "[gateways]\nhttp-port = 70000", "fleet.toml:4: gateways.http-port: found 70000, expected a port"),
        (
            LEAST + "[gateway]\n",
            "fleet.toml:3: gateway: found an unknown key, expected one of cluster",
        ),
        ("[cluster", "fleet.toml: not valid TOML: "),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, error: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        read_settings(text, "fleet.toml")
    assert caught.value.message.startswith(error)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"cannot read .*none.toml: No such file"):
        load_settings(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"\xe4")
    with pytest.raises(InvalidArgumentError, match=r"latin\.toml: not UTF-8"):
        load_settings(tmp_path / "latin.toml")
    (tmp_path / "right.toml").write_text(LEAST)
    assert load_settings(tmp_path / "right.toml").repositories == ("/models",)
