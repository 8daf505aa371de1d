"""Whatever is said to the server, it stays: it answers what it may answer, keeps nothing, and has nothing to regret in
its log. `benchmarks/fuzz.py` does the same for as long as one likes."""

from __future__ import annotations

import random
from collections.abc import Iterator

import fuzz_grpc
import fuzz_http
import fuzz_http1
import fuzz_http2
import pytest
from fuzz_run import fuzz
from fuzz_target import Target, fuzz_target


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with fuzz_target(tmp_path_factory.mktemp("models")) as running:
        yield running


@pytest.mark.parametrize(("name", "count"), [("requests", 1500), ("http1", 1500), ("http2", 600), ("grpc", 800)])
def test_bounded_run(target: Target, name: str, count: int) -> None:
    fuzz(target, name, range(1_000, 1_000 + count))


def test_it_can_be_replayed() -> None:
    """The same seed says the same."""
    for seed in range(50):
        assert fuzz_http.any_request(random.Random(seed)) == fuzz_http.any_request(random.Random(seed))
        assert fuzz_http1.conversation(random.Random(seed)) == fuzz_http1.conversation(random.Random(seed))
        for request in (fuzz_http2.http_request, fuzz_grpc.request):
            once, again = (fuzz_http2.conversation(random.Random(seed), request) for _ in range(2))
            assert once == again
