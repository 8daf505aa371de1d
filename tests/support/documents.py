"""Does what a page of the documents says, and compares what comes of it with what the page shows.

A page is read from top to bottom, in one folder:

Rule 1. A block below a paragraph that says "write `NAME`" is the file of that name.
Rule 2. A ``console`` block has commands behind ``$``, each with its output below it. `trireme serve`, `trireme gateway`
        and `make serve` stay: a server runs until the page ends, or another one is started at its port of HTTP. What
        installs is not run; of `pip install` it is checked that there are the extras that it names.
Rule 3. A ``python`` block with a ``text`` block below it is a program and its output.
Rule 4. Ports of a page are those of its servers' flags, or the defaults; the servers that run have others, so in what
        follows `localhost:PORT` is replaced, also in files.
Rule 5. In an output ``…`` stands for anything, on a line of its own also for no line, times for any time, numbers with
        many decimals for their first two digits, as the last ones depend on the processor. Blanks count as one: columns
        are as wide as what is in them.
Rule 6. Blocks in a language of `_SHOWN`, which nothing runs, show a part of a file or of an answer. Any other block has
        to be marked: the line ``<!-- not run: REASON -->`` stands above it.
Rule 7. Indented blocks show something. A command has no place there.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from serve_process import PATIENCE_S, ServeProcess

ROOT = Path(__file__).parents[2]
NODE_MODULES = ROOT / ".venv" / "grpc-js" / "node_modules"
"""Where `make test-slow` puts what the pages install with npm."""

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"\b[Ww]rite\s+`([\w./-]+)`")
_INDENTED_COMMAND = re.compile(
    r"\n\n(?: {4}.*\n)*? {4}(?:\$ )?((?:trireme|curl|pip|make|docker|helm|kubectl|python[\d.]*|\S+\.sh) .*)"
)
_SHOWN = ("http", "ini", "json", "proto", "text", "toml", "yaml")
_NOT_RUN = re.compile(r"<!-- not run: [^>]+ -->\n$")
_TIME = re.compile(r"\b\d+(?:\.\d+)? ?(?:ms|µs|us|s|MiB)\b")
_DECIMALS = re.compile(r"-?\d+\.\d{3,}(?:e[+-]?\d+)?")
_INSTALLING = (["pip", "install"], ["npm", "install"], ["apt-get", "install"])
_SERVING = (["trireme", "serve"], ["trireme", "gateway"])
_PORTS = {"http": "8000", "grpc": "8001", "metrics": "8002"}
_HTTP, _METRICS = " --url http://localhost:8000", " --metrics-url http://localhost:8002"
_ASKING = {"infer": _HTTP, "route": _HTTP, "bench": _HTTP, "top": _HTTP + _METRICS, "explain": _HTTP + _METRICS}
"""Sub-commands that ask a server, with their defaults, which have to be said where ports are others."""


@dataclass(frozen=True)
class Step:
    """Something that a page has its reader do.

    Attributes:
        line: of the page.
        kind: ``file``, ``command``, ``program``, ``idle`` (only shown, or marked as not run) or ``unknown``.
        text: of the file, the command or the program.
        shown: the output that the page shows; None if it shows none.
    """

    line: int
    kind: str
    text: str
    name: str = ""
    shown: str | None = None


def steps(page: str) -> Iterator[Step]:
    """What a page says, in order."""
    blocks = list(_FENCE.finditer(page))
    outputs = set()
    for number, block in enumerate(blocks):
        line = page.count("\n", 0, block.start()) + 1
        before = page[: block.start()]
        language, text = block[1], block[2]
        following = blocks[number + 1] if number + 1 < len(blocks) else None
        if number in outputs:
            continue
        named = _FILE.findall(before.rstrip().rpartition("\n\n")[2])
        if _NOT_RUN.search(before) or (language in _SHOWN and not named):
            yield Step(line, "idle", text)
        elif named:
            yield Step(line, "file", text, named[-1])
        elif language == "console":
            yield from _commands(line + 1, text)
        elif language == "python" and following and following[1] == "text" and _adjoins(page, block, following):
            outputs.add(number + 1)
            yield Step(line, "program", text, shown=following[2])
        else:
            yield Step(line, "unknown", text)


def blocks(page: Path, language: str) -> list[str]:
    """What a page shows in this language, for tests that read it in their own way."""
    return [block[2] for block in _FENCE.finditer(page.read_text(encoding="utf-8")) if block[1] == language]


def indented_commands(page: str) -> Iterator[int]:
    """The lines of commands in indented blocks."""
    plain = _FENCE.sub(lambda block: "\n" * block[0].count("\n"), page)
    for command in _INDENTED_COMMAND.finditer(plain):
        yield plain.count("\n", 0, command.start(1)) + 1


def _only(page: str, section: str) -> str:
    """A page's beginning and one of its sections; the others are empty lines, so that numbers of lines stay."""
    beginning, *others = re.split(r"^(?=## )", page, flags=re.MULTILINE)
    assert any(each.startswith(f"## {section}\n") for each in others), f"there is no section {section!r}"
    return beginning + "".join(
        each if each.startswith(f"## {section}\n") else "\n" * each.count("\n") for each in others
    )


def _adjoins(page: str, block: re.Match[str], following: re.Match[str]) -> bool:
    return not page[block.end() : following.start()].strip()


def _commands(line: int, text: str) -> Iterator[Step]:
    for part in re.split(r"^(?=\$ )", text, flags=re.MULTILINE):
        if part.strip():
            command = re.match(r"\$ ((?:[^\n]*\\\n)*[^\n]*)\n?", part)
            assert command, f"line {line}: a console block begins with a command behind '$ '"
            output = part[command.end() :]
            yield Step(line, "command", command[1].replace("\\\n", ""), shown=output if output.strip() else None)
        line += part.count("\n")


class Reader:
    """Does what pages say in a folder; a context manager that ends their servers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = Path(sys.executable).parent
        """Where `trireme` and `python` are."""
        self.environment: dict[str, str] = {}
        """What commands find in it beside what is in this process's."""
        self._servers: dict[str, _PageServer] = {}  # by the page's port of HTTP

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_error: object) -> None:
        while self._servers:
            self._servers.popitem()[1].end()

    def read(self, page: Path, section: str = "") -> None:
        """Do all that a page says; AssertionError if something else comes of it.

        Args:
            section: a heading; then only what stands below it is read, and what stands before the first one.
        """
        text = page.read_text(encoding="utf-8")
        for step in steps(_only(text, section) if section else text):
            where = f"{page.name}:{step.line}"
            assert step.kind != "unknown", f"{where}: this block is not run, and no line says why not"
            if step.kind == "file":
                path = self.folder / step.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(self._with_ports(step.text), encoding="utf-8")
            elif step.kind != "idle":
                output = self._run(step, where)
                if step.shown is not None:
                    assert matches(step.shown, output), f"{where}: expected\n{step.shown}\nand got\n{output}"

    def serve(self, command: str) -> None:
        """Start a server that a page takes for granted."""
        self._serve(shlex.split(command))

    def _run(self, step: Step, where: str) -> str:
        if step.kind == "program":
            return self._output([sys.executable, "-c", self._with_ports(step.text)], where)
        words = shlex.split(step.text, comments=True)
        if words[:2] == ["make", "serve"]:
            words = _served_by_make()
        if words[:2] == ["pip", "install"]:
            check_installable(words[2:])
        if words[:2] in _INSTALLING:
            return ""
        if words[:2] in _SERVING:
            self._serve(words)
            return ""
        command = step.text
        if words[0] == "trireme" and "--url" not in words and "--log" not in words:
            command += _ASKING.get(words[1], "")
        return self._output(["sh", "-c", self._with_ports(command)], where)

    def _output(self, command: list[str], where: str) -> str:
        paths = os.pathsep.join([str(self.programs), os.environ["PATH"]])
        plain = {"NODE_PATH": str(NODE_MODULES), "NO_COLOR": "1", "COLUMNS": "120"}
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, "PATH": paths, **plain, **self.environment},
            capture_output=True,
            text=True,
            timeout=10 * PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{where}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _serve(self, words: list[str]) -> None:
        ports = {name: _flag(words, f"--{name}-port", default) for name, default in _PORTS.items()}
        if ports["http"] in self._servers:
            self._servers.pop(ports["http"]).leave()
        server = self._servers[ports["http"]] = _PageServer(words, ports, self.folder)
        server.wait_for("Started HTTPService")
        server.wait_for("Started Metrics Service")

    def _ports(self) -> dict[str, int]:
        """Where servers are, by the ports that the page says."""
        return {shown: port for server in self._servers.values() for shown, port in server.ports().items()}

    def _with_ports(self, text: str) -> str:
        ports = self._ports()
        return re.sub(
            r"localhost:(\d+)", lambda match: f"127.0.0.1:{ports[match[1]]}" if match[1] in ports else match[0], text
        )


class _PageServer(ServeProcess):
    """The server that a page starts, on free ports.

    Args:
        shown: the ports that the page says, by name.
    """

    def __init__(self, words: list[str], shown: dict[str, str], folder: Path) -> None:
        self._shown = shown
        ports = [word for name in shown for word in (f"--{name}-port", "0")]
        in_one_process = words[1] == "serve" and "--front-ends" not in words
        self._start([*words[1:], *(("--front-ends", "0") if in_one_process else ()), *ports], folder=folder)

    def leave(self) -> None:
        """End it as a reader's Ctrl-C does: what it has to write is written."""
        self.process.terminate()
        self.wait()
        self.end()

    def ports(self) -> dict[str, int]:
        """Where it is, by the ports that the page says."""
        return {shown: getattr(self, f"{name}_port") for name, shown in self._shown.items()}


def _flag(words: list[str], name: str, default: str) -> str:
    return words[words.index(name) + 1] if name in words else default


def _served_by_make() -> list[str]:
    """What `make serve` starts in the end."""
    recipe = (ROOT / "Makefile").read_text().split("\nserve:")[1].splitlines()[1]
    return shlex.split(recipe.strip().replace("$(BIN)/", "").replace("$(FLAGS)", ""))


def check_installable(requirements: list[str]) -> None:
    """That every extra of `trireme-server[…]` or `.[…]` is there."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for requirement in requirements:
        named = re.fullmatch(r"(?:\.|trireme-server)\[([\w,-]+)\]", requirement)
        assert named is None or set(named[1].split(",")) <= set(extras), requirement


def matches(shown: str, output: str) -> bool:
    """Whether an output is what a page shows."""
    pattern = re.escape(normal(shown))
    pattern = re.sub(r"\\\n…(?=\\\n|\Z)", r"(?:\\n[\\s\\S]*?)?", pattern).replace("…", r"[\s\S]*?")
    return re.fullmatch(pattern, normal(output)) is not None


def normal(text: str) -> str:
    """A text without what differs from run to run."""
    lines = (line.rstrip() for line in text.strip().splitlines())
    without_times = re.sub(" +", " ", _TIME.sub("<time>", "\n".join(lines)))
    return _DECIMALS.sub(lambda match: f"{float(match[0]):.2g}", without_times)
