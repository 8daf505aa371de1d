"""Changes of routes that clients ask for, in any protocol (`api.model_routes`); what becomes of them: tests/wire."""

from __future__ import annotations

import pytest

from trireme.api.model_routes import RouteAction, RouteChange
from trireme.engine.errors import InvalidArgumentError

MOST_BYTES = 1 << 20


def test_documents_are_bounded() -> None:
    text = b'{"targets": {"a": 100}}'.rjust(MOST_BYTES)
    assert RouteChange.setting("r", text).action is RouteAction.SET
    with pytest.raises(InvalidArgumentError, match=r"^route 'r': 1048577 bytes of JSON, expected 1048576 at most$"):
        RouteChange.setting("r", text + b" ")
