"""The replicas behind a Service of Kubernetes, as its EndpointSlices have them: state without I/O.

Rules:
 1. What there is, is a function of the newest of each slice, and of nothing else: neither of the order in which they
    came, nor of what was there before. A list takes the place of everything; ``ADDED`` and ``MODIFIED`` that of one
    slice; ``DELETED`` takes one away; ``BOOKMARK`` says only from where a watch can go on.
 2. An endpoint has the name of its pod; without one its host name, or else its address. Its port is the one of the
    slice with the wanted name, if that is TCP, or the number that is wanted.
 3. Its state follows from its conditions:

    terminating   serving   ready     state
    no                      yes       READY         it belongs to the fleet
    no                      no        UNREADY       it stays if it is connected, and does not join
    yes           yes                 TERMINATING   it gets nothing new, and keeps its sequences
    yes           no                  (left out)    it leaves

    Where ``ready`` is missing it holds, as the API says; ``serving`` is ``ready`` where it is missing. Where a Service
    publishes addresses that are not ready, ``serving`` alone tells.
 4. A pod may be in several slices: one for each type of address, and in two of one type while it is moved. Types of
    addresses are preferred in the order of the settings, then states in the order of the table, then slices by name.
    Of several names with one address, the first by the same order counts, then by name.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SERVICE_LABEL = "kubernetes.io/service-name"
"""Slices of a Service have its name as this label."""

ADDRESS_TYPES = ("IPv4", "IPv6", "FQDN")

_NO_NAME = re.compile(r"[^A-Za-z0-9.-]+")
_HOST = re.compile(r"[^\s\[\]/]+")


class SliceError(ValueError):
    """An object is no EndpointSlice."""


class EndpointState(enum.IntEnum):
    """See rule 3."""

    READY = 0
    UNREADY = 1
    TERMINATING = 2


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One pod.

    Attributes:
        address: host and port.
    """

    address: str
    state: EndpointState


@dataclass(frozen=True, slots=True)
class _Row:
    """An endpoint as one slice has it, in the order of rule 4."""

    preference: int
    state: EndpointState
    slice_name: str
    name: str
    address: str

    @property
    def order(self) -> tuple[int, EndpointState, str, str, str]:
        return self.preference, self.state, self.slice_name, self.name, self.address


class EndpointSlices:
    """The slices of one Service.

    Args:
        port: the name of the replicas' gRPC port, or its number.
        types: the types of addresses that are used, the preferred one first.

    Attributes:
        version: from where a watch can go on; empty before the first list.
    """

    def __init__(self, port: str | int, types: Sequence[str] = ADDRESS_TYPES) -> None:
        self.port = port
        self.types = types
        self.version = ""
        self._slices: dict[str, list[_Row]] = {}
        self._ports: dict[str, frozenset[str]] = {}

    def listed(self, document: Mapping[str, Any]) -> None:
        """All slices were listed.

        Raises:
            SliceError: it is no list of them; nothing has changed then.
        """
        slices: dict[str, list[_Row]] = {}
        ports: dict[str, frozenset[str]] = {}
        for each in _list(document, "items"):
            name = _name(each)
            slices[name], ports[name] = self._rows(name, each), _port_names(each)
        self.version = _version(document)
        self._slices, self._ports = slices, ports

    def changed(self, kind: str, document: Mapping[str, Any]) -> bool:
        """A watch tells of one slice; whether that is more than a bookmark.

        Args:
            kind: ``type`` of the event.
            document: its ``object``.

        Raises:
            SliceError: it is none; nothing has changed then.
        """
        version = _version(document)
        if kind in ("ADDED", "MODIFIED"):
            name = _name(document)
            rows = self._rows(name, document)
            self._slices[name], self._ports[name] = rows, _port_names(document)
        elif kind == "DELETED":
            name = _name(document)
            self._slices.pop(name, None)
            self._ports.pop(name, None)
        elif kind != "BOOKMARK":
            raise SliceError(f"an event of type {kind!r}")
        self.version = version
        return kind != "BOOKMARK"

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        """By name (rule 4)."""
        by_name: dict[str, _Row] = {}
        for row in self._in_order():
            by_name.setdefault(row.name, row)
        by_address: dict[str, _Row] = {}
        for row in sorted(by_name.values(), key=lambda each: each.order):
            by_address.setdefault(row.address, row)
        return {
            row.name: Endpoint(row.address, row.state)
            for row in sorted(by_address.values(), key=lambda each: each.name)
        }

    @property
    def other_ports(self) -> frozenset[str]:
        """The names of the ports that there are, if there are some, and none has the wanted name."""
        names = frozenset[str]().union(*self._ports.values())
        return frozenset() if isinstance(self.port, int) or self.port in names else names

    def _in_order(self) -> list[_Row]:
        return sorted((row for rows in self._slices.values() for row in rows), key=lambda each: each.order)

    def _rows(self, name: str, document: Mapping[str, Any]) -> list[_Row]:
        kind = document.get("addressType")
        if not isinstance(kind, str):
            raise SliceError(f"the slice {name} has no addressType")
        port = self._find_port(document)
        if port is None or kind not in self.types:
            return []
        return list(self._read(name, self.types.index(kind), port, _list(document, "endpoints")))

    def _find_port(self, document: Mapping[str, Any]) -> int | None:
        if isinstance(self.port, int):
            return self.port
        for each in _list(document, "ports"):
            number = each.get("port")
            if (each.get("name") or "") == self.port and (each.get("protocol") or "TCP") == "TCP":
                return number if type(number) is int and 0 < number < 65_536 else None
        return None

    def _read(
        self, slice_name: str, preference: int, port: int, endpoints: Iterable[Mapping[str, Any]]
    ) -> Iterator[_Row]:
        for each in endpoints:
            addresses = each.get("addresses")
            host = (
                addresses[0] if isinstance(addresses, list) and addresses else None
            )  # others would be of the same pod
            if not isinstance(host, str) or not _HOST.fullmatch(host):
                raise SliceError(f"an endpoint of the slice {slice_name} has no address")
            state = _state(_object(each, "conditions"))
            if state is not None:
                address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                yield _Row(preference, state, slice_name, _endpoint_name(each, host), address)


def _state(conditions: Mapping[str, Any]) -> EndpointState | None:
    """Rule 3; None for one that is left out."""
    ready = conditions.get("ready") is not False
    serving = conditions.get("serving")
    serves = ready if serving is None else serving is True
    if conditions.get("terminating") is True:
        return EndpointState.TERMINATING if serves else None
    return EndpointState.READY if ready and serves else EndpointState.UNREADY


def _endpoint_name(endpoint: Mapping[str, Any], host: str) -> str:
    target = _object(endpoint, "targetRef")
    named = target.get("name") if target.get("kind") == "Pod" else None
    return str(named or endpoint.get("hostname") or _NO_NAME.sub("-", host))


def _list(document: Mapping[str, Any], key: str) -> list[Any]:
    found = document.get(key) or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise SliceError(f"{key} is no list of objects")
    return found


def _object(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = document.get(key) or {}
    if not isinstance(found, dict):
        raise SliceError(f"{key} is no object")
    return found


def _metadata(document: Mapping[str, Any]) -> Mapping[str, Any]:
    found = _object(document, "metadata")
    if not found:
        raise SliceError("an object without metadata")
    return found


def _name(document: Mapping[str, Any]) -> str:
    name = _metadata(document).get("name")
    if not isinstance(name, str) or not name:
        raise SliceError("a slice without a name")
    return name


def _version(document: Mapping[str, Any]) -> str:
    version = _metadata(document).get("resourceVersion")
    if not isinstance(version, str) or not version:
        raise SliceError("an object without resourceVersion")
    return version


def _port_names(document: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(str(each.get("name") or "") for each in _list(document, "ports"))
