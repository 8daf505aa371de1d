"""The file that says which replicas a fleet has, and how a gateway talks to them (docs/gateway.md)::

[gateway]
report-interval-ms = 100
retry-budget = 0.1

[connection]
ca-file = "ca.pem"

[replicas.a]
address = "10.0.0.1:8001"
weight = 1.0

or, in place of replicas, the Service of Kubernetes that they are behind (`kubernetes_settings`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..actors.watched_file import read_text
from ..engine.fleet.types import FleetSettings
from ..engine.strict_toml import FileTable, read_strictly, shown_value
from .kubernetes_settings import MOST_WEIGHT, KubernetesSettings, read_kubernetes

_DEFAULTS = FleetSettings()
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%a-z]+\]|[^\s:\[\]/]+):([0-9]{1,5})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_LEAST_INTERVAL_MS, _MOST_INTERVAL_MS = 10, 10_000
_MOST_REPLICAS = 10_000


@dataclass(frozen=True, slots=True)
class ReplicaEntry:
    """A replica: where its gRPC service listens, how much it gets beside others, and where people find its console."""

    address: str
    weight: float = 1.0
    console: str = ""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """How replicas are talked to.

    Attributes:
        tls: whether connections are encrypted; they are if a file says how.
        ca_file: whose certificates are trusted; None for those that the system trusts.
        certificate_file, key_file: what the gateway shows of itself.
        token_file: has the bearer token that replicas with access rules want.
    """

    tls: bool = False
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    token_file: Path | None = None


@dataclass(frozen=True, slots=True)
class FleetFile:
    """What the file says.

    Attributes:
        report_interval_ms: how often replicas are asked what has changed.
        kubernetes: where replicas are looked for; None if they are those of the file.
    """

    settings: FleetSettings = _DEFAULTS
    report_interval_ms: int = 100
    connection: ConnectionSettings = ConnectionSettings()
    replicas: Mapping[str, ReplicaEntry] = field(default_factory=dict)
    kubernetes: KubernetesSettings | None = None


def load_fleet(path: Path) -> FleetFile:
    """Read a file. Blocks. Paths in it are relative to its folder.

    Raises:
        InvalidArgumentError: it cannot be read, or is faulty.
    """
    return read_fleet(read_text(path), str(path))


def read_fleet(text: str, name: str) -> FleetFile:
    """What the text of the file of that name says.

    Raises:
        InvalidArgumentError: it is faulty: on which line, which key, what was found and what is expected.
    """
    folder = Path(name).parent
    return read_strictly(text, name, lambda root: _read(root, folder))


def _read(root: FileTable, folder: Path) -> FleetFile:
    root.expect("gateway", "connection", "replicas", "kubernetes")
    gateway = root.table("gateway", "a table of settings")
    settings, interval_ms = _DEFAULTS, 100
    if gateway is not None:
        gateway.expect("report-interval-ms", "retry-budget", "wait-secs", "sequence-idle-secs")
        interval_ms = int(gateway.number("report-interval-ms", whole=True) or interval_ms)
        if not _LEAST_INTERVAL_MS <= interval_ms <= _MOST_INTERVAL_MS:
            expected = f"milliseconds from {_LEAST_INTERVAL_MS} to {_MOST_INTERVAL_MS}"
            raise gateway.fault("report-interval-ms", str(interval_ms), expected)
        settings = FleetSettings(
            retry_budget=_part(gateway, "retry-budget", _DEFAULTS.retry_budget),
            wait_s=gateway.number("wait-secs") or _DEFAULTS.wait_s,
            sequence_idle_s=gateway.number("sequence-idle-secs") or _DEFAULTS.sequence_idle_s,
        )
    connection = root.table("connection", "a table of files")
    replicas = root.table("replicas", "a table of tables, [replicas.NAME]")
    kubernetes = root.table("kubernetes", "a table that says where replicas are looked for")
    if replicas is not None and kubernetes is not None:
        raise root.fault("kubernetes", "replicas as well", "one of both")
    return FleetFile(
        settings,
        interval_ms,
        ConnectionSettings() if connection is None else read_connection(connection, folder),
        {} if replicas is None else _read_replicas(replicas),
        None if kubernetes is None else read_kubernetes(kubernetes, folder),
    )


def _part(table: FileTable, key: str, default: float) -> float:
    expected = "a number from 0 to 1"
    value = table.get(key, (int, float), expected)
    if value is None:
        return default
    if not 0 <= value <= 1:
        raise table.fault(key, shown_value(value), expected)
    return float(value)


def fleet_text(addresses: Mapping[str, str], connection: ConnectionSettings) -> str:
    """The text of a file with these replicas, by name."""
    shown = {
        "ca-file": connection.ca_file,
        "certificate-file": connection.certificate_file,
        "key-file": connection.key_file,
        "token-file": connection.token_file,
    }
    lines = ["[connection]", f"tls = {str(connection.tls).lower()}"]
    lines += [f"{key} = {_quoted(str(path))}" for key, path in shown.items() if path is not None]
    for name, address in addresses.items():
        lines += [f"[replicas.{_quoted(name)}]", f"address = {_quoted(address)}"]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a string of TOML, too


def read_connection(table: FileTable, folder: Path) -> ConnectionSettings:
    """What a table says of connections to replicas. FaultyEntryError if it is not as it should be."""
    keys = ("ca-file", "certificate-file", "key-file", "token-file")
    table.expect("tls", *keys)
    paths: dict[str, Path | None] = {}
    for key in keys:
        text = table.get(key, str, "the path of a file")
        paths[key] = None if text is None else folder / text
    if (paths["certificate-file"] is None) is not (paths["key-file"] is None):
        raise table.fault(None, "one of certificate-file and key-file", "both or neither")
    files = any(paths[key] is not None for key in keys[:3])
    tls = table.get("tls", bool, "true or false")
    if files and tls is False:
        raise table.fault("tls", "false", "true, or nothing, since there are files for it")
    return ConnectionSettings(tls is True or files, *(paths[key] for key in keys))


def _read_replicas(table: FileTable) -> dict[str, ReplicaEntry]:
    table.expect(*table.keys)
    members: dict[str, ReplicaEntry] = {}
    addresses: dict[str, str] = {}
    if len(table.keys) > _MOST_REPLICAS:
        raise table.fault(None, f"{len(table.keys)} replicas", f"{_MOST_REPLICAS} at most")
    for name in table.keys:
        if not _NAME.fullmatch(name):
            raise table.fault(name, f"the name {shown_value(name)}", "letters, digits, '.', '_' and '-', 63 at most")
        member = table.table(name, "a table with address, weight and console")
        assert member is not None, "it is one of the keys"
        member.expect("address", "weight", "console")
        expected = "host:port of its gRPC service"
        address = member.need("address", str, expected)
        found = _ADDRESS.fullmatch(address)
        if found is None or not 0 < int(found[2]) < 65_536:
            raise member.fault("address", shown_value(address), expected)
        if address in addresses:
            raise member.fault("address", f"that of {addresses[address]}, too", "an address of its own")
        addresses[address] = name
        weight = member.number("weight")
        if weight is not None and weight > MOST_WEIGHT:
            raise member.fault("weight", shown_value(weight), f"a number up to {MOST_WEIGHT:g}")
        console = member.get("console", str, "the address of its console") or ""
        if console and not console.startswith(("http://", "https://")):
            raise member.fault("console", shown_value(console), "an address that begins with http:// or https://")
        members[name] = ReplicaEntry(address, 1.0 if weight is None else float(weight), console)
    return members
