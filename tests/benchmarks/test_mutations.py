"""The mutation run: what it changes, what it leaves alone, and that its copy of the package is the one that is run."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def mutants(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import mutants

    return mutants


@pytest.fixture
def mutations(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import mutations

    return mutations


@pytest.fixture(scope="module")
def drawable() -> list[Any]:
    """All that can be drawn; to find them, thousands of files are compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        import mutations

        return mutations.candidates(ROOT, also=True)


def changes(module: ModuleType, body: str) -> set[tuple[str, str]]:
    """What the line in a function may become, and by which operator."""
    source = f"def f(a, b, c):\n    {body}\n"
    return {(each.operator, each.applied(source).splitlines()[1].strip()) for each in module.mutants_of("m.py", source)}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return a < b", {("comparison", "return (a <= b)"), ("comparison", "return (a >= b)")}),
        ("return not a", {("removed not", "return (a)")}),
        ("return min(a, b)", {("swapped function", "return (max)(a, b)")}),
        ("return c(a, b)", {("swapped arguments", "return (c(b, a))")}),
        ("a.b()", {("dropped statement", "pass")}),
        ("a.b = c", {("dropped statement", "pass")}),
        ("return True", {("changed result", "return (False)")}),
        ("return a + 1", {("arithmetic", "return (a - 1)"), ("changed constant", "return a + (2)"),
                          ("changed constant", "return a + (0)")}),
        ("return a if b else c", {("negated condition", "return a if (not b) else c")}),
        ("return a and b", {("and/or", "return (a or b)"), ("dropped operand", "return (a)"),
                            ("dropped operand", "return (b)")}),
    ],
)  # fmt: skip
def test_each_kind_of_change(mutants: ModuleType, body: str, expected: set[tuple[str, str]]) -> None:
    assert changes(mutants, body) == expected


@pytest.mark.parametrize(
    "body",
    ['"""Says 1 < 2."""', "assert a < b", 'raise ValueError(f"{a < b}")', '_log.info("1", a, b)', 'return f"{a + 1}"'],
)
def test_what_no_test_need_notice_stays(mutants: ModuleType, body: str) -> None:
    assert changes(mutants, body) == set()


def test_code_outside_functions_and_reprs_stay(mutants: ModuleType) -> None:
    source = "A = 1 + 2\nclass C:\n    x: int = 3\n    def __repr__(self):\n        return str(1)\n"
    assert mutants.mutants_of("m.py", source) == []


def test_a_mutant_keeps_lines_and_other_characters(mutants: ModuleType) -> None:
    source = 'def f(a):\n    "ü"; b = "é" if a < 1 else a  # ö\n    return b\n'
    found = [each for each in mutants.mutants_of("m.py", source) if each.operator == "comparison"]
    assert [each.applied(source).splitlines()[1] for each in found] == [
        '    "ü"; b = "é" if (a <= 1) else a  # ö',
        '    "ü"; b = "é" if (a >= 1) else a  # ö',
    ]


def test_the_choice_is_a_function_of_the_seed(mutations: ModuleType, drawable: list[Any]) -> None:
    assert len(drawable) > 1_000
    assert mutations.sample(drawable, 20, 1) == mutations.sample(drawable, 20, 1)
    assert mutations.sample(drawable, 20, 1) != mutations.sample(drawable, 20, 2)
    for each in mutations.sample(drawable, 20, 3):
        ast.parse(each.applied((ROOT / each.path).read_text(encoding="utf-8")))


def test_modules_that_decide_nothing_are_left_out(mutations: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutations, "mutants_of", lambda path, _source: [path])
    everywhere = set(mutations.candidates(ROOT, also=True))
    assert everywhere - set(mutations.candidates(ROOT)) == set(mutations.NOT_DECIDING) & everywhere != set()


def test_the_tables_name_what_is_there(mutations: ModuleType, drawable: list[Any]) -> None:
    """Modules and tests that are left out exist, and each mutant that is said to change nothing can be drawn."""
    listed = (*mutations.NOT_DECIDING, *mutations.UNITS, *mutations.WITHOUT)
    assert [path for path in listed if not (ROOT / path).exists()] == []
    drawn = {(each.path, each.function, each.before, each.after) for each in drawable}
    known = mutations.equivalents(ROOT / "benchmarks" / "mutations_equivalent.toml")
    assert [each for each in known if each not in drawn] == []
    assert all(known.values())


def test_a_mutant_lives_in_the_copy_alone(mutations: ModuleType, drawable: list[Any], tmp_path: Path) -> None:
    overlay = mutations.Overlay(ROOT, tmp_path)
    path = "engine/scheduling/permits.py"
    before = (ROOT / path).read_bytes()
    mutant = next(each for each in drawable if each.path == path)
    copy = tmp_path / "trireme" / path

    def imported() -> str:
        code = "import trireme.engine.scheduling.permits as m; print(m.__file__)"
        done = subprocess.run(
            [sys.executable, "-c", code], env=overlay.environment(), cwd=ROOT, check=True, capture_output=True
        )
        return done.stdout.decode().strip()

    assert imported() == str(copy)
    overlay.put(mutant)
    assert copy.read_bytes() != before
    assert not list(copy.parent.glob("__pycache__/permits.*")), "a compiled file might be taken for the mutant's"
    overlay.take_back(mutant)
    assert copy.read_bytes() == before == (ROOT / path).read_bytes()


def test_a_judge_that_fails_says_why_and_one_that_never_ends_is_ended(
    mutations: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlay = mutations.Overlay(ROOT, tmp_path)

    def judge(code: str, cpu_s: int = 60) -> str:
        return mutations._judged(overlay, [sys.executable, "-c", code], cpu_s, ("seed ",)).found

    assert judge("") == ""
    assert judge("print('seed 3: broken'); print('more'); raise SystemExit(1)") == "seed 3: broken"
    assert judge("while True: pass", cpu_s=1).startswith("ended by signal")
    monkeypatch.setattr(mutations, "STILL_S", 0.1)
    assert judge("import time; time.sleep(1000)").startswith("ended by signal")


def test_a_run_goes_on_with_what_an_earlier_one_has_written(
    mutations: ModuleType, drawable: list[Any], tmp_path: Path
) -> None:
    file = tmp_path / "mutations.json"
    mutant = drawable[0]
    result = mutations.Result(mutant, mutations.Verdict("seed 3: broken", 1.5), mutations.Verdict("", 2.0))
    assert mutations.earlier(file, 300) == {}
    file.write_text(mutations.as_json([result], 300, 1), encoding="utf-8")
    assert mutations.earlier(file, 300) == {mutant: result}
    assert mutations.earlier(file, 200) == {}


def test_what_was_found_is_told_by_module_by_layer_and_in_all(mutants: ModuleType, mutations: ModuleType) -> None:
    found, not_found = mutations.Verdict("seed 1: wrong", 1.0), mutations.NOT_ASKED
    paths = "actors/a.py", "actors/b.py", "engine/scheduling/c.py"
    results = [
        mutations.Result(mutants.Mutant(path, "f", 1, "", "", "", 0, 0, ""), swarm, not_found)
        for path, swarm in zip(paths, (found, not_found, found), strict=True)
    ]
    columns = [list(column.cells) for column in mutations.table_of(results).columns]
    assert columns[0] == [*paths, "actors/", "engine/", "all"]
    assert columns[6] == ["100", "0", "100", "50", "100", "67"]
