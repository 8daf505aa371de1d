"""What tests of processes have in common."""

from __future__ import annotations

import pytest
import python_models


@pytest.fixture(autouse=True)
def others_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that were there before the test do not count: a server may serve other tests of the same run."""
    monkeypatch.setattr(python_models, "STRANGERS", frozenset(python_models.child_processes()))
