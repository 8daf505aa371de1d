"""What a request that does not say it gets."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

from counting_network import asks

from trireme.engine.backends.generation.asked import asked
from trireme.engine.job import Job


def seed_of(received_ns: int, arrival: int, **sampling: Any) -> int:
    request = asks("a", **sampling)
    inputs = {tensor.name: tensor for tensor in request.inputs}
    job = Job(request, inputs, 1, "letters", 1, MagicMock(), received_ns=received_ns)
    job.arrival = arrival
    return asked(job).sampling.seed


def test_a_request_without_a_seed_has_one_of_its_own() -> None:
    """So has the first one after a start, which is as early in its scheduler's order as that of another server."""
    times, arrivals = (5_000_000_000, 5_000_000_001), (1, 2)
    assert len({seed_of(time, arrival) for time in times for arrival in arrivals}) == 4
    assert {seed_of(time, arrival, seed=7) for time in times for arrival in arrivals} == {7}
