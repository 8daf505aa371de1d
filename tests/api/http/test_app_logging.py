"""Log settings over HTTP (docs/reference/logs.md#settings)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from http_fakes import FakeServer, HttpClient
from logs import unheard_log

from trireme.api.logging import Log, LogSettings

PATH = "/v2/logging"


@pytest.fixture
def log() -> Iterator[Log]:
    with unheard_log(verbose=1) as log:
        yield log


@pytest.fixture
def client(log: Log) -> HttpClient:
    return HttpClient(FakeServer(), log)


async def test_what_is_set(client: HttpClient) -> None:
    """The members in Triton's order."""
    reply = await client.get(PATH)
    assert (reply.status, reply.media) == (200, "application/json")
    assert reply.body == (
        b'{"log_file":"","log_info":true,"log_warning":true,"log_error":true,"log_verbose_level":1,'
        b'"log_format":"default"}'
    )


async def test_the_file_is_shown() -> None:
    with unheard_log(file="/var/log/x", verbose=-1, format="ISO8601") as log:
        shown = (await HttpClient(FakeServer(), log).get(PATH)).json
    assert (shown["log_file"], shown["log_verbose_level"], shown["log_format"]) == ("/var/log/x", 0, "ISO8601")


async def test_everything_but_the_file_can_be_changed(client: HttpClient, log: Log) -> None:
    body = b'{"log_info":false,"log_warning":false,"log_error":false,"log_verbose_level":3,"log_format":"ISO8601"}'
    reply = await client.post(PATH, body)
    assert (reply.status, reply.media) == (200, "application/json")
    assert reply.body == b'{"log_file":"",' + body[1:]
    assert log.settings == LogSettings(False, False, False, 3, "ISO8601")
    assert (await client.get(PATH)).body == reply.body


@pytest.mark.parametrize(
    "body",
    [
        "{}",
        "[]",
        '"a"',
        "null",
        '{"unknown":1}',
        (
            '{"log_file":null,"log_info":null,"log_warning":null,"log_error":null,"log_verbose_level":null,'
            '"log_format":null}'
        ),
    ],
)
async def test_what_asks_for_nothing_changes_nothing(client: HttpClient, log: Log, body: str) -> None:
    before = log.settings
    reply = await client.post(PATH, body)
    assert (reply.status, log.settings) == (200, before)
    assert reply.body == (await client.get(PATH)).body


NO_BOOL = "attempt to access JSON non-boolean as boolean"
NO_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
NO_FILE = "log file location can not be updated through network protocol"


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ("", 500, "failed to parse the request JSON buffer: The document is empty. at 0"),
        ("{", 500, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
        ('{"log_info":1}', 500, NO_BOOL),
        ('{"log_warning":{}}', 500, NO_BOOL),
        ('{"log_error":"yes"}', 500, NO_BOOL),
        ('{"log_verbose_level":-1}', 500, NO_UNSIGNED),
        ('{"log_verbose_level":1.0}', 500, NO_UNSIGNED),
        ('{"log_verbose_level":"1"}', 500, NO_UNSIGNED),
        ('{"log_verbose_level":true}', 500, NO_UNSIGNED),
        ('{"log_verbose_level":18446744073709551616}', 500, NO_UNSIGNED),
        ('{"log_format":1}', 500, "attempt to access JSON non-string as string"),
        ('{"log_format":"foo"}', 503, "invalid argument for --log_format, got: foo"),
        ('{"log_format":"iso8601"}', 503, "invalid argument for --log_format, got: iso8601"),
        ('{"log_format":"x","log_verbose_level":"x"}', 500, NO_UNSIGNED),
        ('{"log_file":"x"}', 501, NO_FILE),
        ('{"log_file":""}', 501, NO_FILE),
        ('{"log_file":3,"log_info":3}', 501, NO_FILE),
    ],
)
async def test_what_is_wrong_is_refused(client: HttpClient, body: str, status: int, text: str) -> None:
    reply = await client.post(PATH, body)
    assert (reply.status, reply.media, reply.error) == (status, "application/json", text)


@pytest.mark.parametrize("wrong", ['"log_error":1', '"log_format":"foo"', '"log_file":"x"'])
async def test_a_request_that_is_refused_changes_nothing(client: HttpClient, log: Log, wrong: str) -> None:
    before = log.settings
    assert (await client.post(PATH, f'{{"log_info":false,"log_verbose_level":5,{wrong}}}')).status != 200
    assert log.settings == before


async def test_a_level_of_more_than_32_bits_is_cut(client: HttpClient) -> None:
    reply = await client.post(PATH, '{"log_verbose_level":4294967298}')
    assert reply.json["log_verbose_level"] == 2


async def test_the_body_is_limited(log: Log) -> None:
    reply = await HttpClient(FakeServer(), log, max_management_bytes=5).post(PATH, '{"a":1}')
    assert (reply.status, reply.error[:24]) == (413, "request size of 7 bytes ")


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_server_inside_another_program_leaves_its_log_alone(method: str) -> None:
    reply: Any = await HttpClient(FakeServer()).ask(method, PATH, "{}")
    assert (reply.status, reply.media) == (501, "application/json")
    assert reply.error == "the log belongs to the program that this server runs in, which settles what is logged"
