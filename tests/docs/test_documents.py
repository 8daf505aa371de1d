"""How documents are read: `documents` in tests/support."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import documents
import pytest
from documents import Reader, indented_commands, matches, normal, steps

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


class _Started:
    """In the place of a server that a page starts: its ports are those of the page, and another digit before them."""

    log: ClassVar[list[str]] = []

    def __init__(self, words: list[str], shown: dict[str, str], _folder: Path) -> None:
        self._words = " ".join(words)
        self._shown = shown
        self.log.append(f"{self._words} begins")

    def ports(self) -> dict[str, int]:
        return {port: 10_000 + int(port) for port in self._shown.values()}

    def wait_for(self, _pattern: str) -> None:
        """It is there at once."""

    def leave(self) -> None:
        self.log.append(f"{self._words} is left")

    def end(self) -> None:
        self.log.append(f"{self._words} ends")


def test_servers_of_a_page_have_their_own_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is started at the port of another takes its place."""
    monkeypatch.setattr(documents, "_PageServer", _Started)
    monkeypatch.setattr(_Started, "log", [])
    page = tmp_path / "x.md"
    page.write_text(
        "```console\n$ trireme serve --http-port 7100 --grpc-port 7101\n$ trireme gateway\n"
        "$ echo localhost:7100 localhost:7101 localhost:8000 localhost:8001 localhost:9\n"
        "127.0.0.1:17100 127.0.0.1:17101 127.0.0.1:18000 127.0.0.1:18001 localhost:9\n"
        "$ trireme serve\n```\n"
    )
    with Reader(tmp_path) as reader:
        reader.read(page)
        running = ["trireme serve --http-port 7100 --grpc-port 7101 begins", "trireme gateway begins"]
        assert _Started.log == [*running, "trireme gateway is left", "trireme serve begins"]
    assert len(_Started.log) == 6


def test_commands_in_indented_blocks_are_found() -> None:
    page = "Text:\n\n    a:\n    curl -s localhost\n\n- a point\n\n      more\n\n    $ trireme serve\n"
    page += "\n```sh\n\n    make x\n```\n"
    assert [page.splitlines()[line - 1] for line in indented_commands(page)] == [
        "    curl -s localhost",
        "    $ trireme serve",
    ]


@pytest.mark.parametrize(
    ("shown", "output", "same"),
    [
        ("a …\nb", "a long text\nb\n", True),
        ("a\n…", "a\nand\nmore", True),
        ("a\n…\nb\n…", "a\nb", True),
        ("a\n…\nb", "a\nab", False),
        ("latency: 1.62 ms", "latency: 900 us", True),
        ("one   87.584ms    9%", "one  105.911ms    9%", True),
        ("0.98166 1.4395e-08", "0.98161 1.4390e-08", True),
        ("0.98", "0.97", False),
        ("a", "a\nb", False),
    ],
)
def test_what_may_differ(shown: str, output: str, same: bool) -> None:
    assert matches(shown, output) is same, normal(output)
