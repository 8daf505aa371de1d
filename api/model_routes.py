"""Routes, names for which models answer, as every protocol shows and changes them (docs/routes.md).

Who changes a route needs `Right.MANAGE` on its name, and on the model of each of its targets and of its shadow, of what
it was as of what it becomes: by a route, callers get to models that they may not name themselves.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from ..engine.config.model import ModelConfig, copy_message
from ..engine.errors import InvalidArgumentError, NotFoundError
from ..engine.request import LATEST
from ..engine.routing.documents import read_route, read_target
from ..engine.tensor import Buffer
from .pipeline import find_model

if TYPE_CHECKING:
    from ..actors.facade import Facade, Management

ROUTE_PARAMETER: Final = "route"
"""Of a load: the route's document as JSON. Of an unload, true: the route is removed. In a configuration: its status."""

_STOP_PARAMETER: Final = "stop_rollout"
_MOST_BYTES = 1 << 20


class RouteAction(enum.Enum):
    """What is to become of a route."""

    SET = "set"
    REMOVE = "remove"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class RouteChange:
    """A change that a client asks for.

    Attributes:
        document: of the route, if it is to be set.
    """

    name: str
    action: RouteAction
    document: Mapping[str, Any] | None = None

    @classmethod
    def setting(cls, name: str, text: Buffer | str) -> RouteChange:
        """Raises InvalidArgumentError: the text is no JSON of a route."""
        document = _read_json(name, text)
        read_route(name, document)
        return cls(name, RouteAction.SET, document)

    @classmethod
    def of_load(cls, name: str, given: Mapping[str, object], text: object) -> RouteChange:
        """What a load asks for that brings a document.

        Args:
            given: its parameters.

        Raises:
            InvalidArgumentError: it brings more, or the text is none of a route.
        """
        if len(given) > 1:
            raise InvalidArgumentError(f"load parameter '{ROUTE_PARAMETER}' cannot be given with others")
        if not isinstance(text, str):
            raise InvalidArgumentError(f"load parameter '{ROUTE_PARAMETER}' is of another type, expected a string")
        return cls.setting(name, text)

    @classmethod
    def of_unload(cls, name: str, given: Mapping[str, object]) -> RouteChange | None:
        """What an unload asks for, if that is about a route.

        Args:
            given: its parameters; None for values that are no flags.

        Raises:
            InvalidArgumentError: a parameter is no flag.
        """
        for parameter, action in ((ROUTE_PARAMETER, RouteAction.REMOVE), (_STOP_PARAMETER, RouteAction.STOP)):
            flag = given.get(parameter, False)
            if not isinstance(flag, bool):
                raise InvalidArgumentError(f"unload parameter '{parameter}' is of another type, expected a boolean")
            if flag:
                return cls(name, action)
        return None

    async def models(self, management: Management) -> list[str]:
        """Whom the caller has to have the right to manage, besides the route itself."""
        documents: list[Mapping[str, Any]] = [] if self.document is None else [self.document]
        with suppress(NotFoundError):  # `make` says so, if it matters
            documents += await management.route_status(self.name)
        targets = [target for each in documents for target in each["targets"]]
        targets += [each["shadow"]["target"] for each in documents if each.get("shadow")]
        return sorted({read_target(target).model for target in targets})

    async def make(self, management: Management) -> None:
        """Raises TriremeError: it cannot be."""
        if self.action is RouteAction.REMOVE:
            await management.remove_route(self.name)
        elif self.action is RouteAction.STOP:
            await management.stop_rollout(self.name)
        else:
            assert self.document is not None, "it is to be set"
            await management.set_route(self.name, self.document)


async def shown_config(server: Facade, name: str, version: int) -> ModelConfig:
    """The configuration of a model; of a route that on which its targets agree, with the status among its parameters.

    Raises:
        TriremeError: there is no such model, or it is not ready.
    """
    model = await find_model(server, name, version)
    if model.version != LATEST:
        return model.config
    (status,) = await server.management.route_status(name)
    message = copy_message(model.config.message)
    message.parameters[ROUTE_PARAMETER].string_value = json.dumps(status)
    return replace(model.config, message=message)


def _read_json(name: str, text: Buffer | str) -> Any:
    if len(text) > _MOST_BYTES:
        raise InvalidArgumentError(f"route '{name}': {len(text)} bytes of JSON, expected {_MOST_BYTES} at most")
    try:
        return json.loads(text if isinstance(text, str) else bytes(text), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"route '{name}': not valid JSON: {error}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found
