"""`Management` of a fleet: what clients ask is asked of its replicas, with the standard calls of gRPC, and merged.

Rules:
 1. What changes something is asked of every replica of the fleet. If some could not do it, the error says which, and
    what they said; if all say the same, that is the error.
 2. What reads something is asked of the replicas that are connected. A model that not all of them have is no error. If
    any other is met, the error says at which replica: no sum without a part of it.
 3. Who changed the models is answered when this gateway has heard of that from all that did it, or after
    `_HEAR_LIMIT_S`. Any report that comes after the answer of a replica will do: to load a model again that has not
    changed does nothing.
 4. Changes are made at replicas that come later, too (`late_replicas`).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import trio

from ..actors.facade import Management, TraceChanges
from ..engine.description import EXTENSIONS, ModelDescription
from ..engine.errors import ColdModelError, ErrorKind, NotFoundError, TriremeError, UnavailableError, UnsupportedError
from ..engine.fleet.types import ReplicaLostError
from ..engine.memory.regions import RegionKind, Regions
from ..engine.options import ServerOptions
from ..engine.request import LATEST
from ..engine.tensor import Buffer
from ..engine.tracing.settings import TraceLevel
from ..engine.version import VERSION
from ..proto.messages import inference as pb
from .late_replicas import LateReplicas, MadeChange
from .models import FleetModels
from .replicas import Replica
from .statistics import add_up

NO_REGIONS = "a gateway has no shared memory: its replicas are on other machines, so send tensors in the request"

_SERVICE = "inference.GRPCInferenceService"
_READ_LIMIT_S = 10.0
_CHANGE_LIMIT_S = 3600.0
"""Loads may take long; clients have limits of their own."""
_HEAR_LIMIT_S = 5.0
_LOAD, _UNLOAD = "RepositoryModelLoad", "RepositoryModelUnload"
_ROUTE = "route"

_Answers = dict[str, bytes | TriremeError]
_Shows = Callable[[Replica, bool], bool]
"""Of a replica, and whether it has told of its models anew since it was asked."""


class ManagedFleet(Protocol):
    """What of `FleetServer` it takes."""

    exiting: bool
    options: ServerOptions
    models: FleetModels
    shared_memory: Regions

    @property
    def members(self) -> Mapping[str, Replica]: ...
    def describe(self, name: str, version: int = LATEST) -> ModelDescription: ...
    def ready(self) -> bool: ...
    async def until(self, condition: Callable[[], bool]) -> None: ...


class _OwnLog(Protocol):
    """As `api.logging.LogFacade`."""

    async def change_and_show(self, **changes: Any) -> Any: ...


class FleetManagement(Management):
    """See `Management`."""

    def __init__(self, server: ManagedFleet) -> None:
        self._server = server
        self.late = LateReplicas(server)

    # ---- about the server and its models ----

    async def live(self) -> bool:
        return not self._server.exiting

    async def ready(self) -> bool:
        return self._server.ready()

    async def model_ready(self, name: str, version: int = LATEST) -> bool:
        """Whether a replica that serves has it."""
        try:
            self._server.describe(name, version)
        except TriremeError:
            return False
        return bool(self._holders(name, version))

    async def server_metadata(self) -> dict[str, Any]:
        extensions = [each for each in EXTENSIONS if "shared_memory" not in each]
        return {"name": self._server.options.server_id, "version": VERSION, "extensions": extensions}

    async def model_statistics(self, name: str = "", version: int = LATEST) -> dict[str, Any]:
        message = pb.ModelStatisticsRequest(name=name, version="" if version == LATEST else str(version))
        return add_up(await self._read("ModelStatistics", message))

    async def repository_index(self, ready_only: bool = False) -> list[dict[str, str]]:
        """A row for each version. It is ready if it is at any replica; the reason says where it is not, and why."""
        answers = await self._read("RepositoryIndex", pb.RepositoryIndexRequest(ready=ready_only))
        rows: dict[tuple[str, str], dict[str, pb.RepositoryIndexResponseModelIndex]] = {}
        for replica, answer in answers.items():
            for row in pb.RepositoryIndexResponse.parse(answer).models:
                rows.setdefault((row.name, row.version), {})[replica] = row
        merged = [_merged_row(*key, found) for key, found in sorted(rows.items())]
        return [{key: value for key, value in row.items() if value or key == "name"} for row in merged]

    # ---- model control ----

    async def load_model(self, name: str, parameters: Mapping[str, str | Buffer]) -> None:
        given = {
            key: pb.ModelRepositoryParameter(string_param=value)
            if isinstance(value, str)
            else pb.ModelRepositoryParameter(bytes_param=bytes(value))
            for key, value in parameters.items()
        }
        message = pb.RepositoryModelLoadRequest(model_name=name, parameters=given)
        change = _change(("model", name), f"load '{name}'", _LOAD, message, model=name, loads=True, plain=not given)
        await self.make((change,), shows=lambda replica, is_new: is_new and self._holds(replica, name))

    async def want(self, name: str, timeout_us: int = 0) -> None:
        """See `Management.want`: a replica that knows it is asked for its configuration, and so loads it."""
        known = {each.name: each for each in self._up() if each.name in self._server.models.who_knows(name)}
        if not known:
            self._server.describe(name)
            return
        first = min(known, key=lambda each: zlib.crc32(f"{name}@{each}".encode()))
        limit_s = timeout_us / 1e6 if timeout_us else _CHANGE_LIMIT_S
        await self._ask(known[first], "ModelConfig", bytes(pb.ModelConfigRequest(name=name)), limit_s)
        await self._until(lambda: not self._is_cold(name))

    def _is_cold(self, name: str) -> bool:
        try:
            self._server.describe(name)
        except ColdModelError:
            return True
        except TriremeError:
            pass
        return False

    async def unload_model(self, name: str, unload_dependents: bool = False) -> None:
        given = {"unload_dependents": pb.ModelRepositoryParameter(bool_param=True)} if unload_dependents else {}
        message = pb.RepositoryModelUnloadRequest(model_name=name, parameters=given)
        change = _change(("model", name), f"unload '{name}'", _UNLOAD, message, model=name, plain=not given)
        await self.make((change,), shows=lambda replica, _: not self._holds(replica, name))

    # ---- routes ----

    async def route_status(self, name: str = "") -> list[dict[str, Any]]:
        """As a replica has it that serves it: each counts its own requests."""
        models = self._server.models
        found: list[dict[str, Any]] = []
        for each in [name] if name else models.names:
            if name or _is_route(self._server, each):
                holders = self._holders(each, LATEST)
                if not _is_route(self._server, each) or not holders:
                    raise NotFoundError(f"route '{each}' is not found")
                message = bytes(pb.ModelConfigRequest(name=each))
                answer = pb.ModelConfigResponse.parse(await self._ask(holders[0], "ModelConfig", message))
                assert answer.config is not None, "a replica's answer has it"
                found.append(json.loads(answer.config.parameters[_ROUTE].string_value))
        return found

    async def set_route(self, name: str, document: Mapping[str, Any]) -> None:
        given = {_ROUTE: pb.ModelRepositoryParameter(string_param=json.dumps(document))}
        message = pb.RepositoryModelLoadRequest(model_name=name, parameters=given)
        change = _change((_ROUTE, name), f"set route '{name}'", _LOAD, message, model=name, loads=True)
        await self.make((change,), shows=lambda _, is_new: is_new)

    async def remove_route(self, name: str) -> None:
        await self.make((_change((_ROUTE, name), f"remove route '{name}'", _UNLOAD, _unload_of_route(name, _ROUTE)),))

    async def stop_rollout(self, name: str) -> None:
        message = _unload_of_route(name, "stop_rollout")
        change = _change(
            (_ROUTE, name), f"stop the rollout of route '{name}'", _UNLOAD, message, model=name, loads=True
        )
        await self.make((change,), goes_on=True)

    # ---- shared memory: there is none ----

    async def region_status(self, kind: RegionKind, name: str = "") -> list[dict[str, Any]]:
        return self._server.shared_memory.status(kind, name)

    async def register_system_region(self, name: str, key: str, offset: int, byte_size: int) -> None:
        raise UnsupportedError(NO_REGIONS)

    async def register_cuda_region(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        raise UnsupportedError(NO_REGIONS)

    async def unregister_region(self, kind: RegionKind, name: str = "") -> None:
        self._server.shared_memory.unregister(kind, name)

    # ---- settings ----

    async def trace_settings(
        self, model_name: str = "", changes: TraceChanges | None = None
    ) -> list[tuple[str, str | list[str]]]:
        """Those of the replicas. What is not the same everywhere is shown with the replicas' names."""
        settings = {f"trace_{key}" if key != "log_frequency" else key: value for key, value in (changes or {}).items()}
        given = {name: pb.TraceSettingRequestSettingValue(_trace_values(name, each)) for name, each in settings.items()}
        message = pb.TraceSettingRequest(settings=given, model_name=model_name)
        if given:
            answers = await self.make(
                [
                    _change(
                        *(("trace", model_name, name), f"change {name}", "TraceSetting"),
                        pb.TraceSettingRequest(settings={name: value}, model_name=model_name),
                    )
                    for name, value in given.items()
                ],
                ("change trace settings", "TraceSetting", message),
            )
        else:
            answers = await self._read("TraceSetting", message)
        shown: dict[str, dict[str, list[str]]] = {}
        for replica, answer in answers.items():
            for name, setting in pb.TraceSettingResponse.parse(answer).settings.items():
                shown.setdefault(name, {})[replica] = setting.value
        return [(name, _merged_setting(name, values)) for name, values in shown.items()]

    async def custom_metric(self, family: str) -> list[tuple[dict[str, str], float]]:
        return []

    async def fleet_report(self, since: int = 0) -> dict[str, Any]:
        raise UnsupportedError("a gateway does not report to gateways: their replicas are servers")

    # ---- how replicas are asked ----

    def _up(self) -> list[Replica]:
        return [each for each in self._server.members.values() if each.up]

    def _holders(self, name: str, version: int) -> list[Replica]:
        """Replicas that serve a model."""
        return [each for each in self._server.members.values() if self._holds(each, name, version)]

    def _holds(self, replica: Replica, name: str, version: int = LATEST) -> bool:
        ready = self._server.models.ready(replica.name).get(name, {})
        return replica.serves and (any(ready.values()) if version == LATEST else ready.get(version, False))

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for it, for `_HEAR_LIMIT_S` at most."""
        with trio.move_on_after(_HEAR_LIMIT_S):
            await self._server.until(condition)

    async def _ask(self, replica: Replica, method: str, message: bytes, limit_s: float = _READ_LIMIT_S) -> bytes:
        return await replica.link.ask(f"{_SERVICE}/{method}", message, limit_s)

    async def _ask_all(self, replicas: Sequence[Replica], method: str, message: Any, limit_s: float) -> _Answers:
        data = bytes(message)
        answers: _Answers = {}

        async def ask(replica: Replica) -> None:
            try:
                answers[replica.name] = await self._ask(replica, method, data, limit_s)
            except TriremeError as error:
                answers[replica.name] = error

        async with trio.open_nursery() as nursery:
            for replica in replicas:
                nursery.start_soon(ask, replica)
        return {replica.name: answers[replica.name] for replica in replicas}

    async def _read(self, method: str, message: Any) -> dict[str, bytes]:
        """Rule 2."""
        replicas = self._up()
        if not replicas:
            raise UnavailableError("no replica of the fleet is connected")
        answers = await self._ask_all(replicas, method, message, _READ_LIMIT_S)
        good = {name: answer for name, answer in answers.items() if isinstance(answer, bytes)}
        failed = {name: answer for name, answer in answers.items() if isinstance(answer, TriremeError)}
        serious = {name: error for name, error in failed.items() if not (good and _is_unknown(error))}
        if serious:
            raise _merged_error(f"ask for {method}", serious, len(answers))
        return good

    async def make(
        self,
        changes: Sequence[MadeChange],
        at_once: tuple[str, str, Any] | None = None,
        *,
        goes_on: bool = False,
        shows: _Shows | None = None,
    ) -> dict[str, bytes]:
        """Have every replica make changes (rules 1, 3 and 4); their answers.

        Args:
            at_once: what is done, the method and the message that make all of them; by default there is one, of one
                step.
            goes_on: who comes later has to make the change before of the same, too.
            shows: whether a replica's reports show the changes; None if they never do.

        Raises:
            TriremeError: some could not.
        """
        replicas = list(self._server.members.values())
        if not replicas:
            raise UnavailableError("the fleet has no replicas")
        what, method, message = at_once or (changes[0].what, *changes[0].steps[0])
        processes = {each.name: each.process for each in replicas}
        generations = {each.name: each.generation for each in replicas}
        answers = await self._ask_all(replicas, method.rpartition("/")[2], message, _CHANGE_LIMIT_S)
        failed = {name: answer for name, answer in answers.items() if isinstance(answer, TriremeError)}
        good = {name: answer for name, answer in answers.items() if isinstance(answer, bytes)}
        if good:
            if goes_on:
                for change in changes:
                    before = self.late.changes.find(*change.key)
                    if before is not None and before.loads:
                        change.steps = (before.steps[0], *change.steps)
            reached = {name for name, error in failed.items() if not isinstance(error, ReplicaLostError)}
            took = {processes[name] for name in good}
            self.late.note(changes, took, took | {processes[name] for name in reached})
            if shows is not None:
                await self._hear([each for each in replicas if each.name in good], generations, shows)
        if failed:
            raise _merged_error(what, failed, len(answers))
        return good

    async def _hear(self, replicas: Sequence[Replica], generations: Mapping[str, int], shows: _Shows) -> None:
        """Rule 3."""
        reports = {each.name: each.reports for each in replicas}

        def has_shown(replica: Replica) -> bool:
            is_new = replica.generation > generations[replica.name]
            return not replica.up or replica.reports > reports[replica.name] or shows(replica, is_new)

        await self._until(lambda: all(map(has_shown, replicas)))


class FleetLog:
    """The log of the gateway and of its replicas: changes are made at all of them, the gateway's settings are shown."""

    _PARAMETERS: Mapping[str, str] = {
        "info": "log_info",
        "warning": "log_warning",
        "error": "log_error",
        "verbose": "log_verbose_level",
        "format": "log_format",
    }

    def __init__(
        self, own: _OwnLog, make: Callable[[Sequence[MadeChange], tuple[str, str, Any]], Awaitable[object]]
    ) -> None:
        self._own = own
        self._make = make

    async def change_and_show(self, **changes: Any) -> Any:
        """See `LogFacade`."""
        if changes:
            given: dict[str, pb.LogSettingsRequestSettingValue] = {}
            for field, value in changes.items():
                kind = {bool: "bool_param", int: "uint32_param", str: "string_param"}[type(value)]
                given[self._PARAMETERS[field]] = pb.LogSettingsRequestSettingValue(**{kind: value})
            single = [
                _change(("log", name), f"change {name}", "LogSettings", pb.LogSettingsRequest(settings={name: value}))
                for name, value in given.items()
            ]
            await self._make(single, ("change log settings", "LogSettings", pb.LogSettingsRequest(settings=given)))
        return await self._own.change_and_show(**changes)


def _change(key: tuple[str, ...], what: str, method: str, message: Any, **more: Any) -> MadeChange:
    return MadeChange(key, what, ((f"{_SERVICE}/{method}", bytes(message)),), **more)


def _unload_of_route(name: str, flag: str) -> pb.RepositoryModelUnloadRequest:
    given = {flag: pb.ModelRepositoryParameter(bool_param=True)}
    return pb.RepositoryModelUnloadRequest(model_name=name, parameters=given)


def _is_route(server: ManagedFleet, name: str) -> bool:
    try:
        described: ModelDescription = server.describe(name)
    except TriremeError:
        return False
    return described.version == LATEST


def _is_unknown(error: TriremeError) -> bool:
    """Whether a replica just does not have a model that others have: they have taken the same question."""
    return error.kind in (ErrorKind.NOT_FOUND, ErrorKind.INVALID_ARGUMENT)


def _merged_error(what: str, failed: Mapping[str, TriremeError], asked: int) -> TriremeError:
    """Rule 1."""
    first = next(iter(failed.values()))
    if len(failed) == asked and len({error.message for error in failed.values()}) == 1:
        return first
    said = "; ".join(f"replica {name}: {error.message}" for name, error in failed.items())
    return type(first)(f"failed to {what} at {len(failed)} of {asked} replicas: {said}", refusal=first.refusal)


def _merged_row(name: str, version: str, found: Mapping[str, Any]) -> dict[str, str]:
    """The row of an index: of one version, at the replicas that list it."""
    states = {replica: row.state for replica, row in found.items()}
    ready = "READY" in states.values()
    state = "READY" if ready else next((each for each in states.values() if each), "")
    same = len(set(states.values())) == 1
    if same and len({row.reason for row in found.values()}) == 1:
        reason = next(iter(found.values())).reason
    else:
        others = {replica: row for replica, row in found.items() if not (ready and row.state == "READY")}
        reason = "; ".join(
            f"replica {replica}: {': '.join(filter(None, (row.state, row.reason)))}" for replica, row in others.items()
        )
    return {"name": name, "version": version, "state": state, "reason": reason}


def _trace_values(name: str, value: int | None) -> list[str]:
    if value is None:
        return []
    return TraceLevel(value).names() if name == "trace_level" else [str(value)]


def _merged_setting(name: str, values: Mapping[str, list[str]]) -> str | list[str]:
    first = next(iter(values.values()))
    if all(each == first for each in values.values()):
        return list(first) if name == "trace_level" else ", ".join(first)
    texts = [f"{'|'.join(each)} (replica {replica})" for replica, each in values.items()]
    return texts if name == "trace_level" else ", ".join(texts)
