"""``python -m trireme.simulations``, as a function."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from trireme.simulations.command import main, summary
from trireme.simulations.compared import told_differences
from trireme.simulations.events import BatchSealed, RequestAbandoned, RequestAnswered, RequestSubmitted
from trireme.simulations.history import History, read_history
from trireme.simulations.hunt import hunt
from trireme.simulations.reach import reach
from trireme.simulations.scenarios import SCENARIOS
from trireme.simulations.svg import draw_svg
from trireme.simulations.timeline import draw_timeline
from trireme.simulations.timeline_page import draw_page
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


def test_it_plays_other_swarms_and_says_what_was_wrong_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--swarm", "fleet", "--seeds", "3", "--first-seed", "5"]) == 0
    assert capsys.readouterr().out.endswith("fleet: seeds 5 to 7, no promise was broken\n")
    assert main(["--swarm", "fleet", "--seeds", "30", "--plant", "overtaken"]) == 1
    printed = capsys.readouterr().out
    found = re.search(r"seed (\d+) breaks a promise: at .* goes on with another request than its next one", printed)
    assert found is not None, printed
    again = ["--swarm", "fleet", "--seed", found[1], "--plant", "overtaken"]
    assert " ".join(again) in printed
    assert main(again) == 1


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


def test_two_runs_are_compared_and_drawn_on_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    scenario = ("--scenario", "three-instances", "--seed", "3")
    assert main([*scenario, "--compare", "4", "--html", str(page)]) == 0
    runs = [
        (f"scenario three-instances, seed {seed}", run_world(SCENARIOS["three-instances"], seed)) for seed in (3, 4)
    ]
    assert page.read_text() == draw_page(runs)
    assert "\n".join(told_differences(*runs)) in capsys.readouterr().out


def test_a_run_is_compared_with_a_history_that_was_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "history.jsonl"
    scenario = ("--scenario", "three-instances")
    assert main([*scenario, "--seed", "3", "--history", str(file)]) == 0
    with file.open() as lines:
        assert read_history(lines) == run_world(SCENARIOS["three-instances"], 3)
    assert main([*scenario, "--seed", "3", "--compare", str(file)]) == 0
    assert "and the history of the file: equal, event for event\n" in capsys.readouterr().out


def test_a_seed_is_equal_to_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "1", "--compare", "1"]) == 0
    assert "equal, event for event" in capsys.readouterr().out


def test_what_cannot_be_compared_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "broken.jsonl"
    file.write_text('{"event":"Nothing","at_ns":1}\n')
    with pytest.raises(SystemExit):
        main(["--seed", "1", "--compare", str(file)])
    assert "line 1 of the history is no event" in capsys.readouterr().err


@pytest.fixture(scope="module")
def runs() -> list[Counter[str]]:
    """What came up in each of the first seeds."""
    return [found.counts for found in hunt(range(1, 7))]


def test_many_seeds_are_counted_and_their_speed_told(
    capsys: pytest.CaptureFixture[str], runs: list[Counter[str]]
) -> None:
    assert main(["--seeds", "6"]) == 0
    printed = capsys.readouterr().out
    counts = sum(runs, Counter())
    asked = f"{counts['requests']:,} requests of clients and {counts['steps']:,} of ensembles"
    assert f"6 seeds, {asked} in " in printed
    assert "simulated requests a second" in printed
    assert f"sealed: full {' ' * 30}".rstrip() in printed
    assert f"{counts['sealed: full']}\n" in printed
    assert "holes, which the simulator should reach and did not: " in printed
    assert printed.endswith("no invariant was broken\n")


def test_the_reach_of_many_seeds_is_told_by_run(capsys: pytest.CaptureFixture[str], runs: list[Counter[str]]) -> None:
    assert main(["--seeds", "6", "--reach"]) == 0
    printed = capsys.readouterr().out
    assert "\n".join(reach(runs)) in printed
    share = sum(1 for counts in runs if counts["a batch of several requests"]) / 6
    assert re.search(rf"a batch of several requests +{share:.1%} ", printed)


def test_a_failing_seed_is_made_small_written_and_can_be_seen_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "not" / "there"
    arguments = ["--plant", "exceeded-batch", "--failures", str(folder)]
    assert main(["--seeds", "50", *arguments]) == 1
    printed = capsys.readouterr().out
    (file,) = folder.glob("seed-*.json")
    assert f"    python -m trireme.simulations --replay {file} --plant exceeded-batch\n" in printed
    seed = file.stem.removeprefix("seed-")
    assert f"    python -m trireme.simulations --seed {seed} --plant exceeded-batch\n" in printed
    broken = re.search(rf"seed {seed} breaks an invariant\n    ([^:]+): ", printed)
    assert broken is not None
    for again in (["--replay", str(file)], ["--seed", seed]):
        assert main([*again, "--plant", "exceeded-batch"]) == 1
        assert f"broken: {broken[1]}" in capsys.readouterr().out
        assert main(again) == 0
        assert "no invariant was broken" in capsys.readouterr().out


def test_exhibits_and_request_logs_are_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--exhibit", "slot-released-twice"]) == 0
    assert "Two sequences got it after that" in capsys.readouterr().out
    log = tmp_path / "log.jsonl"
    log.write_text('{"offset_s":0.5,"model":"digits"}\n{"offset_s":0.6,"model":"digits","rows":3}\n')
    assert main(["--trace", str(log)]) == 0
    assert "2 requests: 2 answered" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--scenario", "none"], "invalid choice: 'none'"),
        (["--columns", "0"], "at least 1 is needed, not 0"),
        (["--seed", "x"], "invalid int value: 'x'"),
        (["--seeds", "0"], "at least 1 is needed, not 0"),
        (["--replay", "nowhere.json"], "nowhere.json: [Errno 2] No such file"),
        (["--replay", __file__], "not a plan: "),
        (["--trace", __file__], "line 1 of the request log: not JSON"),
    ],
)
def test_it_says_what_is_wrong_with_an_argument(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert text in capsys.readouterr().err


def test_without_rich_the_command_names_the_extra(tmp_path: Path) -> None:
    code = "import runpy, sys; sys.modules['rich'] = None; runpy.run_module('trireme.simulations', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(
        "the simulator's command needs the package rich: pip install trireme-server[terminal] ("
    )
