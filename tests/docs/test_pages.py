"""What the documents show is what happens: their commands are run, and their outputs compared."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from documents import NODE_MODULES, ROOT, Reader, matches, normal, steps

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="the pages' commands need curl")

BESIDE_MODELS = ("docs/example-models.md", "docs/clients.md", "docs/embedding.md")
"""Pages that are read in the root of a checkout."""


TUTORIALS = {page.stem: page for page in sorted((ROOT / "docs" / "tutorials").glob("*.md"))}
JARS = Path("/usr/share/java")
SLOW: dict[str, tuple[str, ...]] = {"hugging-face": ("torch", "transformers"), "planning": (), "pytorch": ("torch",)}
"""Tutorials that take long, with the packages that they need."""


def marked_tutorials() -> Iterator[Any]:
    for name in TUTORIALS:
        missing = [each for each in SLOW.get(name, ()) if find_spec(each) is None]
        without = pytest.mark.skipif(bool(missing), reason=f"the tutorial needs {' and '.join(missing)}")
        yield pytest.param(name, marks=[pytest.mark.slow, without] if name in SLOW else [])


@pytest.mark.parametrize("name", list(marked_tutorials()))
def test_a_tutorial(name: str, tmp_path: Path) -> None:
    """Read in an empty folder."""
    with Reader(tmp_path) as reader:
        reader.read(TUTORIALS[name])


def test_own_models_take_five_commands() -> None:
    """As the tutorial says, and `benchmarks/stopwatch.py` measures."""
    commands = [step for step in steps(TUTORIALS["scikit-learn"].read_text()) if step.kind == "command"]
    assert len(commands) == 5


@pytest.mark.parametrize("name", ["python", "command-line", pytest.param("comparison", marks=pytest.mark.slow)])
def test_a_page_for_an_empty_folder(name: str, tmp_path: Path) -> None:
    with Reader(tmp_path) as reader:
        reader.read((ROOT / "docs" / name).with_suffix(".md"))


LANGUAGES = {
    "JavaScript": ("node", NODE_MODULES / "@grpc" / "grpc-js"),
    "Java": ("javac", "protoc", "grpc_java_plugin", *(JARS / f"{name}.jar" for name in ("grpc-stub", "netty-all"))),
    "C++": ("g++", "pkg-config", "protoc", "grpc_cpp_plugin", Path("/usr/include/grpcpp")),
}
"""What the sections of docs/stubs.md need: programs and files."""


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_client_in_another_language(language: str, tmp_path: Path) -> None:
    needed = LANGUAGES[language]
    missing = [str(each) for each in needed if not (each.exists() if isinstance(each, Path) else shutil.which(each))]
    if missing:
        pytest.skip(f"a client in {language} needs {', '.join(missing)}")
    with Reader(tmp_path) as reader:
        reader.read(ROOT / "docs" / "stubs.md", language)


@pytest.mark.parametrize("name", BESIDE_MODELS)
def test_a_page_for_a_checkout(name: str) -> None:
    with Reader(ROOT) as reader:
        reader.read(ROOT / name)


def test_the_readme(tmp_path: Path) -> None:
    """Read in a folder where the models that come with Trireme lie, as in a checkout."""
    (tmp_path / "model_repository").symlink_to(ROOT / "model_repository")
    with Reader(tmp_path) as reader:
        reader.read(ROOT / "README.md")


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    assert all(word in text for word in ("`.ci/run`", "make serve", "`make test`"))


PAGE = """\
# A page

Write `tool.py`, a program of yours,
in two lines:

```python
print("took 3.4 ms")
```

<!-- not run: it is an example -->
```sh
rm -rf models
```

```console
$ python tool.py
took 1 ms
$ echo one \\
    two
```

```python
print(0.123456)
```

```text
0.123499
```

```sh
rm -rf models
```
"""


def test_a_page_is_read_from_top_to_bottom() -> None:
    found = list(steps(PAGE))
    assert [each.kind for each in found] == ["file", "idle", "command", "command", "program", "unknown"]
    assert (found[0].name, found[0].text) == ("tool.py", 'print("took 3.4 ms")\n')
    assert (found[2].text, found[2].shown) == ("python tool.py", "took 1 ms\n")
    assert (found[3].text, found[3].shown) == ("echo one     two", None)
    assert [PAGE.splitlines()[each.line - 1] for each in found if each.kind == "command"] == [
        "$ python tool.py",
        "$ echo one \\",
    ]


def test_an_output_that_differs_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "x.md"
    page.write_text(PAGE.replace("took 1 ms", "took 1 hour"))
    with Reader(tmp_path) as reader, pytest.raises(AssertionError, match=r"x.md:16: expected\ntook 1 hour"):
        reader.read(page)
    page.write_text(PAGE)
    with Reader(tmp_path) as reader, pytest.raises(AssertionError, match=r"x.md:30: this block is not run"):
        reader.read(page)


@pytest.mark.parametrize(
    ("shown", "output", "same"),
    [
        ("a …\nb", "a long text\nb\n", True),
        ("a\n…", "a\nand\nmore", True),
        ("latency: 1.62 ms", "latency: 900 us", True),
        ("0.98166 1.4395e-08", "0.98161 1.4390e-08", True),
        ("0.98", "0.97", False),
        ("a", "a\nb", False),
    ],
)
def test_what_may_differ(shown: str, output: str, same: bool) -> None:
    assert matches(shown, output) is same, normal(output)
