"""The trace settings of a server and of its models, and how they are changed while it runs
(docs/reference/traces.md#settings).

Rules:
 1. A model's setting overrides the server's field by field. A field that was not set for it follows the server's, later
    changes included.
 2. Clearing a field of the server restores what it was at start; clearing a field of a model lets it follow again. A
    model of which no field is set has no setting of its own: its requests are counted with those of all models.
 3. Every change, whatever it changes, replaces the setting, and so begins to count anew. A count that was set goes on
    from what is left of it; one that was not set begins with what is left behind it.
 4. A change that would make a setting trace, though it cannot, is refused as a whole: without a file, without a rate,
    without a count. Rate 0 is right in the mode opentelemetry, where requests with a context are traced all the same.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from ..errors import InvalidArgumentError
from .config import TraceConfig, TraceLevel, TraceMode
from .setting import TraceSetting


class Clear(enum.Enum):
    """In place of a value: forget what was set."""

    CLEAR = "clear"


CLEAR = Clear.CLEAR


@dataclass(slots=True)
class SettingsChange:
    """What a client asks for; None leaves a field as it is."""

    level: TraceLevel | Clear | None = None
    rate: int | Clear | None = None
    count: int | Clear | None = None
    log_frequency: int | Clear | None = None


_FIELDS = tuple(field.name for field in fields(SettingsChange))


class TraceSettings:
    """All trace settings.

    Args:
        config: what the server starts with.
        on_retired: told of each setting that was replaced.
    """

    def __init__(self, config: TraceConfig, on_retired: Callable[[TraceSetting], None]) -> None:
        self._config = config
        self._on_retired = on_retired
        self._at_start = self._make(config, frozenset())
        self._server = self._make(config, frozenset())
        self._models: dict[str, TraceSetting] = {}

    def of(self, model_name: str) -> TraceSetting:
        """The setting that holds for a model; for no name, the server's."""
        return self._models.get(model_name, self._server)

    @property
    def any_on(self) -> bool:
        """Whether any request could be traced."""
        exporting = self._config.mode is TraceMode.OPENTELEMETRY
        settings = (self._server, *self._models.values())
        return any(setting.can_sample or (exporting and setting.notes) for setting in settings)

    def change(self, model_name: str, change: SettingsChange) -> None:
        """Change the setting of a model, or of the server if there is no name.

        Raises:
            InvalidArgumentError: rule 4; nothing is changed then.
        """
        if not model_name:
            replaced = self._replace(self._server, self._at_start, change)
            self._check(replaced)
            self._retire(self._server)
            self._server = replaced
            for name, setting in list(self._models.items()):
                if len(setting.own) < len(_FIELDS):
                    self._retire(setting)
                    self._models[name] = self._replace(setting, replaced, SettingsChange())
            return
        current = self._models.get(model_name)
        replaced = self._replace(current, self._server, change)
        self._check(replaced)
        if current is not None:
            self._retire(current)
            del self._models[model_name]
        if replaced.own:
            self._models[model_name] = replaced

    def retire_all(self) -> None:
        """The server ends."""
        for setting in (self._server, *self._models.values()):
            self._retire(setting)

    def _retire(self, setting: TraceSetting) -> None:
        setting.retire()
        self._on_retired(setting)

    def _replace(self, current: TraceSetting | None, behind: TraceSetting, change: SettingsChange) -> TraceSetting:
        """Rule 3."""
        own = set() if current is None else set(current.own)
        values: dict[str, Any] = {}
        for name in _FIELDS:
            wanted = getattr(change, name)
            if wanted is CLEAR:
                own.discard(name)
            elif wanted is not None:
                own.add(name)
                values[name] = wanted
            if name not in values:
                values[name] = getattr(current if name in own else behind, name)
        return TraceSetting(self._config, **values, own=frozenset(own))

    def _make(self, config: TraceConfig, own: frozenset[str]) -> TraceSetting:
        return TraceSetting(config, config.level, config.rate, config.count, config.log_frequency, own)

    def _check(self, setting: TraceSetting) -> None:
        """Rule 4."""
        if not setting.level:
            return
        exporting = self._config.mode is TraceMode.OPENTELEMETRY
        reason = None
        if not (exporting or self._config.file):
            reason = "trace file name is not given"
        elif not (exporting or setting.rate):
            reason = "sample rate must be non-zero"
        elif not setting.count:
            reason = "trace count must be non-zero"
        if reason is not None:
            raise InvalidArgumentError(f"Attempting to set invalid trace setting :{reason}")
