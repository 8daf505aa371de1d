"""What the flags about traces come to (docs/reference/command-line.md#flags, docs/reference/traces.md)."""

from __future__ import annotations

import pytest

from trireme.api.cli.command import build_command
from trireme.api.cli.flag_table import FLAGS
from trireme.api.cli.flags import UsageError, parse
from trireme.engine.tracing import TraceConfig, TraceLevel, TraceMode


def config(*settings: str, **environment: str) -> TraceConfig:
    words = [setting if setting.startswith("--") else f"--trace-config={setting}" for setting in settings]
    return build_command(parse(words, FLAGS), environment).server.tracing


def test_nothing_is_traced_unless_asked_for() -> None:
    assert config().level is TraceLevel.OFF
    assert (config().rate, config().count, config().log_frequency, config().file) == (1000, -1, 0, "")


def test_settings_of_the_mode_triton() -> None:
    given = config("level=TIMESTAMPS", "rate=3", "count=7", "triton,file=a,b=c", "triton,log-frequency=9")
    assert given.mode is TraceMode.TRITON
    assert (given.level, given.rate, given.count) == (TraceLevel.TIMESTAMPS, 3, 7)
    assert (given.file, given.log_frequency) == ("a,b=c", 9)


@pytest.mark.parametrize(
    ("levels", "level"),
    [
        (("TENSORS", "TIMESTAMPS"), TraceLevel.TENSORS | TraceLevel.TIMESTAMPS),
        (("max",), TraceLevel.TIMESTAMPS),
        (("TENSORS", "false", "true"), TraceLevel.OFF),
    ],
)
def test_levels_add_up_unless_one_is_off(levels: tuple[str, ...], level: TraceLevel) -> None:
    assert config(*(f"level={each}" for each in levels)).level == level


def test_numbers_are_what_a_text_begins_with_and_a_rate_has_no_sign() -> None:
    given = config("rate=-5", "count=-9", "triton,log-frequency=3x")
    assert (given.rate, given.count, given.log_frequency) == (4294967291, -1, 3)


def test_the_flags_of_old_hold_where_the_new_one_says_nothing() -> None:
    old = ("--trace-file=old", "--trace-level=TENSORS", "--trace-rate=2", "--trace-count=3", "--trace-log-frequency=4")
    given = config(*old)
    assert given == TraceConfig(TraceMode.TRITON, TraceLevel.TENSORS, 2, 3, 4, "old", export=given.export)
    newer = config(*old, "rate=20", "triton,file=new", "level=OFF")
    assert (newer.level, newer.rate, newer.count, newer.file) == (TraceLevel.OFF, 20, 3, "new")


def test_settings_of_the_mode_opentelemetry() -> None:
    given = config(
        "mode=opentelemetry",
        "opentelemetry,bsp_max_queue_size=30",
        "opentelemetry,url=http://collector/v1/traces",
        "opentelemetry,resource=a=b=c",
        "opentelemetry,resource=service.name=mine",
    )
    export = given.export
    assert given.mode is TraceMode.OPENTELEMETRY
    assert export.url == "http://collector/v1/traces"
    assert dict(export.resource) == {"service.name": "mine", "a": "b=c"}
    assert (export.max_queue_size, export.schedule_delay_ms, export.max_export_batch_size) == (30, 5000, 30)
    assert export.given == (
        ("bsp_max_queue_size", "30"),
        ("url", "http://collector/v1/traces"),
        ("resource", "a=b=c"),
        ("resource", "service.name=mine"),
        ("bsp_max_export_batch_size", "512"),
        ("bsp_schedule_delay", "5000"),
    )


def test_the_environment_speaks_where_flags_are_silent() -> None:
    environment = {
        "OTEL_BSP_SCHEDULE_DELAY": "7",
        "OTEL_BSP_MAX_QUEUE_SIZE": "x",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "5",
        "OTEL_RESOURCE_ATTRIBUTES": "service.name=env, x=a%20b,broken",
    }
    export = config("mode=opentelemetry", "opentelemetry,bsp_max_export_batch_size=6", **environment).export
    assert (export.max_queue_size, export.schedule_delay_ms, export.max_export_batch_size) == (2048, 7, 6)
    assert dict(export.resource) == {"service.name": "env", "x": "a b"}


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("opentelemetry,bsp_max_queue_size=0", "out of bound. Got 0; expected an integer: at least 1"),
        ("opentelemetry,bsp_schedule_delay=-4", "out of bound. Got -4; expected an integer: at least 1"),
    ],
)
def test_a_queue_has_room_and_an_export_its_time(setting: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        config(setting)
