"""``python -m trireme.simulations``, as a function."""

from __future__ import annotations

from pathlib import Path

import pytest

from trireme.simulations.command import main, summary
from trireme.simulations.events import BatchSealed, RequestAbandoned, RequestAnswered, RequestSubmitted
from trireme.simulations.history import History
from trireme.simulations.scenarios import SCENARIOS
from trireme.simulations.svg import draw_svg
from trireme.simulations.timeline import draw_timeline
from trireme.simulations.world import run_world


def test_it_prints_hash_timeline_and_summary_and_writes_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ("--history", str(tmp_path / "h"), "--svg", str(tmp_path / "s"))
    assert main(["--scenario", "three-instances", "--seed", "3", "--columns", "40", *files]) == 0
    history = run_world(SCENARIOS["three-instances"], 3)
    printed = capsys.readouterr().out
    assert printed.startswith(f"scenario three-instances, seed 3, history {history.digest()}\n")
    assert draw_timeline(history, 40) in printed
    assert "4 requests: 4 answered, 0 refused or failed, 0 abandoned by their clients\n" in printed
    assert (tmp_path / "h").read_bytes() == history.to_bytes()
    assert (tmp_path / "s").read_text() == draw_svg(history)


def test_a_summary_counts_equal_errors_and_reasons_together() -> None:
    submitted = [RequestSubmitted(0, number, "m", 1, 0, 0) for number in range(1, 5)]
    refused = [RequestAnswered(1, number, f"[request id: {number}] Full") for number in (1, 2)]
    batch = BatchSealed(0, 1, "m", 1, "m_0", "full", (3,), 1)
    events = (*submitted, *refused, batch, RequestAnswered(1, 3, ""), RequestAbandoned(1, 4))
    assert summary(History(events)) == [
        "4 requests: 1 answered, 2 refused or failed, 1 abandoned by their clients",
        "    2 times: Full",
        "batches: 1",
        "    1 sealed: full",
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--scenario", "none"], "invalid choice: 'none'"),
        (["--columns", "0"], "at least 1 is needed, not 0"),
        (["--seed", "x"], "invalid int value: 'x'"),
    ],
)
def test_it_says_what_is_wrong_with_an_argument(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert text in capsys.readouterr().err
