"""The table of residuals: what is within its bounds, and what is no further off than real runs are from each other."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # last: names there are also those of other tests

from foresight_table import executed, reasons, residuals

RUN = {"p50": 0.010, "p99": 0.040, "throughput": 100.0, "batch": 2.0, "refused": 0, "late": 3}
MACHINE = {"loop": 0.5, "others": 0.4, "stolen": 0.0}
MODELS = {"models": {"heavy": {"rows": 200, "batches": 100, "queue_s": 0.004, "sizes": {"2": [100, 0.005]}}}}


def keep(found: Path, predicted: dict[str, float], *runs: dict[str, float]) -> None:
    """As the steps of the benchmark keep it, of a case named `case`."""
    real = [{**RUN, **MACHINE, **MODELS, **run} for run in runs]
    (found / "case.measured.json").write_text(json.dumps({"requests": 7, "runs": real}))
    told = {**RUN, **MODELS, "loop": 0.25, **predicted}
    (found / "case.predicted.json").write_text(json.dumps([told, told]))


def test_a_number_within_its_bound_of_the_mean_of_two_runs_is_plain(tmp_path: Path) -> None:
    keep(tmp_path, {"p50": 0.0104}, {"p50": 0.0101}, {"p50": 0.0099})
    table = residuals(tmp_path, {"case": True})
    assert "| case | 7 | 10.4 … 10.4 / 10.1 … 9.9 ms, +4.0% |" in table
    assert "| 0 … 0 / 0 … 0 | 0.4 … 0.4 | yes |" in table
    assert "4 of 4 numbers are within their bounds" in table


def test_what_is_off_is_bold_and_marked_where_the_runs_are_as_far_apart(tmp_path: Path) -> None:
    keep(tmp_path, {"p50": 0.011, "p99": 0.050}, {"p99": 0.030}, {"p99": 0.040})
    table = residuals(tmp_path, {"case": False, "another": False})
    assert "| **11 … 11 / 10 … 10 ms, +10.0%** | **50 … 50 / 30 … 40 ms, +42.9% ≠** |" in table
    assert "2 of 4 numbers are within their bounds" in table
    assert "1 of these are numbers" in table
    assert table.endswith("Not measured: another.\n")


def test_batches_between_two_looks_at_statistics_are_counted_by_size() -> None:
    def statistics(batches: int, of_two: int, ns: int) -> dict[str, object]:
        part = {"count": of_two, "ns": ns}
        return {
            "batch_stats": [
                {"batch_size": 2, "compute_input": part, "compute_infer": part, "compute_output": part},
                {"batch_size": 8, "compute_input": {"count": 5, "ns": 9}}
                | {"compute_infer": {"count": 5, "ns": 9}, "compute_output": {"count": 5, "ns": 9}},
            ],
            "inference_stats": {"queue": {"count": batches, "ns": 1_000_000 * batches}},
            "inference_count": 2 * batches,
            "execution_count": batches,
        }

    found = executed(statistics(10, 3, 3_000_000), statistics(14, 7, 7_000_000))
    assert found == {"rows": 8, "batches": 4, "queue_s": 0.001, "sizes": {"2": [4, 0.003]}}


def test_reasons_show_the_parts_predicted_and_measured(tmp_path: Path) -> None:
    keep(tmp_path, {}, {}, {"loop": 0.75})
    text = reasons(tmp_path, ["case"])
    assert "case: loop 0.250 … 0.250 / 0.500 … 0.750" in text
    assert "heavy: queue 4.000 … 4.000 / 4.000 … 4.000 ms" in text
    assert "2 rows: 100 … 100 / 100 … 100, 5.000 … 5.000 / 5.000 … 5.000 ms" in text
