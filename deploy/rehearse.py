"""Play the Containerfile where there is no builder of images: `make check-deploy`, or by hand, as root.

    python deploy/rehearse.py

Each stage begins with this machine's own files in place of the base image, in an overlay that goes at the end; so this
Python must have the version of that image. The instructions are carried out in order, with what
`Containerfile.dockerignore` lets through. Then the image's command is started as its user, with one model, as the first
process of its own; the health check has to find that it lives, and a signal has to end it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
MODEL = ROOT / "model_repository" / "identity_fp32"
PATIENCE_S = 60.0
_INSIDE = "TRIREME_REHEARSAL"
_LOOPBACK = "import fcntl,socket,struct; fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh22x', b'lo', 1))"
"""Brings up the loopback of a new network: SIOCSIFFLAGS, IFF_UP."""


def instructions(text: str) -> list[tuple[str, str]]:
    """Of a Containerfile: the word, and what follows."""
    lines = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line.strip())]


def sources(folder: Path) -> None:
    """Copy what a builder is given."""
    for line in (HERE / "Containerfile.dockerignore").read_text().splitlines():
        if line.startswith("!"):
            path, target = ROOT / line[1:], folder / line[1:]
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(path, target)


class Stage:
    """A stage of the Containerfile, with a root of its own.

    Attributes:
        root: where it is.
        variables: ARG and ENV.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.variables = {"PATH": f"{Path(sys.base_prefix) / 'bin'}:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        self.directory, self.user, self.command = "/", "0:0", [""]
        for each in ("upper", "work", "root"):
            (folder / each).mkdir(parents=True)
        layers = f"lowerdir=/,upperdir={folder / 'upper'},workdir={folder / 'work'}"
        call("mount", "-t", "overlay", "overlay", "-o", layers, str(self.root))
        call("mount", "--rbind", "/dev", str(self.root / "dev"))
        for parent in Path(sys.base_prefix).parents:  # the user of the image has to reach Python
            within = self.root / parent.relative_to("/")
            within.chmod(within.stat().st_mode | 0o055)
        for name in ("passwd", "group"):  # an image has no users but the system's
            if (file := self.root / "etc" / name).exists():
                lines = file.read_text().splitlines(keepends=True)
                file.write_text("".join(line for line in lines if not self._is_users(line)))

    @staticmethod
    def _is_users(line: str) -> bool:
        fields = line.split(":")
        return len(fields) > 2 and fields[2].isdigit() and 1000 <= int(fields[2]) < 60000

    def within(self, words: Sequence[str], **variables: str) -> list[str]:
        """The command line that runs these words in the stage."""
        given = {**self.variables, **variables}
        settings = [f"{name}={value}" for name, value in given.items()]
        proxies = [
            f"{name}={value}" for name, value in os.environ.items() if re.match(r"(?i)(pip_|.*_proxy$|ssl_)", name)
        ]
        directory = f"cd {shlex.quote(self.directory)} && exec {shlex.join(words)}"
        user = f"--userspec={self.user}"
        return [
            "chroot",
            user,
            str(self.root),
            "env",
            "--ignore-environment",
            *proxies,
            *settings,
            "sh",
            "-c",
            directory,
        ]

    def copy(self, words: Sequence[str], given: Path, stages: Mapping[str, Stage]) -> None:
        """COPY."""
        options = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
        *paths, last = (word for word in words if not word.startswith("--"))
        origin = stages[options["from"]].root if "from" in options else given
        target = self.root / Path(self.directory, last).relative_to("/")
        for path in (origin / each.lstrip("/") for each in paths):
            if path.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                call("cp", "--archive", f"{path}/.", str(target))
            else:
                shutil.copy(path, target)
            if "chmod" in options:
                for each in path.iterdir() if path.is_dir() else [path]:
                    (target / each.name).chmod(int(options["chmod"], 8))

    def play(self, word: str, rest: str, given: Path, stages: Mapping[str, Stage]) -> None:
        """An instruction."""
        match word:
            case "ARG":
                name, _, value = rest.partition("=")
                self.variables[name] = value
            case "ENV":
                self.variables |= dict(each.split("=", 1) for each in shlex.split(rest))
            case "WORKDIR":
                self.directory = rest
                (self.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "RUN":
                call(*self.within(["sh", "-c", rest]))
            case "COPY":
                self.copy(rest.split(), given, stages)
            case "USER":
                self.user = rest
            case "ENTRYPOINT" | "CMD":
                self.command = [*self.command, *re.findall(r'"([^"]*)"', rest)]
            case _:
                assert word in ("EXPOSE", "STOPSIGNAL", "HEALTHCHECK"), f"{word} is not rehearsed"


def call(*words: str) -> None:
    """Run a command. SystemExit with what it says if it fails."""
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        sys.exit(f"{shlex.join(words)}: {done.stdout}")


def start(image: Stage) -> None:
    """Start the image's command, ask after its health, and stop it. SystemExit if something is wrong."""
    shutil.copytree(MODEL, image.root / "models" / MODEL.name)
    own = ["unshare", "--net", "--pid", "--fork", "--kill-child", f"--mount-proc={image.root}/proc", "sh", "-c"]
    command = f"{sys.executable} -c {shlex.quote(_LOOPBACK)} && exec {shlex.join(image.within(image.command[1:]))}"
    server = subprocess.Popen([*own, command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
    ends_s = time.monotonic() + PATIENCE_S
    try:
        while not (found := children.read_text().split()) or not healthy(image, found[0]):
            if server.poll() is not None or time.monotonic() > ends_s:
                sys.exit("the image's command does not get healthy")
            time.sleep(0.2)
        os.kill(int(found[0]), signal.SIGTERM)
        said, _ = server.communicate(timeout=PATIENCE_S)
    finally:
        server.kill()
    if server.returncode or "successfully loaded 'identity_fp32'" not in said:
        sys.exit(f"the image's command ended with {server.returncode}: {said[-2000:]}")


def healthy(image: Stage, process: str) -> bool:
    words = ["nsenter", f"--target={process}", "--net", "--pid", "--mount", *image.within(["trireme-health"])]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def rehearse() -> None:
    """SystemExit with what is wrong."""
    folder = Path(tempfile.mkdtemp(prefix="trireme-rehearsal-"))
    call("mount", "-t", "tmpfs", "tmpfs", str(folder))
    given = folder / "given"
    given.mkdir()
    sources(given)
    stages: dict[str, Stage] = {}
    stage = None
    for word, rest in instructions((HERE / "Containerfile").read_text()):
        if word == "FROM":
            stage = stages[rest.partition(" AS ")[2]] = Stage(folder / f"stage{len(stages)}")
        elif stage is not None:  # else it is the argument that names the base
            stage.play(word, rest, given, stages)
    start(stages[""])


if __name__ == "__main__":
    if os.environ.get(_INSIDE):
        rehearse()
    else:
        words = ["unshare", "--mount", sys.executable, *sys.argv]
        sys.exit(subprocess.run(words, env={**os.environ, _INSIDE: "1"}, check=False).returncode)
