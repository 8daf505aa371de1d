"""A host, and a context in which the utilities find it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from recording_host import RecordingHost

from trireme.python_backend.child.utils import context


@pytest.fixture
def host() -> RecordingHost:
    return RecordingHost()


@pytest.fixture
def model(host: RecordingHost) -> Iterator[context.ModelContext]:
    """The model whose code runs, while the test runs."""
    made = context.ModelContext(host, "models/m/1")
    made.connected = True
    context.install(made)
    yield made
    context.uninstall(made)
