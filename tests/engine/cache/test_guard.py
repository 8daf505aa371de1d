"""When a cache that has failed is asked again."""

from __future__ import annotations

import logging

import pytest

from trireme.engine.cache.interface import RETRY_S, CacheGuard


def test_one_request_tries_after_a_rest(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    guard = CacheGuard("c")
    assert guard.admits(0.0)
    guard.failed("lost", 0.0)
    assert not guard.admits(RETRY_S / 2)
    assert guard.admits(RETRY_S)
    assert not guard.admits(RETRY_S), "the one that tries has not come back yet"
    guard.failed("still lost", 1.5 * RETRY_S)
    assert not guard.admits(2 * RETRY_S)
    assert guard.admits(2.5 * RETRY_S)
    guard.worked()
    assert guard.admits(2.5 * RETRY_S)
    assert caplog.messages == [
        "response cache 'c' fails, requests go on without it: lost",
        "response cache 'c' answers again",
    ]


def test_a_try_without_a_result_is_followed_by_another() -> None:
    guard = CacheGuard("c")
    guard.failed("lost", 0.0)
    assert guard.admits(RETRY_S)
    assert guard.admits(2 * RETRY_S)
