"""Starting the process of a Python model, or its thread in the server's process, passing on what it prints, and getting
rid of it."""

from __future__ import annotations

import codecs
import contextlib
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..engine.backends.confinement import Account, Confinement
from ..engine.backends.interface import ModelFiles, ProcessLostError
from ..engine.config.model import ModelConfig
from ..engine.errors import FailureReason, InternalError
from ..engine.repository.temporary import TemporaryFolder
from ..engine.repository.uploads import DATA_SUFFIXES
from .child.channel import Channel, ChannelClosedError, socket_pair
from .child.process import ModelProcess
from .child.process_host import ProcessHost
from .child.utils.event_loop import EventLoop
from .slices import shorten_slices

_CHILD = Path(__file__).parent / "child"
MAIN = _CHILD / "main.py"
_CONFINE = _CHILD / "confine.py"

logger = logging.getLogger("trireme.python")

_NOT_CONFINED = Confinement()

_Popen = subprocess.Popen[bytes]

_CANNOT_START = (OSError, RuntimeError, ValueError, OverflowError, MemoryError, subprocess.SubprocessError)
"""A RuntimeError: there can be no more threads."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """Which Python hosts a model: a command, to be followed by the file to run, and variables to set on top of the
    server's own; empty ones are taken away."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


class Process:
    """A running process, in a session of its own: what a terminal sends to the server does not reach it, and what it
    starts can be ended with it. Its slices may be shortened to `slice_us` (`slices`). InternalError if it cannot be
    started.

    Of pipes it has the writing end of its bell (`child.protocol`), and the reading ends of stdout and stderr, which
    their reader closes. The descriptor `ended` can be read when the process has ended."""

    killable = True

    def __init__(
        self, name: str, interpreter: Interpreter, confinement: Confinement = _NOT_CONFINED, slice_us: int = 0
    ) -> None:
        ours, theirs = socket_pair()
        ours.setblocking(False)
        hears, self.bell = os.pipe()
        started: Future[_Popen] = Future()
        with theirs:
            command = [*interpreter.command, str(MAIN), str(theirs.fileno()), str(hears)]
            logger.debug("Starting Python backend stub: %s %s", shlex.join(command), name)

            begin = partial(start, command, interpreter.environment, confinement, (theirs.fileno(), hears))
            self._holder = threading.Thread(target=_hold, args=(begin, started), name=f"{name} process", daemon=True)
            try:
                self._holder.start()
                popen = started.result()
            except _CANNOT_START as error:
                ours.close()
                os.close(self.bell)
                raise InternalError(f"cannot start the process of instance '{name}': {error}") from None
            finally:
                os.close(hears)
        self._popen = popen
        self.channel = Channel(ours, trusted=False, checked=confinement.account is not None)
        self.pid = popen.pid
        if slice_us:
            shorten_slices(self.pid, slice_us)
        self.ended = os.pidfd_open(self.pid)
        assert popen.stdout is not None, "these are pipes"
        assert popen.stderr is not None, "both"
        with popen.stdout as stdout, popen.stderr as stderr:
            self.stdout, self.stderr = os.dup(stdout.fileno()), os.dup(stderr.fileno())

    def wait(self, timeout_s: float) -> bool:
        """Whether it ends within this time."""
        self._holder.join(timeout_s)
        return self.status is not None

    @property
    def status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._popen.poll()

    def kill(self) -> None:
        """End it, and what it has started and not put into a session of its own. Nothing happens once `status` has told
        of its end: its number may be another's by then."""
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Give back what is left of it. It must have ended, or been killed."""
        self.channel.close()
        os.close(self.bell)
        self._popen.poll()
        os.close(self.ended)


def start(
    command: list[str], environment: Mapping[str, str], confinement: Confinement, descriptors: tuple[int, ...] = ()
) -> _Popen:
    """Start a confined process, whose output goes to pipes. OSError, SubprocessError or ValueError if it cannot start.

    The server's interpreter, which confines the process first, does not see the environment (`Interpreter`): that may
    name other libraries."""
    account = confinement.account
    confine = [sys.executable, "-I", "-S", str(_CONFINE), str(os.getpid()), str(confinement.memory_bytes)]
    variables = [f"{name}={value}" for name, value in environment.items()]
    return subprocess.Popen(
        [*confine, *variables, "--", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=descriptors,
        env=_variables(account),
        start_new_session=True,
        user=None if account is None else account.uid,
        group=None if account is None else account.gid,
        extra_groups=None if account is None else account.groups,
    )


def _variables(account: Account | None) -> dict[str, str]:
    """The server's variables, with those of the user on top, but for the empty ones."""
    own = {} if account is None else {"HOME": account.home, "USER": account.name, "LOGNAME": account.name}
    return {name: value for name, value in {**os.environ, **own}.items() if value}


def _hold(begin: Callable[[], _Popen], started: Future[_Popen]) -> None:
    """Start a process, and live as long as it does: the system ends it with this thread (`child.confine`)."""
    try:
        popen = begin()
    except _CANNOT_START as error:
        started.set_exception(error)
        return
    started.set_result(popen)
    with contextlib.suppress(ChildProcessError):  # its status has been asked for already
        os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOWAIT)


def unhealthy(name: str) -> ProcessLostError:
    """The process of this instance is lost (docs/reference/python-backend.md#readiness)."""
    return ProcessLostError(f"Stub process '{name}' is not healthy.", reason=FailureReason.BACKEND)


def describe_status(status: int | None) -> str:
    """How a process ended, for people: ``killed by SIGSEGV``, ``exit status 1``."""
    if status is None:
        return "still running"
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"


# Which Python hosts a model: the server's own, or that of an environment of the model's (EXECUTION_ENV_PATH).
#
# An environment is a directory as ``python -m venv`` or conda make them, or one packed as ``.tar.gz`` (conda-pack),
# which is unpacked once into a temporary directory that goes with the server. It is activated by its own script, as on
# the command line, so that whatever that sets is set.


PARAMETER = "EXECUTION_ENV_PATH"
PACKED_FOR_BACKEND = "pb_exec_env_model.py.tar.gz"
"""In the directory of a Python-based backend: the environment of models that name none."""

_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
_ACTIVATE = '. "$0" && exec "$@"'


class Environments:
    """The environments of a backend's models. Callable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unpacked: dict[tuple[str, int, int], TemporaryFolder] = {}

    def interpreter(
        self, config: ModelConfig, files: ModelFiles, backend_directory: Path | None, *, shared: bool = False
    ) -> Interpreter:
        """What to run a model's process with; the directory is a Python-based backend's. If `shared`, other users than
        the server's read the environment, too. InternalError if the environment is not there, or is none."""
        given = config.parameters.get(PARAMETER, "")
        path = Path(given.replace(_MODEL_DIRECTORY, str(files.model_directory), 1))
        if not given:
            packed = None if backend_directory is None else backend_directory / PACKED_FOR_BACKEND
            if packed is None or not packed.is_file():
                return Interpreter((sys.executable,), {})
            path = packed
        if path.is_file():
            path = self._unpack(path, shared)
        return _interpreter_of(path)

    def _unpack(self, path: Path, shared: bool) -> Path:
        if path.suffix.lower() in DATA_SUFFIXES:  # such a file may have come with a load request that may bring no code
            raise InternalError(
                f"cannot unpack the Python environment '{path}': it must be named as an archive, but "
                f"'{path.suffix}' is for data"
            )
        status = path.stat()
        key = (str(path.resolve()), status.st_mtime_ns, status.st_size)
        with self._lock:
            if key not in self._unpacked:
                directory = TemporaryFolder("environment")
                try:
                    with tarfile.open(path) as archive:
                        archive.extractall(directory.path, filter="tar")
                except (OSError, tarfile.TarError) as error:
                    directory.remove()
                    raise InternalError(f"cannot unpack the Python environment '{path}': {error}") from None
                if shared:
                    directory.share()
                self._unpacked[key] = directory
            return self._unpacked[key].path


def _interpreter_of(environment: Path) -> Interpreter:
    activate = environment / "bin" / "activate"
    if not activate.is_file():
        raise InternalError(
            f"Path {activate} does not exist. The Python environment should contain an 'activate' script."
        )
    python = environment / "bin" / "python"
    if not os.access(python, os.X_OK):
        raise InternalError(f"the Python environment '{environment}' has no 'bin/python' that can be executed")
    libraries = str(environment / "lib")
    if os.environ.get("LD_LIBRARY_PATH"):
        libraries += os.pathsep + os.environ["LD_LIBRARY_PATH"]
    bash = shutil.which("bash")
    command = (bash, "-c", _ACTIVATE, str(activate), str(python)) if bash else (str(python),)
    return Interpreter(command, {"LD_LIBRARY_PATH": libraries, "PYTHONHOME": "", "PYTHONPATH": ""})


# Python models in the server's own process, on a thread: for small code that one trusts.
#
# There is no process to start and to lose, and ``breakpoint()`` works; but what such a model does to its process it
# does to the server, and it takes turns with the server at the interpreter. A model asks for it by the parameter
# ``EXECUTION`` with the value ``in_process``.
#
# Nothing else is different. The thread runs what a model's process runs (`child.process`), and is spoken to in the same
# way, over a socket; so all that holds there, from back-pressure to calls to other models, holds here. A thread cannot
# be killed, though: one that hangs is abandoned, and ends by itself when the model returns.


class ModelThread:
    """A thread in place of a `Process`, with the same attributes and methods; `make_loop` makes, from a name, what
    coroutines of the model run on."""

    stdout = stderr = -1
    killable = False

    def __init__(self, name: str, make_loop: Callable[[str], EventLoop]) -> None:
        ours, theirs = socket_pair()
        ours.setblocking(False)
        self.channel = Channel(ours, trusted=False)
        self.ended, self._end = os.pipe()
        self._hears, self.bell = os.pipe()
        arguments = (Channel(theirs), make_loop(f"{name} coroutines"))
        self._thread = threading.Thread(target=self._run, args=arguments, name=name, daemon=True)
        self._thread.start()

    def _run(self, channel: Channel, loop: EventLoop) -> None:
        host = ProcessHost(channel, loop)
        threading.Thread(target=host.keep_tidy, name=f"{self._thread.name} tidy", daemon=True).start()
        try:
            ModelProcess(host, self._hears).serve()
        except ChannelClosedError:
            return  # the server does not want it any more
        finally:
            host.close()
            os.close(self._end)
            loop.stop()  # which the model's end has done if there was one

    @property
    def status(self) -> int | None:
        return None if self._thread.is_alive() else 0

    def wait(self, timeout_s: float) -> bool:
        """Whether it ends within this time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def kill(self) -> None:
        """Send nothing more to it, and receive nothing more."""
        self.channel.hang_up()

    def close(self) -> None:
        """Give back what is left of it."""
        self.channel.close()
        os.close(self.bell)
        os.close(self.ended)


# What a model's process prints, or has logged, on its way to the server's console and log.
#
# What it prints is passed on as it is: whole lines, in pieces of many, as records with the attribute `bare`, which the
# log writes without a preamble. JSON logs make an object of each line.


LONGEST_LINE = 65_536
"""Characters; longer lines are broken."""

_READ_BYTES = 65_536
_PIPE_BYTES = 1 << 20
"""No pipe of a user's holds more."""

_LEVELS = {"INFO": logging.INFO, "WARNING": logging.WARNING, "ERROR": logging.ERROR, "VERBOSE": logging.DEBUG}


def log_line(level: str, filename: str, line: int, text: str) -> None:
    """A line in the server's log, as if it came from the user's file; INFO if the utilities know no such level."""
    number = _LEVELS.get(level, logging.INFO)
    if logger.isEnabledFor(number):
        logger.handle(logger.makeRecord(logger.name, number, filename, line, text, (), None))


class OutputLog:
    """One of a process's output streams: the reading end of a pipe, which `close` closes. INFO lines go to the server's
    standard output, graver ones to its standard error."""

    def __init__(self, descriptor: int, name: str, pace: Pace, level: int = logging.INFO) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._name = name
        self._pace = pace
        self._level = level
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._rest = ""

    def read(self, now_s: float) -> float | None:
        """Pass on the lines that there are. Seconds to wait before the next call; None at the end of the stream."""
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return 0.0
        lines = self._take(data)
        return self._pace.spend(len(data), lines // PRINTED_PER_LINE, now_s) if data else None

    def close(self) -> None:
        """Pass on what is left, and close the pipe. Processes that the model started may still hold the other end, and
        write faster than it can be passed on: more than a pipe holds was not left by the model."""
        left = _PIPE_BYTES
        data = b"?"
        while left > 0 and data:
            try:
                data = os.read(self._descriptor, min(left, _READ_BYTES))
            except BlockingIOError:
                break
            left -= len(data)
            self._take(data)
        self._take(b"")
        os.close(self._descriptor)

    def _take(self, data: bytes) -> int:
        """Pass on all whole lines, with this at their end (nothing: there will not be more); how many they are."""
        text = self._rest + self._decoder.decode(data, final=not data)
        end = text.rfind("\n") + 1 if data else len(text)
        while len(text) - end >= LONGEST_LINE:  # of the last one, broken
            if end:
                self._write(text[:end])
            text = text[end:]
            end = LONGEST_LINE
        piece, self._rest = text[:end], text[end:]
        if piece:
            self._write(piece)
        return piece.count("\n") + 1

    def _write(self, piece: str) -> None:
        logger.log(self._level, "%s", piece.removesuffix("\n"), extra={"bare": True, "model": self._name})


# How fast a model's output and log lines are taken in.
#
# Rules:
#  1. Output costs time: `BYTES_PER_S` and `LINES_PER_S` say how much. What it costs is owed from then on.
#  2. Up to `BURST_S` may be owed. What is more has to be waited for before more is taken; the model waits meanwhile,
#     when its pipe, or its window for log lines, is full.


BYTES_PER_S = 32 << 20
LINES_PER_S = 10_000
PRINTED_PER_LINE = 5
"""Lines of output that cost as much as a log line: they are passed on together."""
BURST_S = 0.25


class Pace:
    """The pace of one instance, whatever it writes to."""

    __slots__ = ("_paid_at_s",)

    def __init__(self) -> None:
        self._paid_at_s = 0.0

    def spend(self, nbytes: int, lines: int, now_s: float) -> float:
        """Output was taken, of which the log makes so many lines; seconds to wait before more is."""
        cost_s = nbytes / BYTES_PER_S + lines / LINES_PER_S
        self._paid_at_s = max(self._paid_at_s, now_s) + cost_s
        return max(0.0, self._paid_at_s - now_s - BURST_S)
