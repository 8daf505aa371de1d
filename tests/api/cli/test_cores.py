"""How many cores there are, and front ends."""

from __future__ import annotations

import pytest

from trireme.api.cli.cores import front_end_count, within_quota


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", 8),
        ("400000 100000", 4),
        ("350000 100000", 3),
        ("50000 100000", 1),
        ("1600000 100000", 8),
        ("", 8),
        ("0 0", 8),
        ("some words", 8),
    ],
)
def test_no_more_cores_are_counted_than_there_is_time_for(quota: str, cores: int) -> None:
    assert within_quota(8, quota) == cores


def test_front_ends_by_cores() -> None:
    assert [front_end_count(None, cores) for cores in (1, 2, 3, 4, 8, 12, 64)] == [0, 0, 0, 2, 2, 3, 8]
    assert [front_end_count(wanted, 64) for wanted in (0, 1, 200)] == [0, 1, 200]
