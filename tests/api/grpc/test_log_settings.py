"""LogSettings (docs/reference/grpc.md#settings)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from grpc_fakes import GrpcClient
from http_fakes import FakeServer
from logs import unheard_log

from trireme.api.logging import Log, LogSettings
from trireme.engine.errors import InvalidArgumentError, TriremeError, UnsupportedError
from trireme.proto.messages import inference as pb

NO_FILE = "log file location can not be updated through network protocol"


@pytest.fixture
def log() -> Iterator[Log]:
    with unheard_log(verbose=1) as log:
        yield log


@pytest.fixture
def client(log: Log) -> GrpcClient:
    return GrpcClient(FakeServer(), log)


def value(setting: Any = None) -> pb.LogSettingsRequestSettingValue:
    """A setting of the kind that `setting` has; None for a value of no kind."""
    kind = {bool: "bool_param", int: "uint32_param", str: "string_param"}.get(type(setting))
    return pb.LogSettingsRequestSettingValue(**({kind: setting} if kind else {}))


async def ask(client: GrpcClient, **settings: Any) -> dict[str, Any]:
    message = pb.LogSettingsRequest(settings={name: value(setting) for name, setting in settings.items()})
    answer = await client.inference("LogSettings", message)
    read = pb.LogSettingsResponse.parse(bytes(answer)).settings
    return {
        name: next(x for x in (one.bool_param, one.uint32_param, one.string_param) if x is not None)
        for name, one in read.items()
    }


NOW = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 1,
    "log_format": "default",
}


async def test_what_is_set(client: GrpcClient) -> None:
    assert await ask(client) == NOW
    with unheard_log(file="/x", verbose=-1) as log:
        shown = await ask(GrpcClient(FakeServer(), log))
    assert (shown["log_file"], shown["log_verbose_level"]) == ("/x", 0)


async def test_everything_but_the_file_can_be_changed(client: GrpcClient, log: Log) -> None:
    changes = {
        "log_info": False,
        "log_warning": False,
        "log_error": False,
        "log_verbose_level": 3,
        "log_format": "ISO8601",
    }
    assert await ask(client, **changes) == {"log_file": "", **changes}
    assert log.settings == LogSettings(False, False, False, 3, "ISO8601")
    assert await ask(client, unknown=True) == {"log_file": "", **changes}


@pytest.mark.parametrize(
    ("settings", "kind", "text"),
    [
        *[
            ({name: wrong}, InvalidArgumentError, f"expect boolean for '{name}'")
            for name in ("log_info", "log_warning", "log_error")
            for wrong in ("x", 1, None)
        ],
        ({"log_verbose_level": True}, InvalidArgumentError, "expect int32 for 'log_verbose_level'"),
        ({"log_verbose_level": "1"}, InvalidArgumentError, "expect int32 for 'log_verbose_level'"),
        ({"log_format": 1}, InvalidArgumentError, "expect string for 'log_format'"),
        ({"log_format": "foo"}, InvalidArgumentError, "invalid argument for log_format, got: foo"),
        ({"log_format": ""}, InvalidArgumentError, "invalid argument for log_format, got: "),
        ({"log_file": "x"}, UnsupportedError, NO_FILE),
        ({"log_file": None, "log_info": "x"}, UnsupportedError, NO_FILE),
    ],
)
async def test_what_is_wrong_is_refused_and_changes_nothing(
    client: GrpcClient, log: Log, settings: dict[str, Any], kind: type[TriremeError], text: str
) -> None:
    before = log.settings
    with pytest.raises(kind) as refused:
        await ask(client, **{"log_info": False, "log_verbose_level": 5, **settings})
    assert refused.value.message == text
    assert log.settings == before


async def test_a_level_with_the_highest_bit_stands_for_none(client: GrpcClient) -> None:
    assert (await ask(client, log_verbose_level=2**32 - 1))["log_verbose_level"] == 0


async def test_a_server_inside_another_program_leaves_its_log_alone() -> None:
    with pytest.raises(UnsupportedError, match=r"^the log belongs to the program that this server runs in"):
        await ask(GrpcClient(FakeServer()))
