"""What the replicas say of their models, merged: what clients of the gateway are told of them.

Rules:
 1. A version is described as the replica has it that reported it first; which versions of a name are ready is what all
    replicas have together. Without a version, the greatest of those holds that replicas would take themselves.
 2. A replica whose metadata of a version disagree with that is not ready for the version, and the log says so, once. It
    is again when those who agreed do not have the version any more.
 3. Of what no replica can serve, the error is that of a replica which knows it. A replica that is lost goes on to count
    until it reports again or leaves the fleet: its requests wait for it, unless another one would load the model.
 4. Of a version's adapters those can be asked for that all replicas have which serve it.
 5. A description stays the same object as long as it says the same.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ..engine.config.chat import ChatTemplate
from ..engine.config.model import ModelConfig, ModelConfigMessage, model_config
from ..engine.description import ModelDescription
from ..engine.errors import ColdModelError, NotFoundError, RefusalReason, TriremeError, UnavailableError
from ..engine.request import LATEST
from ..front_ends.values import read_error

logger = logging.getLogger("trireme.gateway")

_CONFIGS = 4_096
"""Configurations that are remembered: replicas have the same ones."""

_OF_ROUTE = 1
"""The version that a route has for the router."""

_Result = ModelDescription | TriremeError


@dataclass(slots=True)
class _Known:
    """What a replica says of a name."""

    latest: _Result
    others: TriremeError | None
    versions: dict[int, _Result]

    @property
    def is_cold(self) -> bool:
        """It is loaded when it is asked for."""
        return isinstance(self.latest, ColdModelError)


class FleetModels:
    """The models of all replicas.

    Attributes:
        found: by name and version what `describe` gives; what it refuses is not there.
    """

    def __init__(self) -> None:
        self._replicas: dict[str, dict[str, _Known]] = {}
        self._ready: dict[str, dict[str, dict[int, bool]]] = {}
        self.found: dict[tuple[str, int], ModelDescription] = {}
        self._errors: dict[tuple[str, int], TriremeError] = {}
        self._others: dict[str, TriremeError | None] = {}
        self._keys: dict[str, list[tuple[str, int]]] = {}
        self._disagree: set[tuple[str, str, int]] = set()
        self._lost: set[str] = set()

    def __contains__(self, name: object) -> bool:
        return name in self._others

    @property
    def names(self) -> list[str]:
        return list(self._others)

    def describe(self, name: str, version: int = LATEST) -> ModelDescription:
        """See `InferenceServer.describe`."""
        found = self.found.get((name, version))
        if found is not None:
            return found
        raise self._refusal(name, version)

    def with_adapter(self, adapter: str) -> list[ModelDescription]:
        """See `Facade`."""
        latest = [self.found.get((name, LATEST)) for name in sorted(self._others)]
        return [each for each in latest if each is not None and adapter in each.adapters]

    def _refusal(self, name: str, version: int) -> TriremeError:
        if name not in self._others:
            if not self._replicas:
                return UnavailableError(
                    "no replica of the fleet has told yet what it serves", refusal=RefusalReason.NOT_READY
                )
            return NotFoundError(f"Request for unknown model: '{name}' is not found")
        error = self._errors.get((name, version)) or self._others[name]
        if error is None:
            return NotFoundError(f"Request for unknown model: '{name}' version {version} is not found")
        return copy(error)  # what is raised comes to hold the frames that it passes

    def who_knows(self, name: str) -> list[str]:
        """The replicas that know this name."""
        return [replica for replica, models in self._replicas.items() if name in models]

    def ready(self, replica: str) -> Mapping[str, Mapping[int, bool]]:
        """By name, for each version that a replica knows, whether requests for it can go there. The same object as long
        as nothing of it has changed."""
        ready = self._ready.get(replica)
        if ready is None:
            known = self._replicas.get(replica, {})
            ready = self._ready[replica] = {name: self._ready_versions(replica, name, known[name]) for name in known}
        return ready

    def _ready_versions(self, replica: str, name: str, known: _Known) -> dict[int, bool]:
        if isinstance(known.latest, ModelDescription) and known.latest.version == LATEST:
            return {_OF_ROUTE: True}
        return {
            version: isinstance(result, ModelDescription) and (replica, name, version) not in self._disagree
            for version, result in known.versions.items()
        }

    def report(self, replica: str, document: Mapping[str, Any]) -> None:
        """Take in what a replica reports (`actors.fleet_report`).

        Raises:
            LookupError, TypeError, ValueError: it is no such report.
        """
        models = self._replicas.setdefault(replica, {})
        rows: list[dict[str, Any]] = document["models"]
        names = {row["name"]: None for row in rows}
        if document["all"]:
            names |= dict.fromkeys(models)
            models.clear()
        for row in rows:
            if row.get("gone"):
                models.pop(row["name"], None)
            else:
                models[row["name"]] = _read_row(row)
        if names:
            self._ready.pop(replica, None)
            for name in names:
                self._merge(name)

    def lost(self, replica: str, is_lost: bool = True) -> None:
        """A replica cannot be reached any more, or it can be again."""
        if is_lost is (replica in self._lost):
            return
        self._lost ^= {replica}
        for name in self._replicas.get(replica, {}):
            if any(each.is_cold for _, each in self._knowing(name)):
                self._merge(name)

    def forget(self, replica: str) -> None:
        """A replica has left the fleet."""
        self._lost.discard(replica)
        self._ready.pop(replica, None)
        for name in self._replicas.pop(replica, {}):
            self._merge(name)

    def _merge(self, name: str) -> None:
        """Look again at what the replicas say of a name."""
        before = {key: self.found.pop(key) for key in self._keys.get(name, ()) if key in self.found}
        for key in self._keys.pop(name, ()):
            self._errors.pop(key, None)
        known = self._knowing(name)
        present = [(replica, each) for replica, each in known if replica not in self._lost]
        if any(each.is_cold for _, each in present):
            known = present  # it is loaded there rather than waited for
        holders = self._holders(name, known, before)
        if not known:
            self._others.pop(name, None)
            return
        self._others[name] = next((each.others for _, each in known if each.others is not None), None)
        keys = self._keys[name] = [(name, version) for version in {v: None for _, each in known for v in each.versions}]
        versions = tuple(sorted(holders))
        for key in keys:
            held = holders.get(key[1])
            if held is not None:
                self.found[key] = _again(before.get(key), held, versions)
            else:
                results = [each.versions[key[1]] for _, each in known if key[1] in each.versions]
                self._errors[key] = next((each for each in results if isinstance(each, TriremeError)), _DISAGREES)
        latest = [each.latest for _, each in known]
        greatest = max((each.version for each in latest if isinstance(each, ModelDescription)), default=None)
        keys.append((name, LATEST))
        if greatest == LATEST:  # a route, which has no versions of its own
            route = next(each for each in latest if isinstance(each, ModelDescription))
            self.found[name, LATEST] = _again(before.get((name, LATEST)), route, route.versions)
        elif greatest is not None and (name, greatest) in self.found:
            self.found[name, LATEST] = self.found[name, greatest]
        elif versions:
            self.found[name, LATEST] = self.found[name, versions[-1]]
        else:
            self._errors[name, LATEST] = next(each for each in (*latest, _DISAGREES) if isinstance(each, TriremeError))

    def _knowing(self, name: str) -> list[tuple[str, _Known]]:
        return [(replica, models[name]) for replica, models in self._replicas.items() if name in models]

    def _holders(
        self, name: str, known: list[tuple[str, _Known]], before: Mapping[tuple[str, int], ModelDescription]
    ) -> dict[int, ModelDescription]:
        """Rules 2 and 4: how each version is described, of those that are ready somewhere."""
        disagree: set[tuple[str, str, int]] = set()
        holders: dict[int, ModelDescription] = {}
        described = [
            (replica, version, result)
            for replica, each in known
            for version, result in each.versions.items()
            if isinstance(result, ModelDescription)
        ]
        for held in before.values():  # who agrees with what was said until now goes first
            same = [each for _, version, each in described if version == held.version and _form(each) == _form(held)]
            if same:
                holders.setdefault(held.version, same[0])
        for replica, version, result in described:
            held = holders.setdefault(version, result)
            if held is not result and _form(held) != _form(result):
                disagree.add((replica, name, version))
                if (replica, name, version) not in self._disagree:
                    logger.warning(
                        "replica %s gets no requests for model '%s' version %d: its metadata of it are not those of "
                        "other replicas",
                        *(replica, name, version),
                    )
        was = {each for each in self._disagree if each[1] == name}
        for replica, _, _ in was ^ disagree:
            self._ready.pop(replica, None)
        self._disagree = (self._disagree - was) | disagree
        for replica, version, result in described:
            held = holders[version]
            if (replica, name, version) not in disagree and not set(held.adapters) <= set(result.adapters):
                common = tuple([each for each in held.adapters if each in result.adapters])
                holders[version] = replace(held, adapters=common)
        return holders


_DISAGREES = UnavailableError("its replicas do not agree about this model", refusal=RefusalReason.NOT_READY)


def _again(before: ModelDescription | None, now: ModelDescription, versions: tuple[int, ...]) -> ModelDescription:
    """Rule 5."""
    if before is not None and before.versions == versions and _same(before, now):
        return before
    return replace(now, versions=versions)


def _same(one: ModelDescription, other: ModelDescription) -> bool:
    same = one.config is other.config and one.labels == other.labels and one.version == other.version
    return same and (one.key_header, one.chat, one.adapters) == (other.key_header, other.chat, other.adapters)


def _form(description: ModelDescription) -> tuple[Any, ...]:
    """What clients must find the same at all replicas."""
    config = description.config
    tensors = [
        [(each.name, each.datatype, tuple(each.dims)) for each in tensors] for tensors in (config.input, config.output)
    ]
    batches = config.max_batch_size > 0
    return tensors, batches, config.decoupled, config.has_sequence_batching, description.key_header


def _read_row(row: Mapping[str, Any]) -> _Known:
    name = row["name"]
    others = row["others"]
    versions = {int(version): _read_result(name, result) for version, result in row["versions"]}
    refused = None
    if others is not None:
        result = _read_result(name, others)
        refused = result if isinstance(result, TriremeError) else None
    return _Known(_read_result(name, row["latest"]), refused, versions)


def _read_result(name: str, result: Any) -> _Result:
    if isinstance(result, list):
        kind, text, refusal = result
        return read_error([kind, "OTHER", text, refusal, False, 0, ""])
    labels = {output: tuple(texts) for output, texts in result["labels"].items()}
    chat = None if result["chat"] is None else ChatTemplate(*result["chat"])
    about = name, int(result["version"]), tuple(result["versions"]), _config(result["config"]), labels
    return ModelDescription(*about, result["header"], chat, tuple(result["adapters"]))


@lru_cache(maxsize=_CONFIGS)
def _config(text: str) -> ModelConfig:
    return model_config(ModelConfigMessage.FromString(base64.b64decode(text)))


def loads_by_name(loads: Mapping[str, list[int]]) -> Iterator[tuple[str, int, float]]:
    """Of each model that has something to do: its name, pending requests of all versions, and the longest mean time
    in their queues, seconds."""
    sums: dict[str, tuple[int, float]] = {}
    for key, (pending, queue_us) in loads.items():
        name = key.rpartition(":")[0]
        others, queue_s = sums.get(name, (0, 0.0))
        sums[name] = others + pending, max(queue_s, queue_us / 1e6)
    for name, (pending, queue_s) in sums.items():
        yield name, pending, queue_s
