"""Drives a user's ``TritonPythonModel`` (docs/reference/python-backend.md).

Rules of `begin`:
 1. The answers to a batch have an element a request: the response that ends the request, or None.
 2. None stands for a request that its sender has answered, will answer, or that is to come again (its release flags).
 3. What user code raises, or returns against the rules, is an error for every request of the batch that is still open.
 4. A request that cannot be answered any more, since neither a response nor a sender exists, is abandoned, and so
    answered by the host with an error.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import sys
import traceback
import types
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Optional

from . import context
from . import triton_python_backend_utils as pb_utils
from .event_loop import AsyncioLoop, EventLoop
from .request import RELEASE_ALL, RELEASE_RESCHEDULE, InferenceRequest
from .response import TWICE, Host, InferenceResponse, error_response


class Runner:
    """One instance of a user's model. Its methods are called one at a time, but for `is_ready`. ModelError if the file
    is not there, cannot be imported, or lacks the class.

    Args:
        args: for ``initialize``; model_repository and model_version say where the model is.
        search_paths: for imports, besides the version's and the model's directory.
        package: name for the version's directory as a package; default is the version, which several models in one
            process would quarrel about.
    """

    def __init__(
        self,
        host: Host,
        model_path: str,
        args: dict[str, str],
        search_paths: Iterable[str] = (),
        package: str | None = None,
        loop: EventLoop | None = None,
    ) -> None:
        self._host = host
        self._path = model_path
        self._args = args
        self._package = package or args["model_version"]
        self._directory = args["model_repository"]
        version_directory = os.path.join(self._directory, args["model_version"])
        self._context = context.ModelContext(host, version_directory)
        self._loop = loop or AsyncioLoop(f"{host.instance_name} coroutines")
        self._model: Any = None
        pb_utils.install()
        context.install(self._context)
        for path in (version_directory, self._directory, *search_paths):
            if path not in sys.path:
                sys.path.append(path)  # last, behind what is installed
        self._class: Any = None
        try:
            with context.entered(self._context):
                self._class = import_model(model_path, self._package)
        finally:
            if self._class is None:
                self._leave()

    def auto_complete(self, config_json: str) -> str:
        """The configuration as the model completes it; as it was if it does not. ModelError if the model raised
        something, or returned something else."""
        if not hasattr(self._class, "auto_complete_config"):
            return config_json
        with self._user_code():
            completed = self._class.auto_complete_config(pb_utils.ModelConfig(config_json))
            if not isinstance(completed, pb_utils.ModelConfig):
                raise ModelError(
                    f"auto_complete_config function in model '{self._args['model_name']}' must return a valid "
                    "pb.ModelConfig object."
                )
            return completed._as_json()

    def initialize(self) -> None:
        """Make the object, and let it prepare itself. ModelError if it raised something."""
        self._context.connected = True
        with self._user_code():
            self._model = self._class()
            if hasattr(self._model, "initialize"):
                self._model.initialize(self._args)
        self._context.serving = True

    @property
    def overlaps(self) -> bool:
        """Whether batches may be begun while others run: ``execute`` is a coroutine, which answers at its end."""
        return inspect.iscoroutinefunction(getattr(self._class, "execute", None)) and not self._host.decoupled

    def begin(self, requests: list[InferenceRequest], over: Callable[[Answered], object]) -> None:
        """Execute a batch: see the rules above. Never raises. `over` is called with the answers, and must not raise:
        here, or, when the coroutine of a model that is not decoupled has ended, on the event loop's thread."""
        try:
            with context.entered(self._context):
                returned = self._execute(requests)
            if returned.__class__ is list or not inspect.isawaitable(returned):
                answers = checked(requests, returned, self._host)
            elif self._host.decoupled:
                self._loop.spawn(self._execute_apart(returned, requests))
                answers: Answered = [None] * len(requests)
            else:
                self._loop.spawn(self._execute_later(returned, requests, over))
                return
        except BaseException as error:  # noqa: BLE001 - user code, which may even call sys.exit
            answers = self._failed(requests, error)
        over(answers)

    @property
    def checks(self) -> bool:
        """Whether the model says of itself if it is ready."""
        return hasattr(self._model, "is_ready")

    def is_ready(self) -> bool:
        """What the model says of itself; True if it does not say. May be called on another thread, beside the rest.
        ModelError if it raised something, or said neither True nor False."""
        model = self._model
        if not hasattr(model, "is_ready"):
            return True
        with self._user_code():
            ready = model.is_ready()
            if inspect.isawaitable(ready):
                ready = self._loop.run(self._entered(ready))
        if not isinstance(ready, bool):
            raise ModelError("is_ready() must return a boolean value")
        return ready

    def finalize(self) -> None:
        """Let the model give back what it holds. What it raises is logged."""
        self._context.serving = False
        self._loop.stop()
        try:
            with context.entered(self._context):
                if hasattr(self._model, "finalize"):
                    self._model.finalize()
        except BaseException as error:  # noqa: BLE001 - the same
            self._log(describe(error), error)
        self._model = None
        self._leave()

    def _leave(self) -> None:
        context.uninstall(self._context)
        forget(self._package, self._directory)

    def _execute(self, requests: list[InferenceRequest]) -> Any:
        if not hasattr(self._class, "execute"):
            raise ModelError(f"Python model {self._path} does not implement `execute` method.")
        return self._model.execute(requests.copy())  # user code may take its list apart

    async def _entered(self, returned: Awaitable[Any]) -> Any:
        with context.entered(self._context):
            return await returned

    async def _execute_later(
        self,
        returned: Awaitable[Any],
        requests: list[InferenceRequest],
        over: Callable[[Answered], object],
    ) -> None:
        """Wait for a coroutine, and hand on what it answers. One that ends by a cancellation of its own has failed."""
        try:
            answers = checked(requests, await self._entered(returned), self._host)
        except BaseException as error:  # noqa: BLE001 - user code; what passed here would end the event loop
            answers = self._failed(requests, error)
        over(answers)

    async def _execute_apart(self, returned: Awaitable[Any], requests: list[InferenceRequest]) -> None:
        """Wait for a decoupled model's coroutine, and answer what is open if it fails."""
        try:
            checked(requests, await self._entered(returned), self._host)
        except BaseException as error:
            if not (self._context.serving or isinstance(error, Exception)):
                raise  # cancelled, since the model is unloaded
            for request, response in zip(requests, self._failed(requests, error)):
                if response is not None:
                    self._host.send(request._key, response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _failed(self, requests: list[InferenceRequest], error: BaseException) -> Answered:
        text = f"Failed to process the request(s) for model '{self._host.instance_name}', message: {self._told(error)}"
        self._log(text, error)
        return failed(requests, text)

    def _log(self, text: str, error: BaseException) -> None:
        frames = user_frames(error) or [(self._path, 0, "")]
        filename, line, _ = frames[0]
        with contextlib.suppress(pb_utils.TritonModelException):  # the server is gone, and the log with it
            self._host.log("ERROR", filename, line, text)

    @contextlib.contextmanager
    def _user_code(self) -> Iterator[None]:
        """Run code of the model, and tell what it raises as a `ModelError`."""
        try:
            with context.entered(self._context):
                yield
        except BaseException as error:
            raise ModelError(self._told(error)) from error

    def _told(self, error: BaseException) -> str:
        if isinstance(error, ModelError):
            return str(error)
        advice = self._loop.advice(error)
        return f"{describe(error)}\n{advice}" if advice else describe(error)


# What a batch is answered with, for what user code has returned (docs/reference/python-backend.md#execute,
# docs/reference/python-backend.md#senders-and-decoupled-models).


Answered = list[Optional[InferenceResponse]]
"""An element a request: its last response, or None if there is nothing to be sent now."""


def checked(requests: list[InferenceRequest], returned: Any, host: Host) -> Answered:
    """The answers. ModelError if user code may not return this; nothing was changed then."""
    if host.decoupled and returned is not None:
        raise ModelError(
            f"Python model '{host.instance_name}' is using the decoupled mode and the execute function must return "
            "None."
        )
    if returned is None:
        return [_left_open(request) for request in requests]
    if not isinstance(returned, list):
        raise ModelError(f"Expected a list in the execute return, found type '{type(returned)}'.")
    if len(returned) != len(requests):
        raise ModelError(
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(returned)}\n"
        )
    simple = True  # each has the one response that it should have, as nearly always
    for request, response in zip(requests, returned):
        usual = request._sender is None and request._release_flags == RELEASE_ALL
        if response.__class__ is not InferenceResponse or not usual:
            simple = False
            if response is not None:
                _check(request, response)
    if simple:
        return returned
    return [
        _left_open(request) if response is None else _ended(request, response)
        for request, response in zip(requests, returned)
    ]


def failed(requests: list[InferenceRequest], text: str) -> Answered:
    """The same error for every request that is still open."""
    response = error_response(text)
    for request in requests:
        request._release_flags = RELEASE_ALL
    return [_ended(request, response) for request in requests]


def _check(request: InferenceRequest, response: Any) -> None:
    if request._release_flags == RELEASE_RESCHEDULE:
        raise ModelError(
            "Expected a None object in the execute function return list for reschduled request, found type "
            f"'{type(response)}'."
        )
    if not isinstance(response, InferenceResponse):
        raise ModelError(
            "Expected an 'InferenceResponse' object in the execute function return list, found type "
            f"'{type(response)}'."
        )
    if request._sender is not None and request._sender._responded:
        raise ModelError(TWICE)


def _ended(request: InferenceRequest, response: InferenceResponse) -> InferenceResponse | None:
    """`response`, unless the request's sender has ended it."""
    return response if request._sender is None or request._sender._finish() else None


def _left_open(request: InferenceRequest) -> None:
    if request._release_flags == RELEASE_RESCHEDULE:
        if request._sender is not None:
            request._sender._put_off = True
    else:
        request.get_response_sender()  # whose destruction tells the host that no answer can come any more


# Importing a user's ``model.py`` (docs/reference/python-backend.md#files-and-imports).
#
# The module is named ``<version>.<file stem>``, and there is a package ``<version>`` whose path is the version's
# directory, so that ``from .helper import x`` works; the directory itself is on ``sys.path``, so that ``import helper``
# does too.


CLASS = "TritonPythonModel"


def import_model(path: str, package: str) -> type:
    """The user's class, from a file whose directory gets `package` as its name. ModelError if there is no such file, it
    cannot be imported, or has no such class."""
    if not os.path.isfile(path):
        raise ModelError(f"Python model file not found in '{path}'")
    name = f"{package}.{os.path.splitext(os.path.basename(path))[0]}"
    parent = types.ModuleType(package)
    parent.__path__ = [os.path.dirname(path)]
    sys.modules[package] = parent
    specification = importlib.util.spec_from_file_location(name, path)
    if specification is None or specification.loader is None:
        raise ModelError(f"Python model file '{path}' does not end in .py")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    writes_no_cache = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # a server that follows its repository would take a cache for a change of the model
    try:
        specification.loader.exec_module(module)
    except BaseException as error:
        raise ModelError(describe(error)) from error
    finally:
        sys.dont_write_bytecode = writes_no_cache
    if not isinstance(getattr(module, CLASS, None), type):
        raise ModelError(f"AttributeError: module '{name}' has no attribute '{CLASS}'")
    return getattr(module, CLASS)


def forget(package: str, directory: str) -> None:
    """Let a later import read everything under `directory` anew, and give back what it holds now."""
    inside = os.path.join(directory, "")
    for name, module in sys.modules.copy().items():  # in one go: other threads may be importing
        file = getattr(module, "__file__", None) or ""
        if name == package or name.startswith(f"{package}.") or file.startswith(inside):
            sys.modules.pop(name, None)  # another thread may be forgetting it, too
    sys.path[:] = [path for path in sys.path if not os.path.join(path, "").startswith(inside)]


# How what user code raised is told to people: type, text, and where in the user's own code
# (docs/reference/python-backend.md#error-texts).


MOST_CHARACTERS = 32 << 10

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""What user code calls; its frames say nothing to the user."""
HIDES = "__trireme_hides_frames__"
"""Global of such a module."""
_DRIVER = os.path.abspath(__file__)
"""What calls user code; neither do its frames, or those outside of them (of an event loop, say)."""


class ModelError(Exception):
    """User code failed, or is not what it must be; the text is for people, with the user's file and line."""


def describe(error: BaseException) -> str:
    """``ValueError: text``, then the user's frames, the innermost first. A group of one exception, as nurseries and
    task groups raise, is about that one."""
    while len(getattr(error, "exceptions", ())) == 1:
        error = error.exceptions[0]  # type: ignore[attr-defined]
    frames = user_frames(error)
    where = "".join(f"  {filename}({line}): {function}\n" for filename, line, function in frames)
    text = f"{type(error).__name__}: {_text(error)}"
    return shortened(f"{text}\n\nAt:\n{where}" if where else text)


def shortened(text: str) -> str:
    """A text for the server: of one that is longer than `MOST_CHARACTERS`, the beginning and the end."""
    if len(text) <= MOST_CHARACTERS:
        return text
    half = MOST_CHARACTERS // 2
    return f"{text[:half]}\n... ({len(text) - 2 * half} characters) ...\n{text[-half:]}"


def user_frames(error: BaseException) -> list[tuple[str, int, str]]:
    """File, line and function of the frames outside of this folder and the import machinery, the innermost first; nor
    are those of a module there that hides them, since it runs the code of others."""
    walked = traceback.walk_tb(error.__traceback__)
    frames = [
        (frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in walked if HIDES not in frame.f_globals
    ]
    drivers = [number for number, frame in enumerate(frames, 1) if frame[0] == _DRIVER]
    frames = frames[max(drivers, default=0) :]
    frames = [frame for frame in frames if not frame[0].startswith((_OURS, "<frozen "))]
    if not frames and isinstance(error, SyntaxError) and error.filename:
        frames = [(error.filename, error.lineno or 0, "<module>")]
    return frames[::-1]


def _text(error: BaseException) -> str:
    try:
        return str(error) or "<EMPTY MESSAGE>"
    except Exception as second:  # noqa: BLE001 - a __str__ of user code
        return f"<no text: {type(second).__name__}>"
