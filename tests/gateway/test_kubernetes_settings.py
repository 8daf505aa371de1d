"""The section [kubernetes] of a fleet's file, and what a pod adds to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trireme.engine.errors import InvalidArgumentError
from trireme.gateway.fleet_file import read_fleet
from trireme.gateway.kubernetes_settings import ACCOUNT, KubernetesSettings, in_cluster

WHOLE = """
[kubernetes]
service = "trireme"
namespace = "models"
port = 8001
address-type = "IPv6"
server = "https://10.0.0.1:6443/"
token-file = "token"
ca-file = "/etc/ca.pem"

[kubernetes.weights]
trireme-0 = 2
"a.b" = 0.5
"""


def test_what_it_says() -> None:
    assert read_fleet(WHOLE, "/etc/trireme/fleet.toml").kubernetes == KubernetesSettings(
        "trireme",
        "models",
        8001,
        ("IPv6",),
        {"trireme-0": 2.0, "a.b": 0.5},
        "https://10.0.0.1:6443",
        Path("/etc/trireme/token"),
        Path("/etc/ca.pem"),
    )


def test_defaults_are_those_of_a_pod() -> None:
    found = read_fleet('[kubernetes]\nservice = "s"', "/etc/fleet.toml").kubernetes
    assert found == KubernetesSettings("s")
    assert found is not None
    assert (found.port, found.address_types) == ("grpc", ("IPv4", "IPv6", "FQDN"))
    assert (found.token_file, found.ca_file) == (ACCOUNT / "token", ACCOUNT / "ca.crt")


SERVICE = '[kubernetes]\nservice = "s"\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[kubernetes]", "f:1: kubernetes: found no service, expected service = the name of the Service"),
        ('[kubernetes]\nservice = "S_"', "f:2: kubernetes.service: found 'S_', expected lower case letters"),
        (f'{SERVICE}namespace = ""', "f:3: kubernetes.namespace: found '', expected lower case letters"),
        (f"{SERVICE}port = 0", "f:3: kubernetes.port: found 0, expected the name of a port, or its number"),
        (f"{SERVICE}port = true", "f:3: kubernetes.port: found True, expected the name of a port, or its number"),
        (f'{SERVICE}address-type = "IPX"', "found 'IPX', expected one of IPv4, IPv6, FQDN"),
        (f'{SERVICE}server = "10.0.0.1"', "f:3: kubernetes.server: found '10.0.0.1', expected https://host:port"),
        (f'{SERVICE}server = "https://[::1"', "f:3: kubernetes.server: found 'https://[::1', expected https://"),
        (f'{SERVICE}server = "https://h:99999"', "f:3: kubernetes.server: found"),
        (
            f'{SERVICE}server = "https://a..b"',
            "f:3: kubernetes.server: found 'https://a..b', expected https://host:port",
        ),
        (f'{SERVICE}server = "https://\u00fc"', "f:3: kubernetes.server: found"),
        (f'{SERVICE}server = "https://me:word@h"', "f:3: kubernetes.server: found"),
        (f'{SERVICE}server = "https://h/?a=b"', "f:3: kubernetes.server: found"),
        (f"{SERVICE}[kubernetes.weights]\na = 0", "f:4: kubernetes.weights.a: found 0, expected a number greater than"),
        (f"{SERVICE}[kubernetes.weights]\na = 1001", "found 1001, expected a number up to 1000"),
        (f"{SERVICE}servcie = 1", "f:3: kubernetes.servcie: found an unknown key"),
        (f'{SERVICE}[replicas.a]\naddress = "h:1"', "f:1: kubernetes: found replicas as well, expected one of both"),
    ],
)
def test_what_is_refused(text: str, expected: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        read_fleet(text, "f")
    assert expected in refused.value.message


def test_what_a_pod_adds(tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("models\n")
    settings = KubernetesSettings("s", token_file=tmp_path / "token")
    found = in_cluster(settings, {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"})
    assert (found.server, found.namespace) == ("https://10.0.0.1:6443", "models")
    assert in_cluster(settings, {"KUBERNETES_SERVICE_HOST": "fd00::1"}).server == "https://[fd00::1]:443"
    given = KubernetesSettings("s", "n", server="https://h:1")
    assert in_cluster(given, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == given


def test_where_there_is_no_pod(tmp_path: Path) -> None:
    settings = KubernetesSettings("s", token_file=tmp_path / "token")
    with pytest.raises(InvalidArgumentError, match="found no server, and this is no pod of Kubernetes"):
        in_cluster(settings, {})
    host = {"KUBERNETES_SERVICE_HOST": "h"}
    with pytest.raises(InvalidArgumentError, match=r"found no namespace, and .*/namespace: No such file"):
        in_cluster(settings, host)
    (tmp_path / "namespace").write_text("a/../b")
    with pytest.raises(InvalidArgumentError, match=r"namespace: found 'a/../b', expected lower case letters"):
        in_cluster(settings, host)
