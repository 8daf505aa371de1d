"""The access watch: changed files are read, faulty ones refused, keys fetched once however many ask."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from trireme.actors import access_watch
from trireme.actors.access_watch import AccessWatch, fetch_jwks, load_rules
from trireme.actors.watched_file import fingerprint
from trireme.engine.access.control import AccessControl
from trireme.engine.access.credentials import NO_CREDENTIAL
from trireme.engine.access.rules import read_rules
from trireme.engine.clock import SystemClock
from trireme.engine.errors import InvalidArgumentError

ONE = '[anonymous]\nread = ["a"]\n'
TWO = '[anonymous]\nread = ["a", "b"]\n'
ISSUER = '[[issuers]]\nname = "i"\nissuer = "x"\naudience = "y"\njwks = "{}"\n[anonymous]\n'


def watch(path: Path, poll_s: float = 0.001) -> tuple[AccessControl, AccessWatch]:
    control = AccessControl(read_rules(path.read_text(), str(path)), bytes(32), 0.0)
    return control, AccessWatch(control, path, SystemClock(trio.current_time), fingerprint(path), poll_s)


def rights(control: AccessControl) -> tuple[str, ...]:
    caller = control.recognise(NO_CREDENTIAL, 0.0)
    assert caller is not None
    return next(iter(caller.patterns.values()))


async def test_a_file_is_read_when_it_changes_and_a_faulty_one_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "access.toml"
    path.write_text(ONE)
    control, task = watch(path)
    await task.look()
    assert control.generation == 1
    path.write_text(TWO)
    await task.look()
    assert (control.generation, rights(control)) == (2, ("a", "b"))
    path.write_text("[anonymous]\nraed = []")
    with caplog.at_level(logging.ERROR):
        await task.look()
        await task.look()
    path.unlink()
    with caplog.at_level(logging.ERROR):
        await task.look()
        await task.look()
    refused = f"the access file is refused, the rules stay as they were: {path}"
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith(f"{refused}:2: anonymous.raed: found an unknown key, expected one of admin,")
    assert second == f"{refused}: No such file or directory"
    assert (control.generation, rights(control)) == (2, ("a", "b"))
    assert control.updates["rules_refused"] == 2
    other = tmp_path / "other"
    other.write_text(ONE)
    os.replace(other, path)
    await task.look()
    assert (control.generation, rights(control)) == (3, ("a",))


async def test_the_task_looks_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    path.write_text(ONE)
    control, task = watch(path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(task.run)
        path.write_text(TWO)
        with trio.fail_after(30):
            while control.generation == 1:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


async def test_keys_are_fetched_once_for_all_that_ask_and_failures_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "access.toml"
    path.write_text(ISSUER.format("none.json"))
    control, task = watch(path, 1000.0)
    fetched = []
    asked = threading.Event()

    def fetch(rule: Any, folder: Path) -> Any:
        fetched.append((rule.name, folder))
        assert asked.wait(30)
        return fetch_jwks(rule, folder)

    monkeypatch.setattr(access_watch, "fetch_jwks", fetch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(task.run)
        async with trio.open_nursery() as asking:
            for _ in range(5):
                asking.start_soon(task.fetch_keys, "i")
            await trio.testing.wait_all_tasks_blocked()
            asked.set()
        assert fetched == [("i", tmp_path)]
        await task.fetch_keys("i")
        await task.fetch_keys("unknown")
        nursery.cancel_scope.cancel()
    assert len(fetched) == 2
    assert control.updates["keys_failed"] == 2
    (record,) = caplog.records
    assert "the keys of issuer 'i' cannot be read from none.json: [Errno 2] No such file" in record.getMessage()


async def test_a_fetch_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "access.toml"
    path.write_text(ISSUER.format("keys.json"))
    control, task = watch(path, 1000.0)
    released = threading.Event()
    monkeypatch.setattr(access_watch, "fetch_jwks", lambda rule, folder: released.wait(30))
    monkeypatch.setattr(access_watch, "FETCH_LIMIT_S", 0.01)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(task.run)
        await task.fetch_keys("i")  # waits for the one fetch, which the task begins in its first step
        assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == 0  # though its thread hangs on
        nursery.cancel_scope.cancel()
    released.set()
    assert control.updates["keys_failed"] == 1


async def test_a_place_of_keys_that_cannot_be_is_a_failure_like_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "access.toml"
    path.write_text(ISSUER.format("keys\\u0000"))
    control, task = watch(path, 1000.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(task.run)
        await task.fetch_keys("i")
        nursery.cancel_scope.cancel()
    assert control.updates["keys_failed"] == 1
    assert "embedded null byte" in caplog.text


@contextmanager
def served(status: int, body: bytes, **headers: str) -> Iterator[str]:
    """An address where there is this answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/keys"
        finally:
            server.shutdown()
            thread.join()


def rule_for(jwks: str) -> Any:
    return read_rules(ISSUER.format(jwks), "f").issuers["i"]


def test_keys_come_from_an_address_or_a_file(tmp_path: Path) -> None:
    pytest.importorskip("joserfc")
    from joserfc.jwk import ECKey

    text = json.dumps({"keys": [ECKey.generate_key("P-256", {"kid": "k"}).as_dict(private=False)]})
    (tmp_path / "keys.json").write_text(text)
    assert [key.kid for key in fetch_jwks(rule_for("keys.json"), tmp_path)] == ["k"]
    with served(200, text.encode()) as address:
        assert [key.kid for key in fetch_jwks(rule_for(address), tmp_path)] == ["k"]


def test_what_a_fetch_does_not_take(tmp_path: Path) -> None:
    with served(404, b"") as address, pytest.raises(OSError, match="404"):
        fetch_jwks(rule_for(address), tmp_path)
    with served(302, b"", Location="https://elsewhere.example/") as address, pytest.raises(OSError, match="302"):
        fetch_jwks(rule_for(address), tmp_path)
    with served(200, bytes((1 << 20) + 1)) as address, pytest.raises(InvalidArgumentError, match="larger than"):
        fetch_jwks(rule_for(address), tmp_path)
    (tmp_path / "keys.json").write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(InvalidArgumentError, match="larger than"):
        fetch_jwks(rule_for("keys.json"), tmp_path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="No such file"):
        load_rules(tmp_path / "none")
    path = tmp_path / "access.toml"
    path.write_bytes(b"\xff")
    with pytest.raises(InvalidArgumentError, match="not UTF-8"):
        load_rules(path)
    path.write_text(ONE)
    assert load_rules(path).anonymous is not None
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert load_rules(path).anonymous is not None
