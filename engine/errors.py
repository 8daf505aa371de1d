"""One hierarchy of errors, each with a kind.

The engine and the actors raise these; only `api/` knows which HTTP status or gRPC code a kind becomes. The text is what
the client reads, so it names what was wrong and what was expected (docs/reference/errors.md#error-kinds,
docs/reference/errors.md#request-validation).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import TypeVar

E = TypeVar("E", bound=BaseException)

CONTEXT_LENGTH = "context_length"
"""What an error is about (`TriremeError.about`) where there are more tokens than a model has room for."""

LONGEST_SHOWN = 256
"""Characters of one name, id or parameter that an error shows."""

LONGEST_MESSAGE = 64 * LONGEST_SHOWN
"""Characters of a whole text: no rule tells a name that is full of quotes from the words around it."""

_LONG = (
    re.compile(rf"""(?<![^\s'"\[\],])[^\s'"\[\],]{{{LONGEST_SHOWN + 4},}}"""),  # a word that is no word
    re.compile(rf"""(?<![^'"\n])[^'"\n]{{{8 * LONGEST_SHOWN + 1},}}"""),  # more than any message has between two names
)
"""Each matches only where a run of such characters begins: a client may send many runs that are almost long enough, and
each is to be gone through once, not from each of its characters on."""


class ErrorKind(enum.Enum):
    """Triton's error classes, and below these what only access rules need. The value is how the class is printed in
    logs and in the repository index."""

    INVALID_ARGUMENT = "Invalid argument"
    NOT_FOUND = "Not found"
    UNAVAILABLE = "Unavailable"
    ALREADY_EXISTS = "Already exists"
    UNSUPPORTED = "Unsupported"
    CANCELLED = "Cancelled"
    DEADLINE = "Deadline exceeded"
    INTERNAL = "Internal"
    UNKNOWN = "Unknown"
    UNAUTHENTICATED = "Unauthenticated"
    PERMISSION_DENIED = "Permission denied"
    LIMIT_EXCEEDED = "Limit exceeded"


class FailureReason(enum.Enum):
    """Why an accepted request failed: the ``reason`` label of ``nv_inference_request_failure``."""

    __hash__ = object.__hash__  # asked for at every failure, and nothing depends on its value

    REJECTED = "REJECTED"  # expired in a queue whose timeout action is REJECT
    CANCELED = "CANCELED"  # cancelled while a scheduler held it
    BACKEND = "BACKEND"  # the backend answered with an error, raised, or died
    OTHER = "OTHER"


class RefusalReason(enum.Enum):
    """Why a request, or a connection, was refused: the ``reason`` label of ``trireme_refused_total``."""

    __hash__ = object.__hash__

    QUEUE_FULL = "queue_full"  # the model's queue has max_queue_size requests
    QUEUE_TIMEOUT = "queue_timeout"  # its time in the queue was over, or its sequence's in the backlog
    OBJECTIVE = "objective"  # it could not be answered within the model's latency objective any more
    MODEL_SHARE = "model_share"  # the model has its share of the server-wide budget in flight
    BUDGET = "budget"  # too much waits for room in the server-wide budget, or holds it while it arrives slowly
    CLIENT_BYTES = "client_bytes"  # clients, or one address, hold too much that is not complete, or not read
    CONNECTION_LIMIT = "connection_limit"  # the client's address has too many connections
    STOPPING = "stopping"  # the model, or the server, is about to end
    NOT_READY = "not_ready"  # the model is known, and cannot answer now
    NO_INSTANCE = "no_instance"  # the last instance of the model died, and is not started again at once
    UNKNOWN_MODEL = "unknown_model"  # there is no such model, or no such version
    INVALID = "invalid"  # the request is malformed, or the model does not take such requests
    TOO_LARGE = "too_large"  # head, body or message are larger than they may be
    TOO_SLOW = "too_slow"  # head, body or message did not arrive in time
    RESTRICTED = "restricted"  # a key is missing, or the origin or the host is not allowed
    UNAUTHENTICATED = "unauthenticated"  # access rules do not know the caller
    PERMISSION_DENIED = "permission_denied"  # they do not let the caller do this
    CALLER_LIMIT = "caller_limit"  # the caller has reached a limit of its own
    NOT_IN_MEMORY = "not_in_memory"  # the model is loaded on demand, and what asks for it cannot wait for that
    MODEL_MEMORY = "model_memory"  # there is no room for the model in --model-memory-limit, and will not be
    LOAD_FAILED = "load_failed"  # the model, which is loaded on demand, could not be loaded
    LOAD_WAIT = "load_wait"  # too many wait for models to be loaded, or the request's own time was over


class TriremeError(Exception):
    """An error that a client may see.

    Attributes:
        message: the text for the client, without any prefix. Of what is longer in it than a name should be, the
            beginning and the length are shown, unless a backend says it.
        reason: what the failure metric counts it as, should an accepted request end with it.
        refusal: why it refuses a request; None for what the kind says (`refusal_reason`).
        refusal_counted: the metric of refusals has it.
        about: the part of the request that is wrong, as the model calls it; empty if that is not said.
    """

    kind = ErrorKind.UNKNOWN
    reason = FailureReason.OTHER
    refusal: RefusalReason | None = None
    refusal_counted = False
    about = ""

    def __init__(
        self,
        message: str,
        *,
        reason: FailureReason | None = None,
        refusal: RefusalReason | None = None,
        about: str = "",
    ) -> None:
        if len(message) > LONGEST_SHOWN and reason is not FailureReason.BACKEND:
            for pattern in _LONG:
                message = pattern.sub(lambda found: shown(found[0]), message)
            if len(message) > LONGEST_MESSAGE:
                length, half = len(message), LONGEST_MESSAGE // 2
                message = f"{message[:half]}... ({length} characters) ...{message[-half:]}"
        super().__init__(message)
        self.message = message
        if reason is not None:
            self.reason = reason
        if refusal is not None:
            self.refusal = refusal
        if about:
            self.about = about

    def __copy__(self) -> TriremeError:
        """Says the same, and has been raised nowhere. Whatever a subclass takes to be made, it is not made anew."""
        twin = type(self).__new__(type(self), *self.args)
        twin.__dict__.update(self.__dict__)
        return twin

    @property
    def refusal_reason(self) -> RefusalReason | None:
        """What a refusal with this error is counted as; None if it is none, because the client gave up."""
        return self.refusal or _REFUSALS.get(self.kind, RefusalReason.INVALID)

    @property
    def status_text(self) -> str:
        """``<Kind>: <message>``, the form in which logs and the repository index show an error."""
        return f"{self.kind.value}: {self.message}"


_REFUSALS = {
    ErrorKind.NOT_FOUND: RefusalReason.UNKNOWN_MODEL,
    ErrorKind.UNAVAILABLE: RefusalReason.NOT_READY,
    ErrorKind.CANCELLED: None,
    ErrorKind.DEADLINE: None,
    ErrorKind.UNAUTHENTICATED: RefusalReason.UNAUTHENTICATED,
    ErrorKind.PERMISSION_DENIED: RefusalReason.PERMISSION_DENIED,
    ErrorKind.LIMIT_EXCEEDED: RefusalReason.CALLER_LIMIT,
}
"""Of errors of these kinds that do not say for themselves; the others tell that the request is invalid."""


class InvalidArgumentError(TriremeError):
    kind = ErrorKind.INVALID_ARGUMENT


class NotFoundError(TriremeError):
    kind = ErrorKind.NOT_FOUND


class UnavailableError(TriremeError):
    kind = ErrorKind.UNAVAILABLE


class ColdModelError(UnavailableError):
    """A model is not in memory, and is loaded when it is waited for (`actors.residents`).

    Attributes:
        name: of the model.
    """

    refusal = RefusalReason.NOT_IN_MEMORY
    _AROUND = "model '", "' is not in memory, and is loaded on demand"

    def __init__(self, name: str, *, reason: FailureReason | None = None, refusal: RefusalReason | None = None) -> None:
        before, after = self._AROUND
        super().__init__(f"{before}{name}{after}", reason=reason, refusal=refusal)
        self.name = name

    @classmethod
    def read(cls, message: str) -> ColdModelError:
        """The error with this message."""
        before, after = cls._AROUND
        return cls(message.removeprefix(before).removesuffix(after))


class AlreadyExistsError(TriremeError):
    kind = ErrorKind.ALREADY_EXISTS


class UnsupportedError(TriremeError):
    kind = ErrorKind.UNSUPPORTED


class CancelledError(TriremeError):
    kind = ErrorKind.CANCELLED
    reason = FailureReason.CANCELED


class DeadlineError(TriremeError):
    kind = ErrorKind.DEADLINE


class InternalError(TriremeError):
    kind = ErrorKind.INTERNAL


class UnauthenticatedError(TriremeError):
    """Access rules do not know who asks."""

    kind = ErrorKind.UNAUTHENTICATED


class PermissionDeniedError(TriremeError):
    """Access rules know who asks, and do not allow it."""

    kind = ErrorKind.PERMISSION_DENIED


class LimitExceededError(TriremeError):
    """A caller has reached a limit of its own.

    Attributes:
        retry_after_s: when to try again, in seconds from now.
    """

    kind = ErrorKind.LIMIT_EXCEEDED

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float = 1.0,
        reason: FailureReason | None = None,
        refusal: RefusalReason | None = None,
    ) -> None:
        super().__init__(message, reason=reason, refusal=refusal)
        self.retry_after_s = retry_after_s


ERROR_CLASSES: Mapping[ErrorKind, type[TriremeError]] = {
    each.kind: each
    for each in (
        TriremeError,
        InvalidArgumentError,
        NotFoundError,
        UnavailableError,
        AlreadyExistsError,
        UnsupportedError,
        CancelledError,
        DeadlineError,
        InternalError,
        UnauthenticatedError,
        PermissionDeniedError,
        LimitExceededError,
    )
}
"""What is raised for an error of which only the kind is known."""


def shown(text: str) -> str:
    """What a client sent, as errors show it."""
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}... ({len(text)} characters)"


def request_prefix(request_id: str) -> str:
    """``[request id: ID] ``, the prefix of many texts; an absent id prints as ``<id_unknown>``
    (docs/reference/errors.md#request-validation)."""
    return f"[request id: {shown(request_id) or '<id_unknown>'}] "


def unframed(error: E) -> E:
    """An error that is kept: it does not refer to the frames that it passed, which hold whatever was at hand there."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def backend_failure(error: BaseException) -> TriremeError:
    """What a backend raised, as the answer to its requests. It does not refer to the frames that it passed, nor does
    what it came of."""
    if isinstance(error, TriremeError):
        return unframed(error)
    if isinstance(error, SystemExit):
        return InternalError(f"the backend called exit ({error.code})", reason=FailureReason.BACKEND)
    return InternalError(f"{type(error).__name__}: {error}", reason=FailureReason.BACKEND)
