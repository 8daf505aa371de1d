"""What the file of a fleet says of Kubernetes (docs/gateway.md), and what a pod finds of it by itself::

[kubernetes]
service = "trireme"
port = "grpc"

[kubernetes.weights]
"trireme-0" = 2.0
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from ..actors.watched_file import read_text
from ..engine.errors import InvalidArgumentError
from ..engine.strict_toml import FileTable, shown_value
from .endpoint_slices import ADDRESS_TYPES

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds the token of its service account."""

MOST_WEIGHT = 1_000.0

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_HOST = r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?|\[[0-9A-Fa-f:.]+\]"
_SERVER = re.compile(rf"https?://({_HOST})(:[0-9]+)?(/[A-Za-z0-9._~/-]*)?")
_LABEL_SHOWN = "lower case letters, digits and '-', 63 at most"


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """Where the replicas are looked for.

    Attributes:
        service: a Service in front of all replicas, and of nothing else.
        namespace: its own; empty for that of the gateway's pod.
        port: the name of the gRPC port in the Service, or its number in the pods.
        address_types: the preferred one first.
        weights: of replicas, by the name of the pod; 1 for others.
        server: the address of the API server; empty for what the pod's environment says.
        token_file, ca_file: those of the pod's service account by default.
    """

    service: str
    namespace: str = ""
    port: str | int = "grpc"
    address_types: tuple[str, ...] = ADDRESS_TYPES
    weights: Mapping[str, float] = field(default_factory=dict)
    server: str = ""
    token_file: Path = ACCOUNT / "token"
    ca_file: Path = ACCOUNT / "ca.crt"


def read_kubernetes(table: FileTable, folder: Path) -> KubernetesSettings:
    """What a table says. FaultyEntryError if it is not as it should be."""
    table.expect("service", "namespace", "port", "address-type", "weights", "server", "token-file", "ca-file")
    service = _label(table, "service")
    if service is None:
        raise table.fault(None, "no service", "service = the name of the Service in front of the replicas")
    kinds = ADDRESS_TYPES
    expected = f"one of {', '.join(ADDRESS_TYPES)}"
    kind = table.get("address-type", str, expected)
    if kind is not None:
        if kind not in ADDRESS_TYPES:
            raise table.fault("address-type", shown_value(kind), expected)
        kinds = (kind,)
    return KubernetesSettings(
        service,
        _label(table, "namespace") or "",
        _port(table),
        kinds,
        _weights(table),
        _server(table),
        folder / (table.get("token-file", str, "the path of a file") or ACCOUNT / "token"),
        folder / (table.get("ca-file", str, "the path of a file") or ACCOUNT / "ca.crt"),
    )


def in_cluster(settings: KubernetesSettings, environment: Mapping[str, str]) -> KubernetesSettings:
    """The same, with what the pod's environment and service account say. Blocks.

    Raises:
        InvalidArgumentError: something is missing, and this is no pod that has it.
    """
    server, namespace = settings.server, settings.namespace
    if not server:
        host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise InvalidArgumentError(
                "[kubernetes] of the file of the fleet: found no server, and this is no pod of Kubernetes: "
                "KUBERNETES_SERVICE_HOST is not set; expected server = the address of its API server"
            )
        server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    if not namespace:
        path = settings.token_file.with_name("namespace")
        try:
            namespace = read_text(path).strip()
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"[kubernetes] of the file of the fleet: found no namespace, and {error.message}"
            ) from error
        if not _LABEL.fullmatch(namespace):
            raise InvalidArgumentError(f"{path}: found {shown_value(namespace)}, expected {_LABEL_SHOWN}")
    return replace(settings, server=server, namespace=namespace)


def _label(table: FileTable, key: str) -> str | None:
    name = table.get(key, str, _LABEL_SHOWN)
    if name is not None and not _LABEL.fullmatch(name):
        raise table.fault(key, shown_value(name), _LABEL_SHOWN)
    return name


def _port(table: FileTable) -> str | int:
    expected = "the name of a port, or its number"
    port = table.get("port", (str, int), expected)
    if port is None:
        return "grpc"
    if isinstance(port, int) and not 0 < port < 65_536:
        raise table.fault("port", shown_value(port), expected)
    return port


def _server(table: FileTable) -> str:
    expected = "https://host:port"
    server = table.get("server", str, expected)
    if server is None:
        return ""
    try:
        parts = urlsplit(server)
        fits = _SERVER.fullmatch(server) is not None and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        raise table.fault("server", shown_value(server), expected)
    return server.rstrip("/")


def _weights(table: FileTable) -> dict[str, float]:
    given = table.table("weights", "a table of numbers, by the names of pods")
    if given is None:
        return {}
    given.expect(*given.keys)
    weights: dict[str, float] = {}
    for name in given.keys:
        weight = given.number(name)
        assert weight is not None, "it is one of the keys"
        if weight > MOST_WEIGHT:
            raise given.fault(name, shown_value(weight), f"a number up to {MOST_WEIGHT:g}")
        weights[name] = float(weight)
    return weights
