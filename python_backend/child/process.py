"""The life of a model's process: start, execute what comes, end.

It ends when it is told to, and by itself when the server is gone, whatever the model is doing: a thread watches the
socket's other end.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import select
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from itertools import repeat
from typing import Any

from . import protocol
from .channel import Channel, ChannelClosedError
from .codec import Message, Payload
from .process_host import Forks, ProcessHost
from .utils.event_loop import AsyncioLoop
from .utils.request import RELEASE_RESCHEDULE, InferenceRequest
from .utils.response import InferenceResponse, InferenceResponseSender
from .utils.runner import Answered, ModelError, Runner
from .wire import fitted, read_request, write_error, write_response

_ORPHANED = 1
"""Exit status of a process whose server is gone."""


def run(descriptor: int, bell: int) -> None:
    """Serve one model instance, over the socket with this descriptor; the bell's is the other."""
    _leave_signals_to_the_server()
    if "PYTHONBREAKPOINT" not in os.environ:
        sys.breakpointhook = _refuse_breakpoint
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sock = socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)
    os.set_inheritable(bell, False)
    threading.Thread(target=_end_with_the_server, args=(descriptor,), name="trireme watch", daemon=True).start()
    host = ProcessHost(Channel(sock), AsyncioLoop("trireme coroutines"))
    threading.Thread(target=host.keep_tidy, name="trireme tidy", daemon=True).start()
    Forks(host)
    try:
        ModelProcess(host, bell, _leave).serve()
    except ChannelClosedError:
        _leave()
    sys.stdout.flush()


def _refuse_breakpoint(*_arguments: object, **_named: object) -> None:
    """In place of Python's own debugger, which would find the end of its input at once, and abort what is executed. Who
    attaches a debugger puts a hook of its own here."""
    raise RuntimeError(
        "breakpoint() has no terminal in a process of the model's own: run it in the server's (parameter EXECUTION: "
        "'in_process'), or attach a debugger to --backend-config=python,debug-port=PORT"
    )


def _leave_signals_to_the_server() -> None:
    """What a terminal or a container sends to all processes at once does not concern us: the server tells us what to
    do, when it has finished. What the model starts is ended by SIGTERM as ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)  # to ignore it would be inherited by programs that the model starts
    term = (signal.SIGTERM,)
    os.register_at_fork(  # one that comes before a fork has its own handler waits for that
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, term),
        after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, term),
        after_in_child=_be_terminated_again,
    )


def _be_terminated_again() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))


def _end_with_the_server(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, 0)  # nothing but the hang-up
    poll.poll()
    _leave()


def _leave() -> None:
    os._exit(_ORPHANED)


class ModelProcess:
    """Carries out what the server asks for, in the main thread; whether the model is ready, in one of its own.

    `leave` is called when an answer does not get through. The main thread finds that out, too, unless the model has
    closed the socket while another thread was reading from it."""

    def __init__(self, host: ProcessHost, bell: int, leave: Callable[[], None] = lambda: None) -> None:
        self._host = host
        self._bell = bell
        self._leave = leave
        self._answers_bell = False
        self._send = host.link.send
        self._again: dict[int, weakref.ref[InferenceResponseSender]] = {}  # to be executed once more

    def serve(self) -> None:
        """Until the last message. ChannelClosedError if the server is gone."""
        try:
            self._send((protocol.HELLO, platform.python_version()))
            self._work()
        finally:
            if not self._answers_bell:
                os.close(self._bell)

    def _work(self) -> None:
        runner = self._started(self._host.next_task().head[1])  # START comes first
        if runner is None:
            return
        while (message := self._host.next_task()).head[0] == protocol.EXECUTE:
            self._execute(runner, message)
            del message  # while waiting for the next one, the data of the last one is not held
        runner.finalize()
        self._send((protocol.FINALIZED,))

    def _started(self, settings: dict[str, Any]) -> Runner | None:
        """Load the model; None if that failed."""
        host = self._host
        host.instance_name = settings["args"]["model_instance_name"]
        host.decoupled = settings["decoupled"]
        completed = None
        try:
            if settings["debug_port"]:
                _wait_for_debugger(settings["debug_port"])
            runner = Runner(
                host, settings["model_path"], settings["args"], settings["search_paths"], settings["package"], host.loop
            )
            if settings["auto_complete"]:
                completed = runner.auto_complete(settings["args"]["model_config"])
            else:
                runner.initialize()
        except ModelError as error:
            self._send((protocol.FAILED, str(error)))
            return None
        if runner.checks:
            self._answers_bell = True
            threading.Thread(target=self._answer_bell, args=(runner,), name="trireme readiness", daemon=True).start()
        self._send((protocol.STARTED, completed, runner.overlaps, runner.checks))
        return runner

    def _execute(self, runner: Runner, message: Message) -> None:
        host = self._host
        head, payload = message
        requests = list(map(read_request, head[1], repeat(payload), repeat(host)))
        for request in requests:
            if self._again and (kept := self._again.pop(request._key, None)) and (sender := kept()):
                sender._put_off = False
                request._sender = sender
            else:
                host.opened(request._key)
        host.batch.set(requests[0]._key)
        started_ns = time.perf_counter_ns()
        runner.begin(requests, lambda responses: self._over(requests, responses, started_ns))

    def _over(self, requests: list[InferenceRequest], responses: Answered, started_ns: int) -> None:
        """A batch is over: in the main thread, or in that of the coroutines. One that cannot be answered is the end."""
        sent = False
        try:
            self._done(requests, responses, started_ns)
            sent = True
        except ChannelClosedError:
            self._leave()
        finally:
            if not sent:  # its requests would wait for ever; the main thread is told, too
                self._host.link.channel.hang_up()

    def _done(self, requests: list[InferenceRequest], responses: Answered, started_ns: int) -> None:
        host = self._host
        executed_ns = time.perf_counter_ns()
        payload = Payload()
        answers: list[tuple[int, Any]] = []
        rescheduled: list[int] = []
        for request, response in zip(requests, responses):
            if response is not None:
                answers.append((request._key, self._written(request, response, payload)))
                host.over(request._key)
            elif request._release_flags == RELEASE_RESCHEDULE:
                rescheduled.append(request._key)
                self._put_off(request)
        spent_ns = (executed_ns - started_ns, time.perf_counter_ns() - executed_ns)
        try:
            self._send((protocol.DONE, requests[0]._key, tuple(answers), tuple(rescheduled), spent_ns), payload)
        except ValueError as error:
            fitting = fitted(answers, str(error))
            self._send((protocol.DONE, requests[0]._key, fitting, tuple(rescheduled), spent_ns), payload)

    def _put_off(self, request: InferenceRequest) -> None:
        """Keep the sender of a request that will come again, for those that hold it."""
        key, sender = request._key, request._sender
        if sender is None or sender._over:
            self._host.over(key)
        else:
            self._again[key] = weakref.ref(sender, lambda _: self._forget(key))

    def _forget(self, key: int) -> None:
        if self._again.pop(key, None) is not None:
            self._host.over(key)

    def _written(self, request: InferenceRequest, response: InferenceResponse, payload: Payload) -> tuple[Any, ...]:
        if request._requested and response._error is None:
            response = response._only(request._requested)
        try:
            return write_response(response, payload)
        except ValueError as error:
            return write_error(str(error))

    def _answer_bell(self, runner: Runner) -> None:
        """Until the server does not want the instance any more."""
        try:
            with contextlib.suppress(ChannelClosedError):
                while os.read(self._bell, 1):
                    try:
                        said = runner.is_ready(), None
                    except ModelError as error:
                        said = False, str(error)
                    self._send((protocol.READY, *said))
        finally:
            os.close(self._bell)


def _wait_for_debugger(port: int) -> None:
    """Let a debugger attach before the model is imported. ModelError if debugpy is not there, or cannot listen."""
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # it would warn of modules that are not debugged
    try:
        debugpy = importlib.import_module("debugpy")
        debugpy.listen(("127.0.0.1", port))
    except (ImportError, OSError, RuntimeError) as error:
        raise ModelError(f"cannot wait for a debugger on port {port}: {error}") from None
    sys.stderr.write(f"waiting for a debugger on port {port}\n")
    debugpy.wait_for_client()
