"""How long a newcomer takes from a wheel to own models that answer over HTTP, by the tutorial's own text.

    PYTHONPATH=tests/support python benchmarks/stopwatch.py [--limit-s 60] [--most-commands 5] [--page PAGE]

Builds the wheel of what is committed, makes a fresh environment and an empty folder, and does there what
docs/tutorials/scikit-learn.md says, with its files written at once. The server counts until it is ready, and each
answer is compared with the page's. Exits with 1 if there are more commands than wished, or if they take longer. The
installation is told apart: how long it takes is up to the package index and the network.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from pathlib import Path

from documents import Step, matches, steps
from servers import free_port

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/tutorials/scikit-learn.md"
READY_WITHIN_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--limit-s", type=float, default=60.0, help="from the wheel installed to the last answer")
    parser.add_argument("--most-commands", type=int, default=5)
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        newcomer = Newcomer(Path(folder))
        newcomer.prepare()
        try:
            for step in steps(given.page.read_text(encoding="utf-8")):
                newcomer.follow(step)
        finally:
            newcomer.leave()
    installing, after = newcomer.taken_s[0][1], sum(taken_s for _, taken_s in newcomer.taken_s[1:])
    for command, taken_s in newcomer.taken_s:
        print(f"{taken_s:8.2f} s  {command}")
    print(f"{len(newcomer.taken_s)} commands: {installing:.1f} s to install, then {after:.1f} s to the last answer")
    return int(len(newcomer.taken_s) > given.most_commands or after > given.limit_s)


class Newcomer:
    """Someone with a fresh environment who follows a page.

    Attributes:
        taken_s: each command, and how long it took.
    """

    def __init__(self, folder: Path) -> None:
        self.taken_s: list[tuple[str, float]] = []
        self._folder = folder / "own"
        self._environment = folder / "environment"
        self._built = folder / "built"
        self._wheel = ""
        self._ports = {"8000": free_port(), "8001": free_port(), "8002": free_port()}
        self._server: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """Build the wheel of HEAD, and make an environment without anything."""
        source = self._built / "source"
        source.mkdir(parents=True)
        self._folder.mkdir()
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", str(source)], input=archive, check=True)
        build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(self._built), str(source)]
        subprocess.run(build, check=True, capture_output=True)
        self._wheel = str(next(self._built.glob("*.whl")))
        venv.create(self._environment, with_pip=True)

    def follow(self, step: Step) -> None:
        """Write the file, or run the command, of a step of the page."""
        if step.kind == "file":
            path = self._folder / step.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.text, encoding="utf-8")
        elif step.kind == "command":
            began_s = time.monotonic()
            if step.text.startswith("trireme serve "):
                self._serve(step.text)
            else:
                self._run(step)
            self.taken_s.append((step.text, time.monotonic() - began_s))

    def _run(self, step: Step) -> None:
        command = step.text
        for port, free in self._ports.items():
            command = command.replace(f"localhost:{port}", f"127.0.0.1:{free}")
        if command.startswith("pip install "):
            command = command.replace("trireme-server", self._wheel)
        done = subprocess.run(
            command, shell=True, cwd=self._folder, env=self._variables(), capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        assert step.shown is None or matches(step.shown, done.stdout), f"{command}\n{done.stdout}\nis not\n{step.shown}"

    def _serve(self, command: str) -> None:
        flags = [
            f"--{name}-port={port}"
            for name, port in zip(("http", "grpc", "metrics"), self._ports.values(), strict=True)
        ]
        words = [*shlex.split(command), *flags, "--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]
        words[0] = str(self._environment / "bin" / words[0])
        log = (self._folder / "log").open("wb")
        self._server = subprocess.Popen(words, cwd=self._folder, env=self._variables(), stdout=log, stderr=log)
        until_s = time.monotonic() + READY_WITHIN_S
        while not self._ready():
            assert self._server.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < until_s, "the server is not ready"
            time.sleep(0.02)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._ports['8000']}/v2/health/ready", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, ConnectionError):
            return False

    def _variables(self) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return {**own, "PATH": f"{self._environment / 'bin'}{os.pathsep}{own['PATH']}", "NO_COLOR": "1"}

    def leave(self) -> None:
        """End the server."""
        if self._server is not None:
            self._server.terminate()
            self._server.wait()


if __name__ == "__main__":
    sys.exit(main())
