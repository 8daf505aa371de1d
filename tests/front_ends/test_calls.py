"""Calls of the management, from a front end to the engine."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

import hypothesis.strategies as st
import pytest
from hypothesis import given
from wired import JSON, wired

from trireme.actors.facade import Management
from trireme.api.logging import LogSettings
from trireme.engine.errors import TriremeError, UnsupportedError
from trireme.engine.memory.regions import RegionKind
from trireme.front_ends.calls import CHANGING, EngineCalls, RemoteLog, RemoteManagement, read_result, write_result
from trireme.front_ends.kinds import CALL, RESULT
from trireme.front_ends.link import LinkError
from trireme.front_ends.values import read_error, write_error
from trireme.python_backend.child.codec import Payload

VALUES: dict[str, Any] = {
    "live": True,
    "ready": False,
    "model_ready": True,
    "server_metadata": {"name": "triton \udc80", "version": "1", "extensions": ["a"]},
    "model_statistics": {"model_stats": [{"name": "m", "inference_count": 2**63 - 1}]},
    "repository_index": [{"name": "m"}],
    "region_status": [{"name": "r", "byte_size": 2**64 - 1}],
    "trace_settings": [("trace_level", ["OFF"]), ("a", "1"), ("a", "2")],
    "custom_metric": [({"label": "value"}, 2.5)],
}


class Recorded:
    """A management that remembers calls, and gives `VALUES`."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.error: TriremeError | None = None

    def __getattr__(self, name: str) -> Any:
        assert name in Management.__abstractmethods__

        async def call(*values: Any) -> Any:
            self.calls.append((name, *values))
            if self.error is not None:
                raise self.error
            return VALUES.get(name)

        return call


class FakeLog:
    def __init__(self) -> None:
        self.settings = LogSettings()

    async def change_and_show(self, **changes: Any) -> LogSettings:
        self.settings = LogSettings(**changes)
        return self.settings


class Ends:
    """Both ends, without a link."""

    def __init__(self, log: FakeLog | None = None, refused: frozenset[str] = frozenset()) -> None:
        self.recorded = Recorded()
        self.calls = EngineCalls(cast(Any, self.recorded), log, refused)
        self.management = RemoteManagement(self.ask)
        self.log = RemoteLog(self.ask, LogSettings)

    async def ask(self, name: str, arguments: list[Any], payload: Payload) -> Any:
        head, view = wired((CALL, 1, name, arguments), payload)
        try:
            value = await self.calls.prepare(head[2], head[3], view)()
        except TriremeError as error:
            raise read_error(wired([write_error(error)])[0][0]) from None
        result, view = wired(*write_result(1, value))
        assert result[:2] == [RESULT, 1]
        return read_result(result[2], view)


async def test_every_call_arrives_with_its_arguments_and_gives_its_value() -> None:
    ends = Ends()
    calls: list[tuple[Any, ...]] = [
        ("live",),
        ("ready",),
        ("model_ready", "m \udc80", -1),
        ("server_metadata",),
        ("model_statistics", "m", 3),
        ("repository_index", True),
        ("load_model", "m", {"config": "{} \udc80", "file:1/model.onnx": b"\0\1" * 9, "file:empty": b""}),
        ("unload_model", "m", True),
        ("route_status", "r"),
        ("set_route", "r \udc80", {"targets": {"m:1": 100}, "sticky": "parameter:\udc80"}),
        ("remove_route", "r"),
        ("stop_rollout", "r"),
        ("region_status", RegionKind.CUDA, ""),
        ("register_system_region", "r", "/key", 2**64 - 1, 64),
        ("register_cuda_region", "r", bytes(range(64)), -3, 64),
        ("register_cuda_region", "r", bytes(1_000), 2**64 - 1, 2**64 - 1),  # the region refuses it
        ("unregister_region", RegionKind.SYSTEM, "r"),
        ("trace_settings", "m", {"level": 3, "rate": None, "count": -1}),
        ("want", "m \udc80", 1_000),
        ("custom_metric", "family"),
        ("fleet_report", 7),
    ]
    for name, *values in calls:
        assert await getattr(ends.management, name)(*values) == VALUES.get(name)
    assert ends.recorded.calls == calls
    assert {name for name, *_ in calls} == set(Management.__abstractmethods__)
    assert Management.__abstractmethods__ > CHANGING


async def test_errors_arrive_as_they_are() -> None:
    ends = Ends()
    ends.recorded.error = UnsupportedError("not here")
    with pytest.raises(UnsupportedError, match="not here"):
        await ends.management.live()


async def test_the_log_is_the_engines() -> None:
    ends = Ends(FakeLog())
    assert await ends.log.change_and_show() == LogSettings()
    assert await ends.log.change_and_show(verbose=3, format="json") == LogSettings(verbose=3, format="json")


async def test_what_no_client_may_do_is_refused_whatever_a_front_end_says() -> None:
    ends = Ends(refused=frozenset({"load_model"}))
    with pytest.raises(UnsupportedError):
        await ends.management.load_model("m", {})
    with pytest.raises(UnsupportedError):
        await ends.log.change_and_show()
    assert not ends.recorded.calls


NAMES = st.sampled_from((*sorted(Management.__abstractmethods__), "log_settings"))


@given(NAMES | JSON, JSON, st.binary(max_size=64))
async def test_any_other_call_is_an_error_of_the_link(name: Any, arguments: Any, payload: bytes) -> None:
    with suppress(LinkError):
        Ends().calls.prepare(name, arguments, memoryview(payload))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("__init__", []),
        ("_ask", []),
        ("live", [1]),
        ("model_ready", ["m", "1"]),
        ("load_model", ["m", [["config", True, 65]]]),
        ("load_model", ["m", [["config", True, -1]]]),
        ("region_status", ["gpu", ""]),
        ("register_cuda_region", ["r", "0", 0, 1]),
        ("trace_settings", ["m", [["open", 1]]]),
        ("trace_settings", ["m", [["level", 4]]]),
        ("log_settings", [[["file", "/etc/passwd"]]]),
        ("log_settings", [[["escape", False]]]),
        ("log_settings", [[["format", "other"]]]),
        ("log_settings", [[["verbose", True]]]),
    ],
)
def test_what_cannot_be_called_ends_the_link(name: str, arguments: list[Any]) -> None:
    with pytest.raises(LinkError):
        Ends(FakeLog()).calls.prepare(name, arguments, memoryview(bytes(64)))
