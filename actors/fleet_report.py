"""What a server reports to gateways: its models, when something of them has changed, and how busy they are.

A report is a plain value that can be JSON::

    {"server": text, "generation": number, "state": "starting" | "ready" | "draining", "all": bool, "models": [row],
     "loads": {"name:version": [pending requests, microseconds in the queue]},
     "inflight": requests, "capacity": instances}

`server` is different after each start. `all` says that `models` is everything that there is; else it has the rows that
have changed since the generation that was asked about. A row is ``{"name", "gone": true}``, or says what requests for a
name meet::

    {"name": text, "latest": result, "others": error | null, "versions": [[version, result]]}

A result is an error, ``[kind, text, refusal]``, or a description: ``{"version", "versions", "config", "labels",
"header", "chat": [template, bos token, eos token] | null, "adapters"}``, where the configuration is its protobuf
message in base64. `others` is said of versions that there are not; null for the usual text.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..engine.clock import Clock
from ..engine.description import ModelActorStatistics, ModelDescription, ModelState
from ..engine.errors import TriremeError
from ..engine.request import LATEST

ReportRow = dict[str, Any]

_NO_VERSION = -(2**62)
"""What no model has: to learn what is said of versions that there are not."""

_MOST_GONE = 4_096
"""Names of models that are gone, which are remembered. Who has not heard of more is told everything."""

_LOADS_S = 0.05
"""Between two looks at how busy the models are, at least, however many gateways ask."""


class Reported(Protocol):
    """What of `InferenceServer` it takes."""

    draining: bool
    exiting: bool

    @property
    def started(self) -> bool: ...
    def describe(self, name: str, version: int = LATEST) -> ModelDescription: ...
    def model_names(self) -> list[str]: ...
    def model_versions(self, name: str) -> Sequence[int] | None: ...
    def model_statistics(self) -> list[ModelActorStatistics]: ...
    def follow_models(self, changed: Callable[[str], None]) -> None: ...


class FleetReports:
    """Makes the reports of a server, for any number of gateways.

    Attributes:
        generation: grows with each change of what `models` says.
    """

    def __init__(self, server: Reported, clock: Clock) -> None:
        self.generation = 1
        self._epoch = secrets.token_hex(8)
        self._server = server
        self._clock = clock
        self._started = server.started
        self._touched = dict.fromkeys(server.model_names())
        self._rows: dict[str, ReportRow] = {}
        self._changed: dict[str, int] = {}  # the generation of each row
        self._gone: dict[str, int] = {}
        self._complete_from = 0  # reports since that generation or a later one can be made
        self._loads_s = -1.0
        self._waited: dict[str, tuple[int, int, int]] = {}  # count and time in queues, and the late mean
        self._loads: dict[str, list[int]] = {}
        self._busy = 0, 0
        server.follow_models(self._touch)

    def _touch(self, name: str) -> None:
        self._touched[name] = None

    def report(self, since: int = 0) -> dict[str, Any]:
        """What there is to say now.

        Args:
            since: the generation that who asks knows; 0 for none.
        """
        self._refresh()
        self._look_at_loads()
        server = self._server
        everything = not self._complete_from <= since <= self.generation or since <= 0
        if everything:
            models: list[ReportRow] = list(self._rows.values())
        else:
            models = [self._rows[name] for name, changed in self._changed.items() if changed > since]
            models += [{"name": name, "gone": True} for name, changed in self._gone.items() if changed > since]
        stops = server.draining or server.exiting
        inflight, capacity = self._busy
        return {
            "server": self._epoch,
            "generation": self.generation,
            "state": "draining" if stops else "ready" if server.started else "starting",
            "all": everything,
            "models": models,
            "loads": self._loads,
            "inflight": inflight,
            "capacity": capacity,
        }

    def _refresh(self) -> None:
        touched, self._touched = self._touched, {}
        if self._server.started is not self._started:
            self._started = self._server.started
            touched |= dict.fromkeys(self._rows)
        changed = self.generation + 1
        for name in touched:
            row = self._look(name)
            if row == self._rows.get(name):
                continue
            self.generation = changed
            self._rows.pop(name, None)
            self._changed.pop(name, None)
            self._gone.pop(name, None)
            if row is None:
                self._gone[name] = changed
            else:
                self._rows[name] = row
                self._changed[name] = changed
        while len(self._gone) > _MOST_GONE:
            self._complete_from = self._gone.pop(next(iter(self._gone)))

    def _look(self, name: str) -> ReportRow | None:
        versions = self._server.model_versions(name)
        if versions is None:
            return None
        others = self._result(name, _NO_VERSION)
        usual = f"Request for unknown model: '{name}' version {_NO_VERSION} is not found"
        return {
            "name": name,
            "latest": self._result(name, LATEST),
            "others": None if isinstance(others, list) and others[1] == usual else others,
            "versions": [[version, self._result(name, version)] for version in versions],
        }

    def _result(self, name: str, version: int) -> Any:
        try:
            return write_description(self._server.describe(name, version))
        except TriremeError as error:
            return [error.kind.value, error.message, None if error.refusal is None else error.refusal.value]

    def _look_at_loads(self) -> None:
        now_s = self._clock.now_s()
        if 0 <= now_s - self._loads_s < _LOADS_S:
            return
        self._loads_s = now_s
        before, self._waited, self._loads = self._waited, {}, {}
        inflight = capacity = 0
        for model in self._server.model_statistics():
            if model.state is not ModelState.READY and not model.inflight:
                continue
            key = f"{model.name}:{model.version}"
            count, ns, mean_us = before.get(key, (0, 0, 0))
            if model.queue_count > count:
                mean_us = (model.queue_ns - ns) // (model.queue_count - count) // 1000
            elif not model.inflight:
                mean_us = 0
            self._waited[key] = model.queue_count, model.queue_ns, mean_us
            inflight += model.inflight
            capacity += model.instances_alive
            if model.inflight or mean_us:
                self._loads[key] = [model.inflight, mean_us]
        self._busy = inflight, capacity


def write_description(described: ModelDescription) -> ReportRow:
    """A description, as a report has it."""
    chat = described.chat
    return {
        "version": described.version,
        "versions": list(described.versions),
        "config": base64.b64encode(described.config.message.SerializeToString(deterministic=True)).decode(),
        "labels": {name: list(texts) for name, texts in described.labels.items()},
        "header": described.key_header,
        "chat": None if chat is None else [chat.text, chat.bos_token, chat.eos_token],
        "adapters": [name for name in described.adapters if name.isprintable()],  # a file's name may be no UTF-8
    }


def sign_of_life(report: dict[str, Any]) -> dict[str, Any]:
    """A report without its changes, which stay the same as long as nothing happens."""
    return {key: value for key, value in report.items() if key not in ("models", "all")}
