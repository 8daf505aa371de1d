"""The server does what its OpenAPI document says, whatever is drawn from it. `benchmarks/fuzz_http.py` draws more."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz_documented import FLAGS, fuzz_documented
from serve_process import serve_process


@pytest.mark.slow
def test_answers_are_those_that_are_documented(repository_root: Path) -> None:
    with serve_process(repository_root / "model_repository", *FLAGS) as server:
        statuses = fuzz_documented(server, ("simple", "simple_string", "digits_pipeline"), examples=5, seed=1)
    assert {200, 400, 404, 405, 500, 501, 503} & set(statuses) >= {200, 400, 404, 500}, "too few ways were tried"
