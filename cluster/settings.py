"""The file of `trireme cluster up`: what a fleet on Ray is to be."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..engine.errors import InvalidArgumentError
from ..engine.fleet.roster import ModelSettings
from ..engine.fleet.scaling import ScalingSettings
from ..engine.repository.cloud.addresses import is_store_address
from ..engine.strict_toml import FileTable, read_strictly
from ..gateway.fleet_file import ConnectionSettings, read_connection

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_SIZE = re.compile(r"(\d+)\s*([KMGT]?)i?B?", re.IGNORECASE)
_SIZES = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_SIZE_TEXT = 'bytes, as a whole number or as text like "500M" or "8G"'


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Attributes:
    name: of the application, and part of the names of its actors.
    repositories: absolute paths or addresses of model repositories, which every node can read.
    flags: further ones of `trireme serve`, for each replica.
    scaling: how many replicas.
    cpus, gpus: of each replica, for Ray; None for what the models' instances need.
    room: bytes for models on each replica; None if all replicas have all models.
    drain_s: how long a replica that is to go is given to answer what it has, seconds.
    copies: of each model, unless `models` says otherwise.
    gateways: how many.
    http_port, grpc_port: of the first gateway of a node; each further one there has ten more. 0 for any free one.
    gateway_flags: further ones of `trireme gateway`.
    connection: how gateways talk to replicas, with files of their nodes.
    replica_resources, gateway_resources: Ray's custom resources that each needs of its node, by name.
    """

    name: str
    repositories: tuple[str, ...]
    flags: tuple[str, ...] = ()
    scaling: ScalingSettings = field(default_factory=ScalingSettings)
    cpus: float | None = None
    gpus: float | None = None
    room: int | None = None
    drain_s: float = 30.0
    copies: int = 1
    models: Mapping[str, ModelSettings] = field(default_factory=dict)
    gateways: int = 1
    http_port: int = 8000
    grpc_port: int = 8001
    gateway_flags: tuple[str, ...] = ()
    connection: ConnectionSettings = field(default_factory=ConnectionSettings)
    replica_resources: Mapping[str, float] = field(default_factory=dict)
    gateway_resources: Mapping[str, float] = field(default_factory=dict)

    @property
    def of_gateways(self) -> tuple[object, ...]:
        """What makes other gateways of them if it changes."""
        ports = self.http_port, self.grpc_port
        return self.gateways, ports, self.gateway_flags, self.connection, dict(self.gateway_resources)


def load_settings(path: Path) -> ClusterSettings:
    """What the file says.

    Raises:
        InvalidArgumentError: it cannot be read, or something in it is not as it should be.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidArgumentError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path}: not UTF-8: {error.reason}") from error
    return read_settings(text, str(path))


def read_settings(text: str, name: str) -> ClusterSettings:
    """What the text says of the file of that name. Paths are relative to its folder, on all nodes.

    Raises:
        InvalidArgumentError: something in it is not as it should be.
    """
    return read_strictly(text, name, lambda root: _read(root, Path(name).resolve().parent))


def _read(root: FileTable, folder: Path) -> ClusterSettings:
    root.expect("cluster", "replicas", "models", "gateways", "connection")
    cluster = root.table("cluster", "a table")
    if cluster is None:
        raise root.fault(None, "no [cluster]", "a table [cluster] with the model repositories")
    cluster.expect("name", "model-repository", "flags")
    name = cluster.get("name", str, "a name") or "trireme"
    if not _NAME.fullmatch(name):
        raise cluster.fault("name", repr(name), "lower-case letters, digits and hyphens")
    repositories = cluster.texts("model-repository", lambda text: None if text else "it is empty", "a list of paths")
    if not repositories:
        raise cluster.fault(None, "no model-repository", 'model-repository = ["path or address", ...]')
    repositories = tuple(text if is_store_address(text) else str(folder / text) for text in repositories)
    flags = cluster.texts("flags", _no_flag, 'a list of flags like "--log-verbose=1"')
    found = _replicas(root) | _models(root) | _gateways(root)
    scaling = found.get("scaling") or ScalingSettings()
    found["scaling"] = replace(scaling, capacities=found.pop("capacities", {}))
    connection = root.table("connection", "a table of files")
    if connection is not None:
        found["connection"] = read_connection(connection, folder)
    return ClusterSettings(name, repositories, flags, **found)


def _no_flag(text: str) -> str | None:
    return None if text.startswith("--") else "it does not begin with --"


def _replicas(root: FileTable) -> dict[str, Any]:
    table = root.table("replicas", "a table")
    if table is None:
        return {}
    numbers = ("target-queue-ms", "up-secs", "down-secs", "settle-secs", "drain-secs", "cpus", "gpus")
    table.expect("least", "most", "memory", "resources", *numbers)
    least, most = (table.number(key, whole=True) for key in ("least", "most"))
    least = int(least or most or 1)
    most = int(most or least)
    if least > most:
        raise table.fault("least", str(least), f"no more than most, which is {most}")
    target_ms, up_s, down_s, settle_s, drain_s, cpus, gpus = (table.number(key) for key in numbers)
    given: dict[str, Any] = {
        "target_s": target_ms and target_ms / 1e3,
        "up_s": up_s,
        "down_s": down_s,
        "settle_s": settle_s,
    }
    scaling = ScalingSettings(least, most, **{key: value for key, value in given.items() if value is not None})
    found: dict[str, Any] = {"scaling": scaling, "cpus": cpus, "gpus": gpus, "room": _bytes(table, "memory")}
    found["replica_resources"] = _resources(table)
    return found if drain_s is None else found | {"drain_s": drain_s}


def _bytes(table: FileTable, key: str) -> int | None:
    value = table.get(key, (int, str), _SIZE_TEXT)
    if value is None:
        return None
    found = _SIZE.fullmatch(str(value).strip())
    if found is None or not int(found[1]):
        raise table.fault(key, repr(value), _SIZE_TEXT)
    return int(found[1]) << _SIZES[found[2].upper()]


def _resources(table: FileTable) -> dict[str, float]:
    resources = table.table("resources", "a table of numbers")
    found = {} if resources is None else {name: resources.number(name) for name in resources.keys}
    return {name: number for name, number in found.items() if number is not None}


def _models(root: FileTable) -> dict[str, Any]:
    table = root.table("models", "a table")
    if table is None:
        return {}
    copies = table.number("copies", whole=True)
    models: dict[str, ModelSettings] = {}
    capacities: dict[str, float] = {}
    for name in table.keys:
        if name == "copies":
            continue
        model = table.table(name, "a table")
        assert model is not None, "its name stands there"
        model.expect("memory", "copies", "requests-per-second")
        own = model.number("copies", whole=True)
        models[name] = ModelSettings(_bytes(model, "memory"), None if own is None else int(own))
        capacity_hz = model.number("requests-per-second")
        if capacity_hz is not None:
            capacities[name] = capacity_hz
    return {"models": models, "capacities": capacities} | ({} if copies is None else {"copies": int(copies)})


def _gateways(root: FileTable) -> dict[str, Any]:
    table = root.table("gateways", "a table")
    if table is None:
        return {}
    table.expect("count", "http-port", "grpc-port", "flags", "resources")
    found: dict[str, Any] = {"gateway_flags": table.texts("flags", _no_flag, "a list of flags")}
    found["gateway_resources"] = _resources(table)
    count = table.number("count", whole=True)
    if count is not None:
        found["gateways"] = int(count)
    for key in ("http-port", "grpc-port"):
        port = table.number(key, least=-1, whole=True)
        if port is not None and port > 65535:
            raise table.fault(key, str(port), "a port, 0 to 65535")
        if port is not None:
            found[key.replace("-", "_")] = int(port)
    return found
