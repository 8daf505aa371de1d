"""`make bench`: its figures, tables, chart and plan, each from values that are given here."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # last: names there are also those of other tests

from bench import chart, goals, report
from bench.clients import ClosedLoop, ManyModels, PerfAnalyzer, random_data, request_bytes, verify
from bench.command import QUICK_MINUTES, main
from bench.document import METRICS, DifferentError, Document, RowFacts, Sample, Spread, is_ahead, merge, ratio, spread
from bench.loop import summary
from bench.machine import load_warning
from bench.models import MODELS, Kind, with_steps, write_file, write_repository
from bench.peers import PEERS
from bench.peers.base import Form, Peer
from bench.peers.runtime import choose
from bench.peers.v2 import Trireme
from bench.plan import expected_s, make_plan, to_measure, without
from bench.settings import Settings
from bench.workloads import FEATURED, WORKLOADS, Row, Workload, row_keys
from servers import FailedError, Server

LOAD = ["throughput", "p50_us"]


def sample(row: str, peer: str, alternation: int, **metrics: float) -> Sample:
    return Sample(row, peer, alternation, metrics)


@pytest.fixture
def document() -> Document:
    """Two rows; one peer of each kind: measured, refused, failed and not installed."""
    peers = {"trireme": "Trireme", "triton": "Triton", "litserve": "LitServe", "ray-serve": "Ray Serve"}
    rows = [
        RowFacts("fast, concurrency 16", "fast", "fast", 16, "closed loop", LOAD),
        RowFacts("late, concurrency 1", "late", "late", 1, "closed loop", LOAD[::-1]),
    ]
    return Document(
        peers,
        rows,
        versions={"trireme": "0.1.0", "triton": "2.51.0"},
        unavailable={"ray-serve": "not installed: no such version"},
        missing={
            "fast, concurrency 16": {"litserve": "failed: it crashed"},
            "late, concurrency 1": {"litserve": "has no gRPC"},
        },
        notes={"fast, concurrency 16": {"triton": "in its python backend"}},
        facts={"commit": "abc", "load_before": [0.1, 0.2, 0.3], "alternations": 3, "seconds": 1.0},
        samples=[
            *(sample("fast, concurrency 16", "trireme", n, throughput=v) for n, v in enumerate((300.0, 100.0, 200.0))),
            *(sample("fast, concurrency 16", "triton", n, throughput=v) for n, v in enumerate((100.0, 50.0, 80.0))),
            *(
                sample("late, concurrency 1", "trireme", n, p50_us=v, throughput=9.0)
                for n, v in enumerate((40.0, 50.0))
            ),
            *(
                sample("late, concurrency 1", "triton", n, p50_us=v, throughput=9.0)
                for n, v in enumerate((100.0, 80.0))
            ),
        ],
        ended="complete",
    )


def test_a_ratio_is_that_of_medians_with_the_extremes_of_single_alternations(document: Document) -> None:
    assert ratio(document, "fast, concurrency 16", "triton", "throughput") == Spread(200 / 80, 2.0, 3.0)
    assert ratio(document, "fast, concurrency 16", "litserve", "throughput") is None
    assert ratio(document, "late, concurrency 1", "triton", "p50_us") == Spread(45 / 90, 0.4, 0.625)


def test_alternations_that_only_one_side_has_do_not_make_pairs() -> None:
    only = Document({}, [], samples=[sample("r", "trireme", 0, x=1.0), sample("r", "triton", 1, x=2.0)])
    assert ratio(only, "r", "triton", "x") is None


def test_spread_of_nothing_is_none() -> None:
    assert spread([]) is None
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)


def test_more_requests_and_less_time_are_ahead() -> None:
    assert is_ahead("throughput", 1.1)
    assert not is_ahead("throughput", 0.9)
    assert is_ahead("p50_us", 0.9)
    assert not is_ahead("p50_us", 1.1)


def test_a_document_is_read_as_it_was_written(document: Document, tmp_path: Path) -> None:
    document.write(tmp_path / "bench.json")
    assert Document.read(tmp_path / "bench.json") == document
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]


def test_the_markdown_table_has_figures_ratios_and_reasons(document: Document) -> None:
    lines = report.markdown(document).splitlines()
    fast = next(line for line in lines if line.startswith("| fast"))
    assert fast == ("| fast, concurrency 16 | infer/s | 200 (100 … 300) | 80.0¹; **2.50** (2.00 … 3.00) | –² | –³ |")
    late = next(line for line in lines if line.startswith("| late"))
    assert late == "| late, concurrency 1 | p50 µs | 45.0 (40.0 … 50.0) | 90.0; **0.50** (0.40 … 0.62) | –⁴ | –³ |"
    notes = ["in its python backend", "failed: it crashed", "not installed: no such version", "has no gRPC"]
    assert [f"{place}. {note}" for place, note in enumerate(notes, start=1)] == lines[-4:]
    assert "## Infer/s" in lines  # what the row about latency has besides
    assert not any("not complete" in line for line in lines)


def test_the_report_says_what_is_wrong_with_the_run(document: Document) -> None:
    document.ended = "it was interrupted"
    document.facts["warning"] = "The machine is busy"
    text = report.markdown(document)
    assert "The run is not complete: it was interrupted." in text
    assert "The machine is busy" in text


def test_the_terminal_table_has_every_metric_if_asked(document: Document) -> None:
    assert report.terminal_table(document)[0].row_count == 2
    table, notes = report.terminal_table(document, full=True)
    assert table.row_count == 4
    assert len(table.columns) == 6
    assert notes[0] == "in its python backend"


def test_bars_are_longer_where_it_is_better(document: Document) -> None:
    fast, late = chart.bars(document)
    assert (fast.peer, fast.times) == ("triton", Spread(2.5, 2.0, 3.0))
    assert (late.metric, late.times) == ("p50_us", Spread(2.0, 1 / 0.625, 2.5))


def test_the_chart_is_drawn_as_picture_and_as_lines(document: Document, tmp_path: Path) -> None:
    assert chart.draw(document, [tmp_path / "bench.png", tmp_path / "bench.svg"])
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(tmp_path / "bench.svg").getroot().tag.endswith("svg")


def test_nothing_is_drawn_of_one_server_alone(tmp_path: Path) -> None:
    assert not chart.draw(Document({"trireme": "Trireme"}, []), [tmp_path / "bench.png"])
    assert not list(tmp_path.iterdir())


def settings(tmp_path: Path, **changes: Any) -> Settings:
    return Settings(tmp_path, **changes)


def test_servers_are_measured_in_turn(tmp_path: Path) -> None:
    asked = settings(tmp_path, alternations=2)
    peers: list[Peer] = [PEERS[name](asked) for name in ("trireme", "triton", "mlserver")]
    workloads = to_measure([WORKLOADS["identity-http"]], quick=False, concurrencies=[16, 1])
    plan = make_plan(workloads, peers, MODELS, asked)
    (stage,) = plan.stages
    turns = [(turn.row.concurrency, turn.alternation, turn.peer) for turn in stage.turns]
    assert turns == [(c, n, peer) for c in (16, 1) for n in (0, 1) for peer in ("trireme", "triton")]
    assert plan.refused["identity FP32[16], HTTP binary, concurrency 16"] == {
        "mlserver": "perf_analyzer cannot drive it"
    }
    assert expected_s(plan, {peer.name: peer for peer in peers}, asked) > 8 * asked.window_s


def test_the_runtime_alone_has_a_part_in_rows_that_it_limits(tmp_path: Path) -> None:
    asked = settings(tmp_path)
    peers: list[Peer] = [PEERS[name](asked) for name in ("trireme", "runtime")]
    plan = make_plan([WORKLOADS["digits"], WORKLOADS["resnet50"]], peers, MODELS, asked)
    assert [stage.peers for stage in plan.stages] == [["trireme"], ["trireme", "runtime"]]


def test_a_quick_run_of_everything_is_planned_to_end_in_time(tmp_path: Path) -> None:
    asked = settings(tmp_path, quick=True, seconds=0.25, alternations=3)
    peers: dict[str, Peer] = {name: peer(asked) for name, peer in PEERS.items() if name != "earlier"}
    plan = make_plan(to_measure(WORKLOADS.values(), quick=True), list(peers.values()), MODELS, asked)
    assert expected_s(plan, peers, asked) < QUICK_MINUTES * 60
    full = make_plan(WORKLOADS.values(), list(peers.values()), MODELS, settings(tmp_path))
    assert len(plan.rows) < len(full.rows)
    assert expected_s(full, peers, settings(tmp_path)) < 75 * 60


def test_workloads_without_a_row_that_is_asked_for_are_left_out() -> None:
    """Or their models would be written, and the best batch of the runtime found, for nothing."""
    quick = to_measure(WORKLOADS.values(), quick=True)
    assert {"encoder", "ensemble", "identity-shm"}.isdisjoint(workload.name for workload in quick)
    assert all(row.quick for workload in quick for row in workload.rows)
    (single,) = to_measure([WORKLOADS["identity-http"], WORKLOADS["encoder"]], quick=False, concurrencies=[1])
    assert [row.concurrency for row in single.rows] == [1]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--quick", "--workloads", "encoder", "identity-shm"], "no row that --quick and --concurrency leave"),
        (["--concurrency", "3"], "no row that --quick and --concurrency leave"),
        (["--alternations", "0"], "--alternations: must be above 0, not 0"),
        (["--seconds", "-1"], "--seconds: must be above 0, not -1"),
        (["--seconds", "nan"], "--seconds: must be above 0, not nan"),
        (["--minutes", "x"], "--minutes: invalid float value: 'x'"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_installed(
    words: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--peers", "--output", str(tmp_path / "results")])
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_every_row_has_a_name_of_its_own() -> None:
    keys = [row.key for workload in WORKLOADS.values() for row in workload.rows]
    assert len(keys) == len(set(keys))


def test_a_row_of_single_requests_is_about_latency() -> None:
    assert Row("w", "what", "digits", ClosedLoop(), 1).metrics[0] == "p50_us"
    assert Row("w", "what", "digits", ClosedLoop(), 16).metrics[0] == "throughput"
    assert Row("w", "what", "digits", ManyModels(), 1).metrics[0] == "cpu_us"


@pytest.mark.parametrize(
    ("name", "model", "form", "reason"),
    [
        ("mlserver", "chain", Form.JSON, "has no python models"),
        ("mlserver", "digits", Form.BINARY, "has no HTTP binary"),
        ("litserve", "digits", Form.GRPC, "has no gRPC"),
        ("trireme", "chain", Form.STREAMS, None),
    ],
)
def test_a_peer_says_what_it_cannot_serve(
    tmp_path: Path, name: str, model: str, form: Form, reason: str | None
) -> None:
    assert PEERS[name](settings(tmp_path)).refuses(MODELS[model], form) == reason


def test_a_peer_without_a_form_is_asked_with_json_where_the_row_allows_it(tmp_path: Path) -> None:
    peer, model = PEERS["mlserver"](settings(tmp_path)), MODELS["resnet50"]
    assert ClosedLoop(Form.BINARY).refuses(peer, model) == "has no HTTP binary"
    assert ClosedLoop(Form.BINARY, or_json=True).refuses(peer, model) is None
    assert ClosedLoop(Form.BINARY, or_json=True).how(peer, model) == "asked with JSON"


def test_requests_are_the_same_for_servers_of_one_protocol(tmp_path: Path) -> None:
    model = MODELS["identity_fp32"]
    ours, theirs = (PEERS[name](settings(tmp_path)) for name in ("trireme", "triton"))
    for form in (Form.JSON, Form.BINARY, Form.GRPC):
        assert request_bytes(ours, model, form) == request_bytes(theirs, model, form)
    region = request_bytes(ours, MODELS["resnet50"], Form.SHARED_MEMORY)
    assert len(region) < 600
    assert b'"shared_memory_byte_size": 602112' in region
    head, _, body = request_bytes(ours, model, Form.JSON).partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\n")
    assert np.allclose(json.loads(body)["inputs"][0]["data"], random_data(model).ravel())


class Answering(Trireme):
    """Answers with what it is given, without a server."""

    def __init__(self, settings: Settings, answer: np.ndarray | None) -> None:
        super().__init__(settings)
        self._answer = answer

    def infer(self, server: Server, model: Any, data: np.ndarray) -> np.ndarray:
        return data.ravel() if self._answer is None else self._answer


def test_an_answer_that_is_not_the_input_is_found_out(tmp_path: Path) -> None:
    models = {"identity_fp32": MODELS["identity_fp32"]}
    server: Any = None
    verify(Answering(settings(tmp_path), None), server, models, {})
    with pytest.raises(FailedError, match="does not answer as it must for identity_fp32"):
        verify(Answering(settings(tmp_path), np.zeros(16)), server, models, {})


def test_the_batch_size_is_the_smallest_that_is_nearly_the_best() -> None:
    found = [(1, 1, 80.0), (1, 4, 98.5), (1, 8, 99.0), (2, 1, 90.0), (2, 4, 99.5), (2, 8, 100.0)]
    results = [{"sessions": sessions, "batch": batch, "throughput": rate} for sessions, batch, rate in found]
    assert choose(results) == (2, 4)


def test_a_busy_machine_is_noticed() -> None:
    assert load_warning(0.4, 2) is None
    assert "load average is 3.00" in (load_warning(3.0, 2) or "")


def test_a_summary_of_requests() -> None:
    seen = summary([float(number) for number in range(100, 0, -1)], 2.0)
    assert seen == {"requests": 100, "throughput": 50.0, "p50_us": 50.5, "p99_us": 100.0}


def test_what_is_called_is_served_too() -> None:
    assert [model.name for model in with_steps(["ensemble"])] == ["step_1", "step_2", "ensemble"]


def test_repositories_hold_what_the_server_can_load(tmp_path: Path) -> None:
    models = [write_file(model, tmp_path / "files") for model in with_steps(["identity_fp32", "digits", "ensemble"])]
    write_repository(tmp_path / "native", models, native=True)
    write_repository(tmp_path / "python", models, native=False)
    assert (tmp_path / "native" / "digits" / "1" / "model.onnx").exists()
    assert not (tmp_path / "native" / "digits" / "1" / "model.py").exists()
    assert (tmp_path / "python" / "digits" / "1" / "model.py").exists()
    assert 'platform: "ensemble"' in (tmp_path / "python" / "ensemble" / "config.pbtxt").read_text()
    assert not any(model.file for model in models if model.kind in {Kind.PYTHON, Kind.ENSEMBLE})


def test_networks_are_served_with_the_instances_and_threads_of_the_runtime_alone(tmp_path: Path) -> None:
    (digits,) = (write_file(MODELS["digits"], tmp_path) for _ in "1")
    best = replace(digits, instances=2, threads=3)
    write_repository(tmp_path / "native", [best], native=True)
    config = (tmp_path / "native" / "digits" / "config.pbtxt").read_text()
    assert "count: 2" in config
    assert '"intra_op_thread_count" value { string_value: "3" }' in config
    write_repository(tmp_path / "python", [best], native=False, packages=Path("/opt/there"))
    code = (tmp_path / "python" / "digits" / "1" / "model.py").read_text()
    assert "sys.path += ['/opt/there']" in code
    assert "intra_op_num_threads = 3" in code


def test_workloads_name_models_that_there_are() -> None:
    def names(workload: Workload) -> set[str]:
        return {*workload.models, *(row.model for row in workload.rows)}

    assert all(names(workload) <= MODELS.keys() for workload in WORKLOADS.values())
    assert any(isinstance(row.client, PerfAnalyzer) for row in WORKLOADS["identity-grpc"].rows)


def part(row: str, throughput: float, **changes: Any) -> Document:
    """Results of a run with one row."""
    facts = {"machine": {"cores": 2}, "commit": "abc", "alternations": 1}
    known = Document(
        {"trireme": "Trireme", "triton": "Triton"},
        [RowFacts(row, row, row, 16, "closed loop", LOAD)],
        versions={"trireme": "0.1.0", "triton": "2.51.0"},
        facts=facts,
        samples=[sample(row, "trireme", 0, throughput=throughput), sample(row, "triton", 0, throughput=50.0)],
        ended="complete",
    )
    return replace(known, **changes)


def test_results_of_several_runs_are_put_together_and_later_ones_count() -> None:
    first, second, third = part("one", 100.0), part("two", 200.0), part("one", 300.0)
    third.facts = {**third.facts, "commit": "def"}
    whole = merge([first, second, third], ["one", "two"])
    assert [row.key for row in whole.rows] == ["one", "two"]
    assert whole.values("one", "trireme", "throughput") == {0: 300.0}
    assert whole.values("two", "triton", "throughput") == {0: 50.0}
    assert whole.facts["commit"] == "abc; def"
    assert whole.ended == "complete"
    assert [row.key for row in merge([second, first], ["one", "two"]).rows] == ["one", "two"]


def test_a_row_that_a_later_run_did_not_reach_keeps_its_figures() -> None:
    unreached = part("one", 1.0, samples=[], ended="it was interrupted")
    whole = merge([part("one", 100.0), unreached])
    assert whole.values("one", "trireme", "throughput") == {0: 100.0}
    assert whole.ended == "it was interrupted"


def test_a_peer_that_one_run_could_not_have_is_missing_in_its_rows_only() -> None:
    without_triton = part("one", 1.0, unavailable={"triton": "not installed"})
    whole = merge([without_triton, part("two", 2.0)])
    assert whole.missing == {"one": {"triton": "not installed"}, "two": {}}
    assert whole.unavailable == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"facts": {"machine": {"cores": 64}}}, "the runs differ in machine: cores is 2 in one, 64 in another"),
        ({"versions": {"triton": "2.52.0"}}, "the runs differ in versions: triton is 2.51.0 in one, 2.52.0 in another"),
    ],
)
def test_results_of_other_machines_and_versions_are_not_put_together(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DifferentError, match=message):
        merge([part("one", 1.0), part("two", 2.0, **changes)])


def test_tables_are_made_from_the_files_of_several_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    part("one", 100.0).write(files[0])
    part("two", 200.0).write(files[1])
    assert main(["--again-from", *map(str, files), "--output", str(tmp_path / "whole")]) == 0
    assert "| two | infer/s | 200" in (tmp_path / "whole" / "bench.md").read_text()
    part("two", 200.0, versions={"trireme": "0.2.0"}).write(files[1])
    assert main(["--again-from", *map(str, files), "--output", str(tmp_path / "other")]) == 2
    assert "differ in versions: trireme is 0.1.0" in capsys.readouterr().out
    assert main(["--again-from", str(tmp_path / "none.json")]) == 2


def test_a_run_that_is_continued_measures_what_is_left(tmp_path: Path) -> None:
    known = part("one", 1.0, missing={"one": {"mlserver": "has no gRPC"}})
    assert known.has_all("one", ["trireme", "triton", "mlserver"], 1)
    assert not known.has_all("one", ["trireme"], 2)
    assert not known.has_all("one", ["trireme", "litserve"], 1)
    assert not known.has_all("two", ["trireme"], 1)
    left = without([WORKLOADS["identity-http"], WORKLOADS["connections"]], row_keys("identity-http", 16))
    assert [row.key for each in left for row in each.rows] == [
        *row_keys("identity-http", 1),
        *row_keys("connections", 16),
    ]


def test_goals_are_met_missed_or_not_measured(document: Document) -> None:
    (fast, late) = (
        RowFacts(row_keys(name, concurrency)[0], name, name, concurrency, "perf_analyzer", LOAD)
        for name, concurrency in (("identity-http", 16), ("identity-http", 1))
    )
    document.rows = [fast, late, RowFacts("start", "startup", "start", 1, "", ["ready_ms"])]
    document.samples = [
        *(sample(fast.key, peer, 0, throughput=value) for peer, value in (("trireme", 250.0), ("triton", 100.0))),
        *(sample(late.key, peer, 0, p50_us=value) for peer, value in (("trireme", 56.0), ("triton", 100.0))),
        sample("start", "trireme", 0, ready_ms=599.0),
    ]
    lines = list(goals.lines(document))
    assert f"| {fast.key} | infer/s | Triton | ≥ 2.5 × | 2.5 × | met |" in lines
    assert f"| {late.key} | p50 µs | Triton | ≤ 0.55 × | 0.56 × | **missed** |" in lines
    assert "| start | ms until ready |  | ≤ 600 ms | 599 ms | met |" in lines
    assert "| ResNet-50, of the runtime alone | infer/s | runtime | ≥ 0.97 × | – | not measured |" in lines


def test_goals_are_about_rows_and_figures_that_there_are() -> None:
    for goal in goals.GOALS:
        assert goal.metric in METRICS
        rows = [row for row in WORKLOADS[goal.workload].rows if goal.concurrency in {0, row.concurrency}]
        assert rows
        assert all(goal.metric in row.metrics for row in rows)


def test_a_chart_of_many_rows_shows_those_that_matter_most(document: Document) -> None:
    keys = [f"row {number}" for number in range(chart.MOST_ROWS + 1)]
    document.rows = [RowFacts(key, key, key, 16, "closed loop", LOAD) for key in keys]
    document.samples = [sample(key, peer, 0, throughput=2.0) for key in keys for peer in ("trireme", "triton")]
    assert [bar.row for bar in chart.bars(document, ["row 3", "row 8"])] == ["row 3", "row 8"]
    document.rows = document.rows[1:]
    assert len(chart.bars(document, ["row 3", "row 8"])) == chart.MOST_ROWS
    assert len(FEATURED) == len(set(FEATURED)) <= chart.MOST_ROWS
