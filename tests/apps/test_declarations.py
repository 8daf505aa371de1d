"""What is declared of a function: inputs, outputs and configuration from annotations, and clear errors without them."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trireme
from trireme import BYTES, FP32, INT64, DeclarationError
from trireme.apps.app_models import AppTarget
from trireme.apps.config_text import config_text
from trireme.apps.declared.arrays import ResultError, bf16_of_floats, checked_output, floats_of_bf16, named_outputs
from trireme.apps.declared.declaration import AnswerManner, OutputSpec, declaration_of
from trireme.apps.declared.sources import CopiedModules
from trireme.apps.declared.types import BF16, BOOL, ELEMENT_TYPES, FP64, INT8, element_type_of
from trireme.apps.inspecting import AppError, declared_models, models_of, raised_problem
from trireme.apps.local_sources import local_sources
from trireme.engine.datatypes import DATATYPES

HEAD = "from collections.abc import Iterator\nimport numpy as np\nfrom trireme import *\n"


def declared(tmp_path: Path, text: str, head: str = HEAD) -> dict[str, Any]:
    """The names of a module with this text."""
    path = tmp_path / "app.py"
    path.write_text(head + textwrap.dedent(text))
    names: dict[str, Any] = {"__name__": "app"}
    exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), names)
    return names


def configuration(tmp_path: Path, text: str, head: str = HEAD) -> str:
    (model,) = models_of(declared(tmp_path, text, head), "app.py")
    return model.config


def test_every_type_of_the_server_is_there() -> None:
    assert {each.name: each.config_name for each in ELEMENT_TYPES} == {
        each.name: each.config_name for each in DATATYPES
    }
    for each in DATATYPES:
        if each.name not in ("BF16", "BYTES"):
            assert element_type_of(each.storage).name == each.name
    assert element_type_of("U5") is element_type_of(object) is BYTES
    with pytest.raises(TypeError, match="complex128"):
        element_type_of(complex)


@pytest.mark.parametrize("dim", [-1, None, ...])
def test_a_dimension_may_be_of_any_size(dim: Any) -> None:
    assert FP32[dim].dims == (-1,)
    assert FP32[3, dim, np.int64(2)].dims == (3, -1, 2)
    assert repr(FP32[3, dim]) == "FP32[3, -1]"


@pytest.mark.parametrize("dim", [0, -2, "8", 1.5, True, ()])
def test_a_dimension_is_nothing_else(dim: Any) -> None:
    with pytest.raises(TypeError, match="dimension"):
        FP32[dim]


def test_the_configuration_is_that_of_the_annotations(tmp_path: Path) -> None:
    text = configuration(
        tmp_path,
        """
        @model(max_batch_size=32, queue_delay="2ms", instances=2, config="response_cache { enable: true }")
        def classify(image: FP32[8, 8], name: BYTES[...] = None) -> {"probabilities": FP32[10], "label": BYTES[1]}: ...
        """,
    )
    assert text == textwrap.dedent("""\
        name: "classify"
        backend: "python"
        max_batch_size: 32
        input { name: "image" data_type: TYPE_FP32 dims: [ 8, 8 ] }
        input { name: "name" data_type: TYPE_STRING dims: [ -1 ] optional: true }
        output { name: "probabilities" data_type: TYPE_FP32 dims: [ 10 ] }
        output { name: "label" data_type: TYPE_STRING dims: [ 1 ] }
        instance_group { kind: KIND_CPU count: 2 }
        dynamic_batching { max_queue_delay_microseconds: 2000 }
        response_cache { enable: true }
        """)


@pytest.mark.parametrize(
    ("result", "output"),
    [
        ("FP32[2]", 'name: "output" data_type: TYPE_FP32 dims: [ 2 ]'),
        ('{"y": INT64[None]}', 'name: "y" data_type: TYPE_INT64 dims: [ -1 ]'),
    ],
)
@pytest.mark.parametrize("head", [HEAD, f"from __future__ import annotations\n{HEAD}"])
def test_one_output_has_a_name_or_the_default_one(tmp_path: Path, head: str, result: str, output: str) -> None:
    assert output in configuration(tmp_path, f"@model\ndef f(x: FP32[1]) -> {result}: ...", head)
    stream = f"@model\ndef f(x: FP32[1]) -> Iterator[{result}]: yield"
    assert output in (text := configuration(tmp_path, stream, head))
    assert "decoupled: true" in text


def test_names_of_outputs_may_have_lost_their_quotes(tmp_path: Path) -> None:
    head = f"from __future__ import annotations\n{HEAD}"
    assert 'output { name: "y"' in configuration(tmp_path, "@model\ndef f(x: FP32[1]) -> {y: FP32[1]}: ...", head)


@pytest.mark.parametrize(
    ("text", "manner", "lines"),
    [
        ("def f(x: FP32[1]) -> FP32[1]: ...", AnswerManner.RETURNS, []),
        ("async def f(x: FP32[1]) -> FP32[1]: ...", AnswerManner.AWAITED, ["ASYNC_LIBRARY"]),
        ("def f(x: FP32[1]) -> FP32[1]: yield", AnswerManner.YIELDS, ["decoupled"]),
        ("async def f(x: FP32[1]) -> FP32[1]: yield", AnswerManner.YIELDS_AWAITED, ["decoupled", "ASYNC_LIBRARY"]),
        ("class f:\n  async def __call__(self, x: FP32[1]) -> FP32[1]: ...", AnswerManner.AWAITED, ["ASYNC_LIBRARY"]),
    ],
)
def test_how_a_function_answers_is_seen(tmp_path: Path, text: str, manner: AnswerManner, lines: list[str]) -> None:
    names = declared(tmp_path, f"@model(in_process=True)\n{text}")
    found = declaration_of(names["f"])
    assert found is not None
    assert found.manner is manner
    for each in ("decoupled", "ASYNC_LIBRARY"):
        assert (each in config_text(found)) == (each in lines)


def test_what_is_decorated_stays_what_it_is() -> None:
    @trireme.model
    def double(x: FP32[1]) -> FP32[1]:  # type: ignore[valid-type]
        return x * 2

    @trireme.model(name="total")
    class Total:
        def __init__(self) -> None:
            self.total = 0

        def __call__(self, x: INT64[1]) -> INT64[1]:  # type: ignore[valid-type]
            self.total += x
            return self.total

    assert double(21) == 42
    total = Total()
    assert total(1) == 1
    assert total(2) == 3
    assert isinstance(total, Total)
    assert declaration_of(total) is None
    found = declaration_of(Total)
    assert found is not None
    assert found.name == "total"
    assert found.callable_of_instance() is not found.callable_of_instance()


def test_tensors_may_be_given_in_place_of_annotations(tmp_path: Path) -> None:
    text = """
        @model(inputs={"x": FP32[2], "y": FP32[1]}, outputs={"z": FP32[2]})
        def f(x: np.ndarray, y: np.ndarray = 1.0) -> np.ndarray: ...
    """
    assert 'name: "y" data_type: TYPE_FP32 dims: [ 1 ] optional: true' in configuration(tmp_path, text)


WRONG = [
    ("def f(image) -> FP32[1]: ...", 1, "parameter 'image' has no annotation", "image: FP32[8, 8]"),
    (
        "def f(\n  a: FP32[1],\n  b: np.ndarray,\n) -> FP32[1]: ...",
        3,
        "parameter 'b' is ndarray, which is no tensor",
        "b:",
    ),
    ("def f(x: {}) -> FP32[1]: ...", 1, "parameter 'x' is {}, which is no tensor", "x: FP32[8, 8]"),
    ("def f(t: str) -> FP32[1]: ...", 1, "parameter 't' is str, which is no tensor", "t: BYTES[1]"),
    ("def f(x: FP32) -> FP32[1]: ...", 1, "parameter 'x' is FP32 without dimensions", "x: FP32[1]"),
    (
        "def f(x: FP32[1], *others: FP32[1]) -> FP32[1]: ...",
        1,
        "parameter 'others' is not given by name",
        "others: FP32",
    ),
    ("def f(x: FP32[1], /) -> FP32[1]: ...", 1, "parameter 'x' is not given by name", "x: FP32[8, 8]"),
    ("def f() -> FP32[1]: ...", 1, "it takes no parameter", "(image: FP32[8, 8])"),
    ("def f(x: FP32[1]): ...", 1, "its result has no annotation", '-> {"probabilities": FP32[10]}'),
    ("def f(x: FP32[1]) -> FP32: ...", 1, "result is FP32 without dimensions", "-> FP32[1]"),
    ("def f(x: FP32[1]) -> np.ndarray: ...", 1, "result is ndarray, which is no tensor and no dictionary", "-> {"),
    ("def f(x: FP32[1]) -> {}: ...", 1, "result is {}, which is no tensor", "-> {"),
    ('def f(x: FP32[1]) -> {"y": float}: ...', 1, "output 'y' of its result is float", "-> {"),
    ("def f(x: 'FP31[1]') -> FP32[1]: ...", 1, "parameter 'x' is 'FP31[1]', which cannot be read: name 'FP31'", "x:"),
    ("class f:\n  def __call__(self, x) -> FP32[1]: ...", 2, "parameter 'x' has no annotation", "x: FP32[8, 8]"),
    ("class f:\n  pass", None, "has no __call__", "def __call__(self"),
    ("(max_batch_size=-1)\ndef f(x: FP32[1]) -> FP32[1]: ...", 2, "max_batch_size is -1", "max_batch_size=0"),
    ("(instances='2')\ndef f(x: FP32[1]) -> FP32[1]: ...", 2, "instances is '2'", "instances=1"),
    ("(queue_delay='2 minutes')\ndef f(x: FP32[1]) -> FP32[1]: ...", 2, "queue_delay is '2 minutes'", '"2ms"'),
    ("(batches='rows')\ndef f(x: FP32[1]) -> FP32[1]: ...", 2, "batches is 'rows', and must be one of", '"array"'),
    ("(batches='list')\ndef f(x: FP32[1]) -> FP32[1]: ...", 2, 'batches="list" needs batches', "max_batch_size=8"),
    ("(batches='list', max_batch_size=2)\ndef f(x: FP32[1]) -> FP32[1]: yield", 2, "does not go with a generator", ""),
    ("(name='a/b')\ndef f(x: FP32[1]) -> FP32[1]: ...", 2, "the name 'a/b' cannot be one", 'name="classify"'),
]


@pytest.mark.parametrize(("text", "line", "problem", "example"), WRONG, ids=[each[2] for each in WRONG])
def test_what_cannot_be_served_is_told_with_its_line_and_an_example(
    tmp_path: Path, text: str, line: int | None, problem: str, example: str
) -> None:
    decorator = "@model" if text.startswith("(") else "@model\n"
    with pytest.raises(DeclarationError) as raised:
        declared(tmp_path, f"{decorator}{text}")
    said, _, advice = str(raised.value).partition("\n")
    assert problem in said
    assert advice.startswith("  write, for example: ")
    assert example in advice
    if line is not None:
        first = HEAD.count("\n") + (0 if text.startswith("(") else 1)
        assert said.startswith(f"{tmp_path / 'app.py'}:{first + line}: model "), said


def test_two_models_of_one_name_are_told(tmp_path: Path) -> None:
    names = declared(
        tmp_path,
        """
        @model
        def f(x: FP32[1]) -> FP32[1]: ...
        @model(name="f")
        def g(x: FP32[1]) -> FP32[1]: ...
        """,
    )
    with pytest.raises(DeclarationError, match=r"app\.py:8: the name 'f' is that of the model at .*app\.py:6, too"):
        models_of(names, "app.py")
    with pytest.raises(DeclarationError, match=re.escape("app.py: it declares no model\n  write, for example:")):
        models_of({"x": 1}, "app.py")


def test_an_app_is_told_from_its_models() -> None:
    assert AppTarget.read("/x/app.py") == AppTarget(Path("/x/app.py"))
    assert AppTarget.read("/x/app.py:f") == AppTarget(Path("/x/app.py"), "f")


def test_what_an_app_imports_from_beside_belongs_to_it(tmp_path: Path) -> None:
    files = {
        "app.py": "import a, numpy\ndef f():\n    from pkg.sub import x",
        "a.py": "from b import y",
        "b.py": "def broken(",
        "pkg/__init__.py": "",
        "pkg/sub.py": "from . import near\nfrom .deep import z",
        "pkg/near.py": "",
        "pkg/deep.py": "import app",
        "pkg/unused.py": "",
        "other.py": "",
    }
    (tmp_path / "pkg").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = [path.relative_to(tmp_path).as_posix() for path in local_sources(tmp_path / "app.py")]
    assert found[0] == "app.py"
    assert set(found) == set(files) - {"pkg/unused.py", "other.py"}


def test_an_app_whose_user_may_not_run_python_is_told(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("")
    with pytest.raises(AppError, match=r"app\.py: no process can be started to import it: .*no/such/place"):
        declared_models(tmp_path / "app.py", {"cwd": "/no/such/place"})


def test_an_app_beside_the_code_of_others_is_told_its_own_line(tmp_path: Path) -> None:
    """A checkout of Trireme, or an environment, may stand in the app's directory."""
    packages = tmp_path / "lib" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "other.py").write_text("def fail():\n    raise ValueError('no')\n")
    (tmp_path / "app.py").write_text(f"import sys\nsys.path.insert(0, {str(packages)!r})\nimport other\nother.fail()\n")
    with pytest.raises(AppError) as raised:
        declared_models(tmp_path / "app.py")
    assert str(raised.value).startswith(f"{tmp_path / 'app.py'}:4: ValueError: no\n")
    assert "other.py" not in str(raised.value)
    checkout = Path(trireme.__file__).resolve().parents[1]
    (tmp_path / "app.py").write_text("undefined\n")
    with pytest.raises(NameError) as caught:
        CopiedModules(str(tmp_path), str(checkout)).import_app("app.py", "inspected")
    problem = raised_problem(caught.value, str(checkout / "app.py"))
    assert (problem.file, problem.line) == (str(checkout / "app.py"), 1)
    assert "sources.py" not in problem.text


def test_copies_of_one_process_do_not_mix(tmp_path: Path) -> None:
    """What serves is the copy, under the names of the originals; a later copy has modules of its own."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "app.py").write_text("import pkg.helper_of_app\nfrom pkg.helper_of_app import value\n")
    origin = tmp_path / "origin"
    copies = []
    for number in (1, 2):
        (tmp_path / "pkg" / "__init__.py").write_text("")
        (tmp_path / "pkg" / "helper_of_app.py").write_text(f"value = {number}\n")
        copies.append(CopiedModules(str(tmp_path), str(origin)))
        module = copies[-1].import_app("app.py", f"m_{number}")
        assert module.value == number
        assert module.__file__ == str(origin / "app.py")
        assert module.pkg.helper_of_app.__file__ == str(origin / "pkg" / "helper_of_app.py")
    assert sys.modules["pkg.helper_of_app"].value == 2
    for each in copies:
        each.close()
    assert not {"pkg", "pkg.helper_of_app", "app__m_2"} & set(sys.modules)
    assert str(origin) not in sys.path


# -- What a function returns


@pytest.mark.parametrize(
    ("value", "kind", "rows", "dtype"),
    [
        ([[1.5, 2]], FP32[2], 1, np.float32),
        (np.ones(3, np.float64), FP32[...], None, np.float32),
        (np.ones((2, 3), np.int64), INT8[3], 2, np.int8),
        ([[1, 2]], FP64[2], 1, np.float64),
        ([True, False], BOOL[2], None, np.bool_),
        (["a", b"b"], BYTES[2], None, object),
        (np.array(["a"]), BYTES[1], None, object),
    ],
)
def test_results_become_what_is_declared(value: Any, kind: Any, rows: int | None, dtype: Any) -> None:
    assert checked_output(value, OutputSpec("y", kind), rows).dtype == dtype


@pytest.mark.parametrize(
    ("value", "kind", "rows", "text"),
    [
        ([1.5], INT64[1], None, "output 'y' is float64, expected int64 for INT64[1]"),
        ([300], INT8[1], None, "output 'y' is int64, expected int8 for INT8[1]"),
        ([1], BOOL[1], None, "output 'y' is int64, expected bool for BOOL[1]"),
        (["a"], FP32[1], None, "output 'y' is <U1, expected float32 for FP32[1]"),
        ([1], BYTES[1], None, "output 'y' is int64, expected texts or bytes for BYTES[1]"),
        (None, FP32[1], None, "output 'y' is object, expected float32 for FP32[1]"),
        ([[1.0], [1.0, 2.0]], FP32[1], None, "output 'y' is no array"),
        ([1.0], FP32[1], 1, "output 'y' has shape [1], expected [1, 1] (1 rows of FP32[1])"),
        ([[1.0]], FP32[2, ...], None, "output 'y' has shape [1, 1], expected [2, any]"),
        ([[1.0], [2.0]], FP32[1], 3, "output 'y' has shape [2, 1], expected [3, 1] (3 rows of FP32[1])"),
    ],
)
def test_other_results_are_told(value: Any, kind: Any, rows: int | None, text: str) -> None:
    with pytest.raises(ResultError, match=re.escape(text)):
        checked_output(value, OutputSpec("y", kind), rows)


def test_results_have_the_names_that_are_declared() -> None:
    outputs = [OutputSpec("a", FP32[1]), OutputSpec("b", FP32[1])]
    assert named_outputs({"b": 1, "a": 2}, outputs) == {"b": 1, "a": 2}
    assert named_outputs(3, outputs[:1]) == {"a": 3}
    with pytest.raises(ResultError, match=re.escape("returned float, expected a dictionary with ['a', 'b']")):
        named_outputs(1.0, outputs)
    with pytest.raises(ResultError, match=re.escape("returned outputs ['a', 'c'], expected ['a', 'b']")):
        named_outputs({"a": 1, "c": 2}, outputs)


def test_bf16_is_rounded_to_the_nearest_and_comes_back() -> None:
    given = np.array([1.0, -2.5, 1.00390625, 1.01171875, np.inf, np.nan, 3.4e38], np.float32)
    back = floats_of_bf16(bf16_of_floats(given))
    np.testing.assert_array_equal(back, np.array([1.0, -2.5, 1.0, 1.015625, np.inf, np.nan, np.inf], np.float32))
    assert back.shape == given.shape
    assert BF16.dtype == np.float32
