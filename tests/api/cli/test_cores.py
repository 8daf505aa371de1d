"""How many cores there are, and front ends."""

from __future__ import annotations

import pytest

from trireme.api.cli.command import build_command
from trireme.api.cli.cores import within_quota
from trireme.api.cli.flag_table import FLAGS
from trireme.api.cli.flags import UsageError, parse
from trireme.engine.front_end_count import front_end_count


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


def front_ends(*words: str) -> int:
    return build_command(parse(words, FLAGS), {}).front_ends


def test_the_flag_for_front_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, count in ((2, 0), (3, 0), (4, 2), (16, 4)):
        monkeypatch.setattr("trireme.api.cli.command.usable_cores", lambda cores=cores: cores)
        assert front_ends() == front_ends("--front-ends=auto") == count
        assert front_ends("--front-ends=0") == 0
        assert front_ends("--front-ends=3") == 3
        assert front_ends("--allow-http=0", "--allow-grpc=0") == 0
    for wrong in ("-1", "257", "many"):
        with pytest.raises(UsageError):
            front_ends(f"--front-ends={wrong}")
