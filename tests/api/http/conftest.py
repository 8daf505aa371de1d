from __future__ import annotations

import pytest
from http_fakes import FakeServer, HttpClient


@pytest.fixture
def client() -> HttpClient:
    """The HTTP application over a fake facade, with default options."""
    return HttpClient(FakeServer())
