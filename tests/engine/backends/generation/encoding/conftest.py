"""What tests of encoders share: one thread of torch, as such networks are computed faster so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from reference_networks import one_thread


@pytest.fixture(scope="module", autouse=True)
def on_one_thread() -> Iterator[None]:
    with one_thread():
        yield
